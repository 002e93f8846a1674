"""What a sink is given: the change frame, its guard, the route it belongs to, the micro-batch it came in.

The **change frame** is the one shape in which changes reach a sink, one row a change:

    key               string     key text; null where a key column is null (upsert sinks never see such a row)
    guard             bigint     the number a sink compares, see ``guard_of``
    change_type       string     snapshot | insert | update_preimage | update_postimage | delete
    commit_version    bigint     Delta version of the change
    commit_timestamp  timestamp  time of that commit
    row               struct     the route's columns, renamed and projected

``snapshot`` marks the rows of a bootstrap. To an upsert sink, ``update_preimage`` and ``delete`` both mean: the key
is gone as of this guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pyspark.sql import Column

KEY: Final = "key"
GUARD: Final = "guard"
CHANGE_TYPE: Final = "change_type"
COMMIT_VERSION: Final = "commit_version"
COMMIT_TIMESTAMP: Final = "commit_timestamp"
ROW: Final = "row"
DOUBLED: Final = "doubled"
"""A column between the service's reduction and its workers, which no sink sees: the guard at which one commit left several
rows of the key; null as a rule."""
NULL_KEY: Final = "null_key"
DUPLICATE_KEY: Final = "duplicate_key"
KEY_CODES: Final = (NULL_KEY, DUPLICATE_KEY)
"""Codes of rows that an upsert sink is not even given: without a key, or several of one key in a commit."""

CHANGE_TYPES: Final = ("snapshot", "insert", "update_preimage", "update_postimage", "delete")
DELETES: Final = ("update_preimage", "delete")

EPOCH_STEP: Final = 2**44
GENERATION_STEP: Final = 2**32


def guard_of(epoch: int, commit_version: int, *, upsert: bool) -> int:
    """``epoch * 2^44 + 2 * commit_version + upsert``: 63 bits, and at equal version an upsert beats a delete."""
    return epoch * EPOCH_STEP + 2 * commit_version + (1 if upsert else 0)


def commit_version_of(guard: int) -> int:
    return guard % EPOCH_STEP // 2


def is_delete(change_type: str = CHANGE_TYPE) -> Column:
    """Whether a change leaves its key gone; ``change_type``: the name of that column where it has another."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(change_type).isin(*DELETES)


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a target was filled: with all micro-batches of a generation up to ``number``, so with every commit up to ``version``.

    It grows with every micro-batch: a commit that takes several of them keeps the same ``version``. ``generation`` -1: a mark
    of the code before, which is a version alone and says nothing of batches.
    """

    generation: int
    number: int
    version: int

    @classmethod
    def parse(cls, text: str) -> Watermark:
        """Read what ``str`` made, or a bare version."""
        *batch, version = (int(part) for part in text.split(":"))
        generation, number = batch or (-1, 0)
        return cls(generation, number, version)

    def __str__(self) -> str:
        return str(self.version) if self.generation < 0 else f"{self.generation}:{self.number}:{self.version}"

    @property
    def txn_version(self) -> int:
        """As ``Batch.txn_version`` of its last batch; -1 where that is not known."""
        return -1 if self.generation < 0 else self.generation * GENERATION_STEP + self.number

    def reaches(self, known: Watermark) -> bool:
        """Return whether a target with this watermark holds all that it held at ``known``."""
        if self.generation < 0 or known.generation < 0:
            return self.version >= known.version
        return self.txn_version >= known.txn_version


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """What a sink may know of the route it serves.

    ``name``, ``table``: slugs. ``keys``: key columns of the source table, empty only for append sinks.
    ``options``: an instance of the sink's own ``Options``. ``owner``: identity of the state path that writes;
    ``epoch``: identity of the target's content (design: a resync or a recreated source starts the next).
    ``source``: the source table as SQL names it; ``filter``: the route's condition on its rows, if it has one.
    ``made``: columns of the row that are not the source's own of that name, but renamed, computed or joined.
    ``fence``: number of the lease under which is written; a sink that ``fences`` refuses whoever has a lower one.
    ``mark``: the watermark that the target surely had; None: it has none yet, or none that the state path knows of.
    """

    name: str
    table: str
    keys: tuple[str, ...]
    options: BaseModel
    owner: str
    epoch: int
    source: str = ""
    filter: str | None = None
    made: tuple[str, ...] = ()
    fence: int = 0
    mark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a target remembers of who fills it, and how far.

    ``mark``: the last watermark it was given; None if it was given none. ``restored``: it was brought back from a copy, since
    it is another one or does not reach the route's own ``mark``. ``txn_version``: the
    highest of a batch that it has recorded of this owner and route, and would not take again; -1: of none. ``route``: the name
    of the route that fills it; empty where the sink does not record it, so that only owners are compared.
    """

    owner: str
    epoch: int
    mark: Watermark | None = None
    restored: bool = False
    txn_version: int = -1
    route: str = ""

    def is_of(self, route: RouteSpec) -> bool:
        """Return whether this route, of this state path, recorded the claim."""
        return self.owner == route.owner and self.route in {"", route.name}

    def other(self, route: RouteSpec) -> str | None:
        """Name the other route or state path that holds the target; None where the claim is the route's, or of an older epoch.

        A resync begins an epoch above the claim, and so takes the target over.
        """
        if self.is_of(route) or self.epoch < route.epoch:
            return None
        if self.route in {"", route.name}:
            return "another state path"
        return f"route {self.route}" + ("" if self.owner == route.owner else " of another state path")


@dataclass(frozen=True, slots=True)
class Batch:
    """Identity of one micro-batch: (route, generation, number). Bootstrap is number 0, Spark's batch b is b + 1.

    ``replay``: the rows may already be in an append sink, delivered by an earlier generation.
    ``table_id``: Delta's id of the source table. ``request``: id of what an operator asked for, of a batch that is outside
    the generation's sequence.
    """

    route: RouteSpec
    generation: int
    number: int
    table_id: str
    replay: bool = False
    request: str = ""

    @property
    def is_bootstrap(self) -> bool:
        """Then the changes are rows of a snapshot, all of them upserts; an upsert sink is given no key twice."""
        return self.number == 0 and not self.replay and not self.request

    @property
    def txn_version(self) -> int:
        """Grows for ever, so that a leftover writer of an older generation loses (``txnVersion`` of Delta)."""
        return self.generation * GENERATION_STEP + self.number


@dataclass(frozen=True, slots=True)
class Change:
    """One change as a ``RowSink`` sees it. ``row`` is the JSON form of the row: see ``connectors.render``."""

    key: str
    guard: int
    change_type: str
    row: dict[str, Any]

    @property
    def deleted(self) -> bool:
        return self.change_type in DELETES

    @property
    def commit_version(self) -> int:
        return commit_version_of(self.guard)
