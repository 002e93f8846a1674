"""``delta_audit``: every change of a source table, appended to a Delta table at ``<PATH>/<table slug>``.

Columns: those of the route, then ``change_type``, ``commit_version``, ``commit_timestamp`` (the feed's own names are
reserved in Delta), ``commit_date`` (the partition), ``source_table``, ``source_table_id``, ``route``, ``generation``,
``batch``. Exactly once: an append carries ``txnAppId`` and ``txnVersion``, and a replay appends what is missing,
compared by (table id, version, change type, whole row) with multiplicity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field

from connectors.change import CHANGE_TYPES, COMMIT_TIMESTAMP, COMMIT_VERSION, Claim
from connectors.errors import PermanentError, RetryableError
from connectors.result import FrameResult
from connectors.sink import FrameSink, Mode, SinkSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.change import Batch, RouteSpec

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
_CLAIM: Final = "cdf_replicator.claim"


class DeltaAuditSettings(SinkSettings):
    """``path``: the folder that holds one audit table per source table."""

    path: str = Field(min_length=1, description="Folder; each source table gets the Delta table <PATH>/<table slug>.")


class DeltaAuditSink(FrameSink):
    """Append-only history of a source table."""

    Settings = DeltaAuditSettings
    mode: ClassVar[Mode] = "append"
    settings: DeltaAuditSettings

    @property
    def endpoint(self) -> str:
        return self.settings.path

    def target(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/{route.table}"

    def check(self) -> None:
        """See that the folder can be written, where that can be seen without writing: a path Spark knows."""
        spark = _spark()
        jvm: Any = spark._jvm
        try:
            folder = jvm.org.apache.hadoop.fs.Path(self.settings.path)
            folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).exists(folder)
        except Exception as error:
            raise PermanentError(
                f"the audit path {self.settings.path} can't be reached: {_line(error)}.",
                "Correct the sink's PATH, or add the file system's jars and credentials by CDF_SPARK__CONF.",
            ) from error

    def claim(self, route: RouteSpec) -> Claim | None:
        """Read the table property that ``prepare`` set."""
        from delta.tables import DeltaTable

        spark, path = _spark(), self.target(route)
        if not DeltaTable.isDeltaTable(spark, path):
            return None
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
        assert detail is not None
        text = detail["properties"].get(f"{_CLAIM}.{route.name}")
        if text is None:
            return None
        owner, epoch = text.split(":")
        return Claim(owner, int(epoch))

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the table, or see that it is one of ours; its schema then grows with the appends."""
        from delta.tables import DeltaTable

        spark, path = _spark(), self.target(route)
        if clashing := sorted({name.lower() for name in schema.fieldNames()} & set(OWN_COLUMNS)):
            raise PermanentError(
                f"column {', '.join(clashing)} of route {route.name} has the name of an audit column.",
                f"Rename it: CDF_ROUTES__{route.name.upper()}__RENAME={clashing[0]}=source_{clashing[0]}",
            )
        if not DeltaTable.isDeltaTable(spark, path):
            columns = [*schema.fields, *_own_schema().fields]
            table = DeltaTable.createIfNotExists(spark).location(path).partitionedBy("commit_date")
            # A session default may switch the feed on for every new table: the audit table has no use for one.
            table.property("delta.enableChangeDataFeed", "false").addColumns(type(schema)(columns)).execute()
        elif missing := sorted(set(OWN_COLUMNS) - set(spark.read.format("delta").load(path).columns)):
            raise PermanentError(
                f"the Delta table {path} is no audit table: it lacks {', '.join(missing)}.",
                "Name another PATH for the sink, or move that table away.",
            )
        else:
            _widen(spark, path, schema)
        claim = Claim(route.owner, route.epoch)
        if self.claim(route) != claim:
            value = f"{claim.owner}:{claim.epoch}"
            spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{_CLAIM}.{route.name}' = '{value}')")
        return ()

    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Append in one action; a redelivered batch is dropped by Delta, a replayed row by its content."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        rows, path = _audit_rows(frame, batch), self.target(batch.route)
        # A generation's number is in the version, so that a leftover writer of an older one loses. Generations are
        # counted by the state path, the owner: another one that takes the target over begins again.
        txn_app = f"cdf-replicator:{batch.route.owner}:{batch.route.name}:{path}"
        stale = 0
        if batch.replay:
            total = rows.count()
            rows = _missing(rows, frame.sparkSession.read.format("delta").load(path))
        elif _recorded(frame.sparkSession, path, txn_app) >= batch.txn_version:
            return FrameResult(skipped=True)
        counted = Observation()
        counts = [F.count_if(F.col("change_type") == kind).alias(kind) for kind in CHANGE_TYPES]
        writer = rows.observe(counted, *counts).write.format("delta").mode("append").option("mergeSchema", "true")
        if not batch.replay:
            writer = writer.option("txnAppId", txn_app).option("txnVersion", batch.txn_version)
        try:
            writer.save(path)
        except Exception as error:
            raise _classified(error, path) from error
        applied = dict(counted.get)
        if batch.replay:
            stale = total - sum(applied.values())
        return FrameResult(applied, stale)


def _widen(spark: SparkSession, path: str, schema: StructType) -> None:
    """Make room for a column that was widened in the source; an append by itself widens some types only."""
    from connectors.widening import widened

    columns = list(widened(spark.read.format("delta").load(path).schema, schema))
    if columns:
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for column, data_type in columns:
        spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN {column} TYPE {data_type.simpleString()}")


def _audit_rows(frame: DataFrame, batch: Batch) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(
        "row.*",
        "change_type",
        COMMIT_VERSION,
        COMMIT_TIMESTAMP,
        F.to_date(COMMIT_TIMESTAMP).alias("commit_date"),
        F.lit(batch.route.table).alias("source_table"),
        F.lit(batch.table_id).alias("source_table_id"),
        F.lit(batch.route.name).alias("route"),
        F.lit(batch.generation).cast("long").alias("generation"),
        F.lit(batch.number).cast("long").alias("batch"),
    )


def _recorded(spark: SparkSession, path: str, txn_app: str) -> int:
    """The last ``txnVersion`` the table holds for an application; -1 if none.

    Delta drops such an append by itself, but silently, and then nobody could count its rows.
    """
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    version = log.update(False, none, none).transactions().get(txn_app)
    return int(version.get()) if version.isDefined() else -1


def _missing(rows: DataFrame, kept: DataFrame) -> DataFrame:
    """Rows the table lacks; of identical twins in one version as many as are missing."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.render import JSON_OPTIONS

    identity = ["source_table_id", COMMIT_VERSION, "change_type"]
    content = sorted(set(rows.columns) - set(OWN_COLUMNS))

    def numbered(frame: DataFrame) -> DataFrame:
        # Null fields are left out of the text, so that a column added later does not change an older row's hash.
        present = [F.col("`" + name.replace("`", "``") + "`") for name in content if name in frame.columns]
        text = F.to_json(F.struct(*present), {**JSON_OPTIONS, "ignoreNullFields": "true"}) if present else F.lit("")
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


def _classified(error: Exception, path: str) -> Exception:
    text = str(error)
    if "DELTA_CONCURRENT" in text or "DELTA_METADATA_CHANGED" in text:
        return RetryableError("conflict", _line(error))
    if "DELTA_FAILED_TO_MERGE_FIELDS" in text or "DELTA_MERGE_INCOMPATIBLE" in text:
        return PermanentError(
            f"the audit table {path} can't take the changed type of a column: {_line(error)}.",
            "Move the audit table away or give the sink another PATH, then resync the route.",
        )
    return error


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]
