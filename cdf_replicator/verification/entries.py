"""Compare the entries of a target with the rows of the source table at the version that the route has delivered.

1. V is that version.
2. The sink opens its view of the target.
3. W is the newest version of the source table. It is read after a consistent view was opened, and after an inconsistent
   one was read. Every change that the view can hold is therefore at W or earlier.
4. The keys that the change feed names in (V, W] are left out on both sides.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.transform import change_frame
from cdf_replicator.verification import digests, expected
from cdf_replicator.verification.comparison import compare
from connectors import Aggregated, Verifiable, change, guard_of
from connectors.rendering import in_json_type
from connectors.view import IDENTITY, paced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from cdf_replicator.delivery.dead_letters import DeadLetters
    from cdf_replicator.verification.expected import Expected
    from cdf_replicator.verification.result import Comparison
    from connectors import RouteSpec, View


@dataclass(frozen=True, slots=True)
class EntryResult:
    """The result of a comparison of entries.

    Args:
        comparison: The differences.
        newest: W.
        changed: Number of keys that changed in (V, W].
        dead_letters: Number of keys with an open dead letter, which the target must not hold.
        left_out: Columns that were not compared.
    """

    comparison: Comparison
    newest: int
    changed: int
    dead_letters: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a route at version ``version``.

    Args:
        table: The source table, as the route delivers it.
        spec: The route as the sink knows it.
        sink: The sink.
        letters: The dead letters.
        version: V.
        gently: Whether to read rows and entries in one task at a time, which leaves the other cores to the streams.
    """

    table: Expected
    spec: RouteSpec
    sink: Verifiable
    letters: DeadLetters
    version: int
    gently: bool

    def compared(self, columns: Sequence[str], limit: int) -> EntryResult:
        """Compare the given columns, or all if there are none; raises ``RouteHaltError``."""
        snapshot = self.table.snapshot(self.version)
        rows, left_out = self._rows(snapshot, columns)
        row, identity = expected.row_type(rows), self.sink.identity(self.spec).alias(IDENTITY)
        names = expected.compared(self.table.route, row, columns, left_out)
        earlier = self._refused(identity).localCheckpoint()
        with self.sink.view(self.spec) as view, ExitStack() as cached:
            kept = view.kept(row)
            entries = self._entries(view, kept, names, cached)
            newest = self.table.source.log.latest_version()
            changed = self._changed(snapshot, newest).select(identity).distinct()
            refused = self._refused(identity).localCheckpoint()
            # A redrive or a repair that ran meanwhile closes a dead letter, and writes the key's row with an earlier version.
            closed = earlier.join(refused, IDENTITY, "left_anti").select(IDENTITY)
            doubled = refused.where("several").select(IDENTITY)
            absent = refused.select(IDENTITY)
            ignored = changed.unionByName(doubled).unionByName(closed).distinct().persist()
            cached.callback(ignored.unpersist)
            counts = changed.count(), absent.count()  # before the joins, which Spark plans by the size of ``ignored``
            if (condition := view.leaves_entry(row)) is not None:
                rows = rows.where(condition)
            rows = self._tasks(rows.withColumn(change.ROW, in_json_type(_in_types(row, kept), kept)))
            if view.expires:
                rows = rows.join(entries.select(IDENTITY), IDENTITY, "left_semi")
            comparison = compare(
                rows.join(ignored, IDENTITY, "left_anti").join(absent, IDENTITY, "left_anti"),
                entries.join(ignored, IDENTITY, "left_anti"),
                (
                    guard_of(self.table.state.epoch, 0, upsert=False),
                    guard_of(self.table.state.epoch, newest, upsert=True),
                ),
                names,
                limit,
                reread=not view.consistent,
                only_upserts=not isinstance(self.sink, Aggregated),
            )
        return EntryResult(comparison, newest, *counts, left_out)

    def _rows(self, snapshot: DataFrame, columns: Sequence[str]) -> tuple[DataFrame, tuple[str, ...]]:
        """Return ``identity`` and ``row`` of each row that the target must hold, and the columns to leave out."""
        if not isinstance(self.sink, Aggregated):
            rows = snapshot.where(F.col(change.KEY).isNotNull())
            rows = rows.select(self.sink.identity(self.spec).alias(IDENTITY), change.ROW)
            return rows, expected.unverified(self.table.route, expected.row_type(rows))
        rows, inexact = self.sink.expected(self.spec, self.version)
        if wanted := [name for name in columns if name in inexact]:
            raise expected.refused(
                f"Column {', '.join(wanted)} of route {self.table.route.name} can't be compared: its value may depend on the order "
                "of the rows, as that of a floating-point sum does."
            )
        return rows, inexact

    def _entries(self, view: View, row: StructType, names: Sequence[str], cached: ExitStack) -> DataFrame:
        entries = paced(self._tasks(view.entries(self.table.spark, row)))
        if view.consistent:
            return entries
        entries = digests.digested(entries, names).persist(StorageLevel.DISK_ONLY)
        cached.callback(entries.unpersist)
        entries.count()  # reads the target before the newest version of the source table
        return paced(entries)

    def _changed(self, snapshot: DataFrame, newest: int) -> DataFrame:
        """Return the changes of the feed in (V, W]."""
        if newest <= self.version:
            return snapshot.limit(0)
        return change_frame.change_frame(self.table.source.changes(self.version + 1, newest), self.table.route, epoch=1)

    def _refused(self, identity: Column) -> DataFrame:
        """Return the identity of each key with an open dead letter, and whether ``several`` rows of the key exist.

        An aggregated sink refuses no row, and its identities are no key texts.
        """
        letters = self.letters.read_open(self.table.route.name).where(F.col(change.KEY).isNotNull())
        if isinstance(self.sink, Aggregated):
            return letters.limit(0).select(F.col(change.KEY).alias(IDENTITY), F.lit(False).alias("several"))
        several = F.max(F.col("code") == change.DUPLICATE_KEY).alias("several")
        return letters.select(identity, "code").groupBy(IDENTITY).agg(several)

    def _tasks(self, frame: DataFrame) -> DataFrame:
        return frame.coalesce(1) if self.gently else frame


def _in_types(row: StructType, kept: StructType) -> Column:
    """Return the row in the types that the target keeps. It rounds the text of a number, and so does this."""
    column = F.col(change.ROW)
    if kept == row:
        return column
    values = ((f, column.getField(f.name)) for f in kept.fields)
    return F.struct(
        *(
            (each if f == row[f.name] else each.cast("array<string>").cast(f.dataType)).alias(f.name)
            for f, each in values
        )
    )
