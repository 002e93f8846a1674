"""Commit random changes to the tables at a given rate until the stop."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Final

from tests.chaos.world import REFUSED_KEY

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from tests.chaos.world import World

KEYS: Final = 400
MOST_ROWS: Final = 200
REFUSED_SHARE: Final = 0.02
FILES: Final = 4
_TAGS: Final = f"IF(rand({{seed}}) < {REFUSED_SHARE}, map({REFUSED_KEY}, 1), map('t', CAST(id % 7 AS INT)))"
_ROWS: Final = (
    f"SELECT id, concat('name ', id, ' of {{seed}}') AS name, CAST(rand({{seed}}) * 1000 AS BIGINT) AS amount, {_TAGS} AS tags "
    "FROM range({first}, {last})"
)
_MERGE: Final = f"MERGE INTO {{t}} t USING ({_ROWS}) s ON t.id = s.id"
_NEW: Final = "WHEN NOT MATCHED THEN INSERT *"
OPERATIONS: Final = (
    (f"{_MERGE} WHEN MATCHED AND s.amount < 200 THEN DELETE WHEN MATCHED THEN UPDATE SET * {_NEW}",),
    (f"{_MERGE} {_NEW}",),
    ("UPDATE {t} SET amount = amount + 1, tags = map('t', 0) WHERE id BETWEEN {first} AND {last}",),
    (
        "DELETE FROM {t} WHERE id BETWEEN {first} + 10000 AND {last} + 10000",
        "UPDATE {t} SET id = id + 10000 WHERE id BETWEEN {first} AND {last}",
    ),
    ("DELETE FROM {t} WHERE id BETWEEN {first} AND {last}",),
    ("DELETE FROM {t} WHERE id >= 10000",),
    ("OPTIMIZE {t}",),
    (f"INSERT INTO {{t}} SELECT /*+ REPARTITION({FILES}) */ * FROM ({_ROWS}) s LEFT ANTI JOIN {{t}} t ON t.id = s.id",),
    (f"INSERT OVERWRITE {{t}} SELECT /*+ REPARTITION({FILES}) */ id, name, amount + 1, tags FROM {{t}}",),
)
"""Each of one commit or two. The last two write several files, of which a micro-batch may take some.

Delta gives the change files of the others to one micro-batch.
"""
WEIGHTS: Final = (8, 4, 5, 2, 2, 1, 1, 8, 4)


class Writer:
    """Writes from ``with`` on, and raises at its end what went wrong. ``commits``: how many there were."""

    def __init__(self, world: World, seed: int, pause_seconds: float) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._pause_seconds = pause_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._error: BaseException | None = None
        self.commits = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _write(self) -> None:
        try:
            while not self._over.wait(self._random.expovariate(1 / self._pause_seconds)):
                self._commit()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller that waits for this thread
            self._error = error

    def _commit(self) -> None:
        (operation,) = self._random.choices(OPERATIONS, WEIGHTS)
        first = self._random.randrange(KEYS)
        words = {
            "t": f"delta.`{self._world.path(self._random.choice(self._world.tables))}`",
            "seed": self._random.randrange(2**31),
            "first": first,
            "last": first + self._random.randint(1, MOST_ROWS),
        }
        for statement in operation:
            self._world.spark.sql(statement.format(**words))
            self.commits += 1
