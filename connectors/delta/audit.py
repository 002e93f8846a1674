"""``delta_audit``: every change of a source table, appended to a Delta table at ``<PATH>/<table slug>``.

Columns: those of the route, then ``change_type``, ``commit_version``, ``commit_timestamp`` (the feed's own names are
reserved in Delta), ``commit_date`` (the partition), ``source_table``, ``source_table_id``, ``route``, ``generation``,
``batch``. Exactly once: an append carries ``txnAppId`` and ``txnVersion``, and a replay appends what is missing,
compared by (table id, version, change type, whole row) with multiplicity.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar, Final

from connectors.change import CHANGE_TYPE, CHANGE_TYPES, COMMIT_TIMESTAMP, COMMIT_VERSION
from connectors.delta import table
from connectors.delta.errors import classified
from connectors.delta.sink import DeltaSettings, DeltaSink
from connectors.result import FrameResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, RouteSpec
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


class DeltaAuditSink(DeltaSink):
    """Append-only history of a source table."""

    Settings = DeltaSettings
    mode: ClassVar[Mode] = "append"
    what = "audit"
    tells_received = True

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the table, or see that it is one of ours and takes the columns."""
        path = self.target(route)
        self.check_columns(schema, route, OWN_COLUMNS)
        if table.exists(path):
            self.check_table(path, OWN_COLUMNS)
            table.grow(path, schema)
        else:
            columns = type(schema)([*schema.fields, *_own_schema().fields])
            # A session default may switch the feed on for every new table: the audit table has no use for one.
            given = {"delta.enableChangeDataFeed": "false"}
            table.create(path, columns, partitioned_by="commit_date", **given)
        self.record_claim(route)
        return ()

    def complete(self, route: RouteSpec) -> int | None:
        """All commits before that of its newest row are in it."""
        from pyspark.sql import functions as F  # noqa: N812

        rows = table.session().read.format("delta").load(self.target(route)).where(F.col("route") == route.name)
        told = rows.agg(F.max_by(COMMIT_VERSION, F.struct("generation", COMMIT_VERSION))).first()
        return None if told is None or told[0] is None else int(told[0]) - 1

    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Append in one action; a redelivered batch is dropped by Delta, a replayed row by its content."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        rows, path = _audit_rows(frame, batch), self.target(batch.route)
        app = table.application(batch.route, path, batch.request)
        self.check_kept(batch.route)
        stale = 0
        outside = batch.replay and not batch.number  # of the generation's sequence
        if not outside and table.recorded(path, app) >= batch.txn_version:
            return FrameResult(skipped=True)
        if batch.replay:
            total = rows.count()
            rows = _missing(rows, frame.sparkSession.read.format("delta").load(path))
        counted = Observation()
        counts = [F.count_if(F.col("change_type") == kind).alias(kind) for kind in CHANGE_TYPES]
        ends = [F.min(COMMIT_VERSION).alias("first"), F.max(COMMIT_VERSION).alias("last")]
        writer = (
            rows.observe(counted, *counts, *ends).write.format("delta").mode("append").option("mergeSchema", "true")
        )
        if outside:
            app = f"{app}:outside"
        number = table.recorded(path, app) + 1 if outside else batch.txn_version
        writer = writer.option("txnAppId", app).option("txnVersion", number)
        try:
            # A snapshot's rows are all of one day. A feed's may be of several, and the sort is then the cheaper way.
            with table.unsorted(frame.sparkSession) if batch.is_bootstrap else nullcontext():
                writer.save(path)
        except Exception as error:
            raise classified(error, path) from error
        seen = counted.get
        applied = {kind: seen[kind] for kind in CHANGE_TYPES if seen[kind]}
        if batch.replay:
            stale = total - sum(applied.values())
        return FrameResult(applied, stale, versions=(seen["first"], seen["last"]) if applied else None)


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
        table.varying(batch.generation, CHANGE_TYPE).cast("long").alias("generation"),
        table.varying(batch.number, CHANGE_TYPE).cast("long").alias("batch"),
    )


def _missing(rows: DataFrame, kept: DataFrame) -> DataFrame:
    """Rows the table lacks; of identical twins in one version as many as are missing."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    from connectors.render import content_of

    identity = ["source_table_id", COMMIT_VERSION, "change_type"]
    content = sorted(set(rows.columns) - set(OWN_COLUMNS))

    def numbered(frame: DataFrame) -> DataFrame:
        present = StructType([frame.schema[name] for name in content if name in frame.columns])
        text = content_of(present) if present.fields else F.lit("")
        told = frame.select(*identity, F.sha2(text, 256).alias("hash"), F.struct("*").alias("whole"))
        window = Window.partitionBy(*identity, "hash").orderBy(F.lit(1))
        return told.withColumn("copy", F.row_number().over(window))

    versions = rows.agg(F.min(COMMIT_VERSION), F.max(COMMIT_VERSION)).first()
    if versions is None or versions[0] is None:
        return rows
    near = kept.where(F.col(COMMIT_VERSION).between(*versions))
    on = [*identity, "hash", "copy"]
    return numbered(rows).join(numbered(near).select(*on), on, "left_anti").select("whole.*")


def _own_schema() -> StructType:
    from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

    types = {COMMIT_VERSION: LongType(), COMMIT_TIMESTAMP: TimestampType(), "commit_date": DateType()}
    types |= {"generation": LongType(), "batch": LongType()}
    return StructType([StructField(name, types.get(name, StringType())) for name in OWN_COLUMNS])
