"""Where a rejected change is kept, with its reason: a Delta table under the state path.

One row a letter, identified by (route, key, guard), and by its row where that does not tell it apart, so that a
redelivered micro-batch finds its letters written.
Columns: id, route, table, sink, key, guard, change_type, commit_version, row (JSON), code, reason, generation, batch,
state, created_at, closed_at. State: open; superseded, by a later change of the key; redriven; discarded, by an operator;
void, since a resync has said all about the route's keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cdf_replicator.delivery.dead_letter_table import DeadLetterTable
from connectors import change
from connectors.rendering import json_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from cdf_replicator.delivery import Letter
    from cdf_replicator.route import Route
    from cdf_replicator.spark.hadoop_path import RemotePath
    from connectors import Batch

LETTER_SCHEMA: Final = "key string, guard long, code string, reason string"
_REASON_LENGTH: Final = 2000

Closed = Literal["superseded", "redriven", "discarded", "void"]
"""How a letter ended."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Known:
    """What a route remembers of its letters while it runs, so that a micro-batch need not read the table.

    Args:
        open: How many are open.
        keys: Those of which a later change closes a letter; None where there are more of them than are remembered.
        highest: The guard of the newest letter ever kept; a change above it has none yet.

    """

    open: int = 0
    keys: frozenset[str] | None = frozenset()
    highest: int = -1

    def with_more(self, kept: int, refused: Collection[Letter], most: int) -> Known:
        """Return what is known once so many letters were kept of these refused changes."""
        named = {x.key for x in refused if x.key is not None and x.code != change.DUPLICATE_KEY}
        keys = None if self.keys is None else self.keys | named
        if keys is not None and len(keys) > most:
            keys = None
        return replace(self, open=self.open + kept, keys=keys, highest=max(self.highest, *(x.guard for x in refused)))


class DeadLetters:
    """All routes share the table, each in a partition of its own."""

    def __init__(self, spark: SparkSession, path: Path | RemotePath) -> None:
        self._spark = spark
        self._table = DeadLetterTable(spark, path)

    def known(self, route: str, most: int) -> Known:
        """Read what there is of a route; a table that can't hold anything of it is not even opened.

        Args:
            route: Name of the route.
            most: How many keys are remembered at the most.

        """
        if not self._table.may_hold(route):
            return Known()
        closable = F.when(_is_open() & (F.col("code") != change.DUPLICATE_KEY), F.col("key"))
        told = (F.count_if(_is_open()), F.max("guard"), F.slice(F.collect_set(closable), 1, most + 1))
        row = self._table.recovering(lambda: self._table.frame().where(_of(route)).agg(*told).first())
        assert row is not None
        count, highest, keys = row
        return Known(count, frozenset(keys) if len(keys) <= most else None, -1 if highest is None else highest)

    def select(self, frame: DataFrame, letters: Iterable[Letter]) -> DataFrame:
        """Return the rows of a change frame that the letters name, with their ``code`` and ``reason``."""
        named = {(letter.key, letter.guard): letter for letter in letters}
        rows = [(x.key, x.guard, x.code, x.reason[:_REASON_LENGTH]) for x in named.values()]
        wanted = F.broadcast(self._spark.createDataFrame(rows, LETTER_SCHEMA)).alias("letter")
        same = F.col("letter.key").eqNullSafe(F.col("rejected.key")) & (
            F.col("letter.guard") == F.col("rejected.guard")
        )
        return frame.alias("rejected").join(wanted, same).select("rejected.*", "letter.code", "letter.reason")

    def bury(self, rejected: DataFrame, route: Route, batch: Batch, new: bool = False) -> int:
        """Keep rows, with ``code`` and ``reason`` as ``select`` adds them, as open letters; returns how many were added.

        Letters already there stay as they are. ``new``: none of these is, so that the table need not be read.
        """
        row_type = rejected.schema[change.ROW].dataType
        assert isinstance(row_type, StructType)
        row = json_row(row_type)
        # Each of several rows without a key, or of one key in one commit, is a letter of its own.
        own = F.when(F.col("key").isNull() | (F.col("code") == change.DUPLICATE_KEY), row)
        identity = F.concat_ws("\x1f", F.lit(route.name), "key", own, F.col("guard"))
        letters = rejected.select(
            F.sha2(identity, 256).alias("id"),
            F.lit(route.name).alias("route"),
            F.lit(route.source.slug).alias("table"),
            F.lit(route.sink).alias("sink"),
            "key",
            "guard",
            "change_type",
            "commit_version",
            row.alias("row"),
            "code",
            "reason",
            F.lit(batch.generation).cast("long").alias("generation"),
            F.lit(batch.number).cast("long").alias("batch"),
            F.lit("open").alias("state"),
            F.current_timestamp().alias("created_at"),
            F.lit(None).cast("timestamp").alias("closed_at"),
        )
        letters = letters.coalesce(1).dropDuplicates(["id"])  # few rows: a shuffle would take longer than all else

        def add() -> int:
            fresh, added = letters, Observation()
            if not new:
                fresh = letters.join(self._table.frame().where(_of(route.name)).select("id"), "id", "left_anti")
            self._table.append(fresh.observe(added, F.count(F.lit(1)).alias("rows")), route.name)
            return int(added.get["rows"])

        return self._table.recovering(add)

    def close_superseded(self, route: str, delivered: Mapping[str, int]) -> None:
        """Close open letters of keys of which a later change was delivered; ``delivered``: some keys with their guards.

        Not those of a key that had several rows: a later change is one row's, and the others may still be there. Only
        a look at the table can tell, which is what a resync has.
        """
        guard = F.from_json(F.lit(json.dumps(delivered)), "map<string, long>")[F.col("key")]
        self.close(route, (F.col("code") != change.DUPLICATE_KEY) & (F.col("guard") < guard), "superseded")

    def close_superseded_of(self, route: str, delivered: DataFrame) -> None:
        """Do the same for ``key`` and ``guard`` of any number of changes."""
        same = (F.col("kept.key") == F.col("new.key")) & (F.col("kept.code") != change.DUPLICATE_KEY)
        self._close_older(delivered, route, same & (F.col("kept.guard") < F.col("new.guard")), "superseded")

    def close_redriven(self, route: str, keys: DataFrame, guard: int, refused: Iterable[Letter]) -> None:
        """Close the letters of keys, a null among them, whose present rows were written at a guard.

        Where that row was refused in its turn, its letter stays open and takes the place of the older ones.
        """
        again = self._spark.createDataFrame([(letter.key,) for letter in refused], "key string").distinct()
        again = again.select(F.col("key").alias("again"), F.lit(1).alias("refused"))
        told = keys.join(F.broadcast(again), F.col("key").eqNullSafe(F.col("again")), "left")
        newest = F.when(F.col("refused").isNotNull(), guard - 1).otherwise(guard)
        same = F.col("kept.key").eqNullSafe(F.col("new.key")) & (F.col("kept.guard") <= F.col("new.guard"))
        self._close_older(told.select("key", newest.alias("guard")), route, same, "redriven")

    def _close_older(self, newer: DataFrame, route: str, same: Column, state: Closed) -> None:
        ours = (F.col("kept.route") == route) & (F.col("kept.state") == "open")

        def merge() -> None:
            builder = self._table.delta().alias("kept").merge(newer.alias("new"), ours & same)
            builder.whenMatchedUpdate(set=_closed(state)).execute()

        self._table.recovering(merge)

    def close(self, route: str, which: Column, state: Closed) -> None:
        """Close those of a route's open letters."""
        self._table.recovering(lambda: self._table.delta().update(_of(route) & _is_open() & which, _closed(state)))

    def open(self, route: str) -> DataFrame:
        """Return the open letters of a route."""
        return self._table.recovering(self._table.frame).where(_of(route) & _is_open())

    def read(self, work: Callable[[DataFrame], Result]) -> Result:
        """Do something with every letter that was ever kept, changing nothing; none is ever removed."""
        return self._table.naming(lambda: work(self._table.frame()))


def of_ids(ids: Iterable[str]) -> Column:
    """Letters whose id begins with one of these; all, where there are none."""
    named = [F.col("id").startswith(each) for each in ids]
    return reduce(lambda one, other: one | other, named, F.lit(not named))


def _of(route: str) -> Column:
    return F.col("route") == route


def _is_open() -> Column:
    return F.col("state") == "open"


def _closed(state: Closed) -> dict[str, str | Column]:
    return {"state": F.lit(state), "closed_at": F.current_timestamp()}
