"""Where a rejected change is kept, with its reason: a Delta table under the state path.

One row a letter, identified by (route, key, guard), and by its row where that does not tell it apart, so that a
redelivered micro-batch finds its letters written.
Columns: id, route, table, sink, key, guard, change_type, commit_version, row (JSON), code, reason, generation, batch,
state, created_at, closed_at. State: open; superseded, by a later change of the key; redriven; discarded, by an operator;
void, since a resync has said all about the route's keys.
"""

from __future__ import annotations

import threading
from functools import reduce
from typing import TYPE_CHECKING, Final, Literal

from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from connectors import change
from connectors.render import json_row

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from cdf_replicator.delivery import Letter
    from cdf_replicator.remote_path import RemotePath
    from cdf_replicator.route import Route
    from connectors import Batch

LETTER_SCHEMA: Final = "key string, guard long, code string, reason string"
TABLE_SCHEMA: Final = """
    id string, route string, table string, sink string, key string, guard long, change_type string,
    commit_version long, row string, code string, reason string, generation long, batch long,
    state string, created_at timestamp, closed_at timestamp
"""
_REASON_LENGTH: Final = 2000

Closed = Literal["superseded", "redriven", "discarded", "void"]
"""How a letter ended."""


class DeadLetters:
    """All routes share the table; within the lease holder one lock keeps their MERGEs from meeting."""

    def __init__(self, spark: SparkSession, path: Path | RemotePath) -> None:
        self._spark = spark
        self._path = str(path)
        self._lock = threading.Lock()

    def select(self, frame: DataFrame, letters: Iterable[Letter]) -> DataFrame:
        """Return the rows of a change frame that the letters name, with their ``code`` and ``reason``."""
        named = {(letter.key, letter.guard): letter for letter in letters}
        rows = [(x.key, x.guard, x.code, x.reason[:_REASON_LENGTH]) for x in named.values()]
        wanted = F.broadcast(self._spark.createDataFrame(rows, LETTER_SCHEMA)).alias("letter")
        same = F.col("letter.key").eqNullSafe(F.col("rejected.key")) & (
            F.col("letter.guard") == F.col("rejected.guard")
        )
        return frame.alias("rejected").join(wanted, same).select("rejected.*", "letter.code", "letter.reason")

    def bury(self, rejected: DataFrame, route: Route, batch: Batch) -> None:
        """Keep rows, with ``code`` and ``reason`` as ``select`` adds them, as open letters.

        Letters already there stay as they are.
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
        ).dropDuplicates(["id"])
        with self._lock:
            merge = self._table(create=True).alias("kept").merge(letters.alias("new"), "kept.id = new.id")
            merge.whenNotMatchedInsertAll().execute()

    def close_superseded(self, delivered: DataFrame, route: Route, refused: Iterable[Letter]) -> None:
        """Close open letters of keys for which a later change was delivered, and not refused in its turn.

        Not those of a key that had several rows: a later change is one row's, and the others may still be there. Only
        a look at the table can tell, which is what a resync has.
        """
        again = self._spark.createDataFrame(
            [(letter.key, letter.guard) for letter in refused], "key string, guard long"
        )
        newer = delivered.select("key", "guard").join(F.broadcast(again), ["key", "guard"], "left_anti")
        same = (F.col("kept.key") == F.col("new.key")) & (F.col("kept.code") != change.DUPLICATE_KEY)
        self._close_older(newer, route.name, same & (F.col("kept.guard") < F.col("new.guard")), "superseded")

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
        with self._lock:
            merge = self._table(create=False).alias("kept").merge(newer.alias("new"), ours & same)
            merge.whenMatchedUpdate(set=_closed(state)).execute()

    def close(self, route: str, which: Column, state: Closed) -> None:
        """Close those of a route's open letters."""
        with self._lock:
            self._table(create=False).update(_open(route) & which, _closed(state))

    def open(self, route: str) -> DataFrame:
        """Return the open letters of a route."""
        return self.all().where(_open(route))

    def all(self) -> DataFrame:
        """Return every letter that was ever kept; none is ever removed."""
        if not DeltaTable.isDeltaTable(self._spark, self._path):
            return self._spark.createDataFrame([], TABLE_SCHEMA)
        return self._spark.read.format("delta").load(self._path)

    def open_count(self, route: str) -> int:
        """Return how many letters of a route are open."""
        return self.open(route).count() if DeltaTable.isDeltaTable(self._spark, self._path) else 0

    def _table(self, *, create: bool) -> DeltaTable:
        if create and not DeltaTable.isDeltaTable(self._spark, self._path):
            schema = self._spark.createDataFrame([], TABLE_SCHEMA).schema
            builder = DeltaTable.createIfNotExists(self._spark).location(self._path).addColumns(schema)
            return builder.partitionedBy("route").execute()
        return DeltaTable.forPath(self._spark, self._path)


def of_ids(ids: Iterable[str]) -> Column:
    """Letters whose id begins with one of these; all, where there are none."""
    named = [F.col("id").startswith(each) for each in ids]
    return reduce(lambda one, other: one | other, named, F.lit(not named))


def _open(route: str) -> Column:
    return (F.col("route") == route) & (F.col("state") == "open")


def _closed(state: Closed) -> dict[str, str | Column]:
    return {"state": F.lit(state), "closed_at": F.current_timestamp()}
