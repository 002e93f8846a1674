"""Keep the present rows of a source table in the Delta table ``<PATH>/<table slug>`` (sink type ``delta_replica``).

The table has the route's columns, ``_cdf_key`` (the key text, on which the sink merges) and ``_cdf_guard`` (a change of a
lower guard never overwrites). It holds the source's rows and no others. The table ``<PATH>/_tombstones/<table slug>``
holds deleted keys, so that an older upsert does not revive one of them. With ``SOFT_DELETE=true`` a deleted row stays in
the replica for good, marked in ``_cdf_deleted``, and there are no tombstones.

A micro-batch is one MERGE. If it deletes keys, the sink appends their tombstones first. Both commits carry ``txnAppId``
and ``txnVersion``. Delta therefore drops a redelivered commit, and a commit of a leftover writer of an older generation.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from connectors.change import (
    DELETES,
    FEED_COLUMNS,
    GUARD,
    KEY,
    SNAPSHOT,
    is_delete,
)
from connectors.delta import merge, tombstones
from connectors.delta.merge import DELETED, HELD_GUARD, HELD_KEY
from connectors.delta.sink import DeltaSettings, DeltaSink
from connectors.delta.tables import completeness, table, transactions
from connectors.delta.tables import schema as delta_schema
from connectors.delta.tables.errors import classified
from connectors.delta.tables.session import session
from connectors.delta.tables.snapshot import Snapshot
from connectors.delta.view import TableView, newest_version
from connectors.protocols import Capabilities, Repairable, Resyncable
from connectors.result import EntryCount, FrameResult
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, Claim, RouteSpec
    from connectors.sink import Mode
    from connectors.view import View


class DeltaReplicaSettings(DeltaSettings):
    soft_delete: bool = Field(
        default=False, description="Keep deleted rows, marked in the column _cdf_deleted. Resync after a change."
    )
    tombstone_seconds: int = Field(
        86_400,
        gt=0,
        description="Seconds to keep a deleted key's tombstone, which stops a late older row from reviving the key.",
    )
    history: bool = Field(
        default=False, description="Enable the replica's own change feed, which records every state of the replica."
    )


class DeltaReplicaSink(DeltaSink, Resyncable, Repairable):
    """A sink that keeps one row per key."""

    Settings = DeltaReplicaSettings
    mode: ClassVar[Mode] = "upsert"
    settings: DeltaReplicaSettings
    what = "replica"

    def __init__(self, settings: DeltaReplicaSettings) -> None:
        super().__init__(settings)
        self.capabilities = Capabilities(deleted_rows=settings.soft_delete)

    def tombstone_path(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/_tombstones/{route.table}"

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the tables, or check that they belong to the route and can hold its columns."""
        from connectors.delta.tables import shape

        path, definition = self.target(route), f"soft_delete={self.settings.soft_delete}".lower()
        self.check_columns(schema, route, (HELD_KEY, HELD_GUARD, DELETED, *FEED_COLUMNS))
        columns = type(schema)([*schema.fields]).add(HELD_KEY, "string").add(HELD_GUARD, "long")
        if self.settings.soft_delete:
            columns = columns.add(DELETED, "boolean")
        feed = {"delta.enableChangeDataFeed": "true"} if self.settings.history else {}
        if table.exists(path):
            self.check_table(path, (HELD_KEY, HELD_GUARD))
            self.check_sole(path, route)
            self.redefined(route, definition, "SOFT_DELETE")
            table.set_properties(path, feed)
            delta_schema.evolve_schema(path, columns)
        else:
            delta_schema.create(path, columns, **feed)
        if not self.settings.soft_delete:
            tombstones.prepare(self.tombstone_path(route))
        self.record_claim(route, definition)
        lost = [name for name in shape.left_over(table.schema_of(path), columns) if name != DELETED]
        return [f"{path} keeps columns the route no longer has: {', '.join(lost)}."] if lost else []

    def read_claim(self, route: RouteSpec) -> Claim | None:
        """Read the claim, with the later transaction of both tables: the tombstones record a batch first."""
        claim, tombs = super().read_claim(route), self.tombstone_path(route)
        if claim is None or not table.exists(tombs):
            return claim
        recorded = Snapshot(tombs).last_txn_version(transactions.application(route, tombs))
        return replace(claim, txn_version=max(claim.txn_version, recorded))

    def identity(self, route: RouteSpec) -> Column:  # noqa: ARG002 - a replica holds the key text
        from pyspark.sql import functions as F  # noqa: N812

        return F.col(KEY)

    def key(self, route: RouteSpec) -> Column:  # noqa: ARG002 - a replica holds the key text
        from pyspark.sql import functions as F  # noqa: N812

        return F.col(IDENTITY)

    def view(self, route: RouteSpec) -> AbstractContextManager[View]:
        from pyspark.sql import functions as F  # noqa: N812

        path = self.target(route)
        return nullcontext(TableView(path, newest_version(path), F.col(HELD_KEY)))

    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Merge the reduced micro-batch, or fill an empty table with a snapshot."""
        path = self.target(batch.route)
        app = transactions.application(batch.route, path, batch.request)
        newest = self.checked_snapshot(batch.route)
        if newest.last_txn_version(app) >= batch.txn_version:
            return merge.repeated(frame, path) if batch.request else FrameResult(skipped=True)
        try:
            if batch.is_bootstrap and self._is_empty(batch.route):
                return FrameResult({SNAPSHOT: merge.fill(frame, batch, path, app)})
            if batch.request:
                _begin_generation(newest, batch, path)
            result = self._apply(frame, batch, path, app)
        except Exception as error:
            raise classified(error, path) from error
        if batch.request:  # no watermark follows, whose check would find a RESTORE since the first check
            self.checked_snapshot(batch.route)
        return result

    def complete(self, route: RouteSpec, restored_at: int) -> int | None:
        return completeness.complete(self.target(route), restored_at, route.epoch)

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        """Count rows by their guard, without soft-deleted rows and tombstones."""
        from pyspark.sql import functions as F  # noqa: N812

        path = self.target(route)
        if not table.exists(path):
            return EntryCount()
        self.check_table(path, (HELD_KEY, HELD_GUARD))
        rows = session().read.format("delta").load(path)
        shown = F.coalesce(~F.col(DELETED), F.lit(True)) if DELETED in rows.columns else F.lit(True)
        found = rows.agg(F.count_if(shown), F.count_if(shown & _is_orphan(below_guard)), F.max(HELD_GUARD)).first()
        assert found is not None
        highest = max(found[2] or 0, tombstones.highest(self.tombstone_path(route)))
        return EntryCount(found[0], found[1], highest)

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        """Delete the rows that no change of the new epoch wrote; with ``SOFT_DELETE`` mark them as deleted."""
        name, orphans = table.identifier(self.target(route)), f"({HELD_GUARD} IS NULL OR {HELD_GUARD} < {below_guard})"
        if self.settings.soft_delete:
            done = f"UPDATE {name} SET {DELETED} = true WHERE {orphans} AND coalesce({DELETED}, false) = false"  # noqa: S608 - as below
        else:
            tombstones.sweep(self.tombstone_path(route), below_guard)
            done = f"DELETE FROM {name} WHERE {orphans}"  # noqa: S608 - a quoted path and a number
        found = session().sql(done).first()
        assert found is not None
        return int(found["num_affected_rows"])

    def next_maintenance_at(self, route: RouteSpec) -> float | None:
        """Return the time of the next compaction or of the next removal of tombstones, whichever is earlier."""
        compacting = super().next_maintenance_at(route)
        if self.settings.soft_delete:
            return compacting
        forgetting = tombstones.next_forgetting(self.tombstone_path(route), self.settings.tombstone_seconds)
        return forgetting if compacting is None else min(compacting, forgetting)

    def run_maintenance(self, route: RouteSpec) -> str:
        """Remove old tombstones if that is due, then compact the table if that is due."""
        path, seconds = self.tombstone_path(route), self.settings.tombstone_seconds
        if not self.settings.soft_delete and time.time() >= tombstones.next_forgetting(path, seconds):
            tombstones.purge(path, seconds)
        return super().run_maintenance(route)

    def _is_empty(self, route: RouteSpec) -> bool:
        """Return whether the table and its tombstones are empty."""
        tables = [self.target(route)] if self.settings.soft_delete else [self.target(route), self.tombstone_path(route)]
        return all(Snapshot(path).is_empty() for path in tables)

    def _apply(self, frame: DataFrame, batch: Batch, path: str, app: str) -> FrameResult:
        """Append the tombstones of the micro-batch, then merge it. Spark caches it until both tables hold it."""
        changes = frame.persist()
        try:
            given, oldest = merge.count(changes)
            if not given:
                return FrameResult()
            if batch.request:
                completeness.record_request(path, batch.route.epoch, changes.agg({GUARD: "max"}).collect()[0][0])
            fresh = changes
            if not self.settings.soft_delete:
                fresh = self._remember(changes, batch, given, oldest)
            affected, deleted = merge.merge(fresh, batch, path, app, soft_delete=self.settings.soft_delete)
            if affected == sum(given.values()):
                return FrameResult(given)
            return merge.partly_applied(changes, given, deleted, path)
        finally:
            changes.unpersist()

    def _remember(self, changes: DataFrame, batch: Batch, given: Counter[str], oldest: int) -> DataFrame:
        """Append the batch's tombstones, and return the changes without the upserts that an earlier tombstone beats."""
        path = self.tombstone_path(batch.route)
        newer = tombstones.newer(path, oldest)
        nothing_newer = newer.isEmpty()  # before the append: the batch's own tombstones beat none of its upserts
        if any(given[kind] for kind in DELETES):
            tombstones.append(changes.where(is_delete()), batch, path)
        return changes if nothing_newer else tombstones.drop_stale(changes, newer)


def _begin_generation(checked: Snapshot, batch: Batch, path: str) -> None:
    """Record the generation of a request, unless the stream has recorded it or a later transaction.

    The driver begins a generation after a RESTORE. This commit therefore stops the next start from detecting that RESTORE
    again, and from opening the dead letters again that the request closes. It conflicts with a RESTORE since the check.
    """
    app, first = transactions.application(batch.route, path), replace(batch, number=0)
    transactions.record_txn(path, app, first.txn_version, checked)


def _is_orphan(below_guard: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(HELD_GUARD).isNull() | (F.col(HELD_GUARD) < below_guard)
