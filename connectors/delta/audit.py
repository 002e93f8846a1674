"""Append every change of a source table to the Delta table ``<PATH>/<table slug>`` (sink type ``delta_audit``).

The table has the route's columns, then ``change_type``, ``commit_version``, ``commit_timestamp`` (Delta reserves the
feed's own names), ``commit_date`` (the partition), ``source_table``, ``source_table_id``, ``route``, ``generation`` and
``batch``. The sink casts a row to the types of the table.

The table holds each change exactly once. An append carries ``txnAppId`` and ``txnVersion``. A replay appends the missing
rows only. It compares by (table id, version, change type, whole row) with multiplicity, over all micro-batches of a version.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from connectors.change import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SNAPSHOT,
    commit_times,
    counts,
)
from connectors.delta import replays
from connectors.delta.sink import DeltaSettings, DeltaSink
from connectors.delta.tables import schema as delta_schema
from connectors.delta.tables import table, transactions
from connectors.delta.tables.errors import classified
from connectors.delta.tables.session import parallel_writers
from connectors.delta.view import audited, of_history
from connectors.names import quote_identifier
from connectors.protocols import Auditable, Capabilities
from connectors.result import FrameResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, RouteSpec
    from connectors.delta.tables.snapshot import Snapshot
    from connectors.sink import Mode

OWN_COLUMNS: Final = (
    "change_type",
    COMMIT_VERSION,
    COMMIT_TIMESTAMP,
    "commit_date",
    "source_table",
    "source_table_id",
    "route",
    "generation",
    "batch",
)


class DeltaAuditSink(DeltaSink, Auditable):
    """A sink that keeps the append-only history of a source table."""

    Settings = DeltaSettings
    mode: ClassVar[Mode] = "append"
    what = "audit"
    capabilities = Capabilities(exact_counts=True)
    _forgot = False

    def replay_path(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/_replays/{route.table}/{route.name}"

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the table, or check that it belongs to the route and can hold its columns."""
        path = self.target(route)
        self.check_columns(schema, route, OWN_COLUMNS)
        if table.exists(path):
            self.check_table(path, OWN_COLUMNS)
            self.check_sole(path, route)
            delta_schema.evolve_schema(path, schema)
        else:
            columns = type(schema)([*schema.fields, *_own_schema().fields])
            # spark.databricks.delta.properties.defaults.enableChangeDataFeed may enable a feed, which nothing reads here.
            given = {"delta.enableChangeDataFeed": "false"}
            delta_schema.create(path, columns, partitioned_by="commit_date", **given)
        self.record_claim(route)
        return ()

    def changes(self, snapshot: Batch, schema: StructType, versions: tuple[int, int]) -> DataFrame:
        return audited(self.target(snapshot.route), snapshot, schema, versions)

    def complete(self, route: RouteSpec, restored_at: int) -> int | None:
        """Return the version up to which the table holds every commit.

        This is the version of a snapshot, which one append wrote, or the version before the commit of the newest row.
        Rows of a replayed range have no batch: the stream may not have reached them yet. Rows of an older epoch may come from
        another history of the source table.
        """
        from pyspark.sql import functions as F  # noqa: N812

        of_the_stream = (F.col("batch") > 0) | (F.col(CHANGE_TYPE) == SNAPSHOT)
        of_epoch = (F.col("source_table_id") == route.table_id) & (F.col("generation") >= route.first_generation)
        rows = table.at(self.target(route), restored_at)
        rows = rows.where((F.col("route") == route.name) & of_epoch & of_the_stream)
        newest = F.max_by(F.struct(COMMIT_VERSION, CHANGE_TYPE), F.struct("generation", COMMIT_VERSION))
        (row,) = rows.agg(newest).collect()[0]
        return None if row is None else row[COMMIT_VERSION] - (row[CHANGE_TYPE] != SNAPSHOT)

    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Append in one action; skip a redelivered batch by its number and a replayed row by its content."""
        from connectors.delta.tables import shape

        path = self.target(batch.route)
        newest = self.checked_snapshot(batch.route)
        transaction = transactions.of_batch(batch, path, newest)
        if transaction is None:
            return FrameResult(skipped=True)
        given = _audit_rows(frame, batch)
        held = table.schema_of(path)
        rows = shape.fit(given, held)
        shape.check_fit(rows.schema, held, path)
        if batch.may_exist:
            return self._append_missing(rows, given.schema, batch, newest, transaction)
        if not self._forgot:
            replays.forget(self.replay_path(batch.route))
            self._forgot = True
        # The rows of a snapshot share one commit_date. Those of a feed may have several, and then Spark's sort is cheaper.
        with parallel_writers(frame.sparkSession) if batch.is_bootstrap else nullcontext():
            return _append(rows, path, transaction)

    def _append_missing(
        self, rows: DataFrame, given: StructType, batch: Batch, newest: Snapshot, transaction: tuple[str, int]
    ) -> FrameResult:
        """Append the rows of a replay that the table lacks, and as many copies of identical rows as are missing.

        Args:
            rows: The rows of the micro-batch, in the types of the table.
            given: The schema of the rows before the cast.
            batch: The micro-batch.
            newest: The audit table.
            transaction: The ``txnAppId`` and the ``txnVersion`` of the append.

        """
        from pyspark.sql import functions as F  # noqa: N812

        path, folder = self.target(batch.route), self.replay_path(batch.route)
        held = table.at(path, newest.version).where(F.col("source_table_id") == batch.table_id)
        held = held.where(of_history(batch.route))
        hashed = _hashed(rows, given, held.schema, F.struct("*").alias("whole")).persist()
        try:
            total, first, last = hashed.agg(F.count("*"), F.min(COMMIT_VERSION), F.max(COMMIT_VERSION)).collect()[0]
            if not total:
                return _append(rows, path, transaction)
            near = held.where(F.col(COMMIT_VERSION).between(first, last))
            near = _hashed(near, given, held.schema, F.col("route"), F.col("generation"), F.col("batch"))
            before = hashed.limit(0)
            if batch.number:
                before = replays.given_before(folder, batch, first, near)
                replays.remember(hashed, folder, batch, last)
            missing = _missing(hashed, near, before)
            result = _append(missing, path, transaction, newest)
        finally:
            hashed.unpersist()
        return result if result.skipped else replace(result, stale=total - sum(result.applied.values()))


def _audit_rows(frame: DataFrame, batch: Batch) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(
        "row.*",
        CHANGE_TYPE,
        COMMIT_VERSION,
        COMMIT_TIMESTAMP,
        F.to_date(COMMIT_TIMESTAMP).alias("commit_date"),
        F.lit(batch.route.table).alias("source_table"),
        F.lit(batch.table_id).alias("source_table_id"),
        F.lit(batch.route.name).alias("route"),
        table.non_constant(batch.generation, CHANGE_TYPE).cast("long").alias("generation"),
        table.non_constant(batch.number, CHANGE_TYPE).cast("long").alias("batch"),
    )


def _append(rows: DataFrame, path: str, transaction: tuple[str, int], read: Snapshot | None = None) -> FrameResult:
    from pyspark.sql import Observation

    counted = Observation()
    try:
        if not transactions.append(rows.observe(counted, *counts()), path, *transaction, read):
            return FrameResult(skipped=True)
    except Exception as error:
        raise classified(error, path) from error
    seen = counted.get
    applied = {kind: seen[kind] for kind in CHANGE_TYPES if seen[kind]}
    if not applied:
        return FrameResult()
    return FrameResult(applied, versions=(seen["first"], seen["last"]), commit_times=commit_times(seen))


def _hashed(rows: DataFrame, given: StructType, held: StructType, *further: Column) -> DataFrame:
    """Return version, change type and hash of rows, of the audit table or of a replay.

    Two rows have the same hash if all given columns are equal. The order of a struct's fields and the width of a number do
    not count.

    Args:
        rows: The rows.
        given: The schema that the rows of the replay had before the cast.
        held: The schema of the audit table.
        further: Columns to add to the result.

    """
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.delta.tables import shape
    from connectors.rendering import content_of

    content = shape.without(given, OWN_COLUMNS)
    wanted = shape.compared(held, content)
    own = shape.without(rows.schema, OWN_COLUMNS)
    row = shape.shaped(F.struct(*(quote_identifier(name) for name in own.names)), own, wanted)
    return rows.select(COMMIT_VERSION, CHANGE_TYPE, F.sha2(content_of(row, wanted), 256).alias(replays.HASH), *further)


def _missing(hashed: DataFrame, held: DataFrame, before: DataFrame) -> DataFrame:
    """Return the rows in excess of the copies that the table holds.

    Rows that the replay received in earlier micro-batches use up copies of the table first.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    same = [COMMIT_VERSION, CHANGE_TYPE, replays.HASH]
    counted = held.select(*same, F.lit(1).alias("n")).unionByName(before.select(*same, F.lit(-1).alias("n")))
    left = counted.groupBy(*same).agg(F.sum("n").alias("left"))
    numbered = hashed.withColumn("copy", F.row_number().over(Window.partitionBy(*same).orderBy(F.lit(1))))
    both = numbered.join(left, same, "left")
    return both.where(F.col("copy") > F.coalesce("left", F.lit(0))).select("whole.*")


def _own_schema() -> StructType:
    from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

    types = {COMMIT_VERSION: LongType(), COMMIT_TIMESTAMP: TimestampType(), "commit_date": DateType()}
    types |= {"generation": LongType(), "batch": LongType()}
    return StructType([StructField(name, types.get(name, StringType())) for name in OWN_COLUMNS])
