"""Read a source table through Delta: identity, versions, schema, available history and change feed."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.errors.conditions import RESYNC
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.settings import parse_timestamp
from cdf_replicator.source.commit_log import COMMIT, CommitLog
from cdf_replicator.source.schema import CHANGE_FEED_PROPERTY, Metadata

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from cdf_replicator.route import Source

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_USE_RANGE_OR_OMIT: Final = "Use a version of that range, or omit it to start from the current snapshot."


class SourceTable:
    """A source table, read through one Spark session. Raises Delta's error if the table is absent.

    ``metadata`` is the table's metadata at the time the table was opened.
    """

    def __init__(self, spark: SparkSession, source: Source) -> None:
        self._spark = spark
        self.source = source
        self._jvm: Any = spark._jvm
        self.location = self._located()
        self.metadata = self.newest_metadata()
        self.log = CommitLog(spark, self.location)

    def _located(self) -> str:
        """Return the table's folder. For a path, this avoids DESCRIBE DETAIL, whose first plan takes three seconds."""
        if self.source.path:
            return str(DeltaTable.forPath(self._spark, self.source.path)._jdt.deltaLog().dataPath().toString())
        row = self._spark.sql(f"DESCRIBE DETAIL {self.source.identifier}").first()
        assert row is not None
        return str(row["location"])

    def has_moved(self) -> bool:
        """Return whether the catalog has another location for the table's name now."""
        return self.source.path is None and self._located() != self.location

    def schema(self) -> StructType:
        """Return the present schema."""
        return self._loaded(self._spark.read.format("delta")).schema

    def newest_metadata(self) -> Metadata:
        """Return the newest metadata. Unlike Spark's schema, it has the ids of column mapping."""
        snapshot = self._newest()
        return Metadata.parse(int(snapshot.version()), snapshot.metadata().json())

    def newest_of(self, table_id: str) -> Metadata:
        """Return the newest metadata; raises ``RouteHaltError`` if the table at this location now has a different id."""
        newest = self.newest_metadata()
        if newest.table_id != table_id:
            raise RouteHaltError(
                "table_replaced",
                f"Table {self.source.slug} ({self.source.location}) was recreated: it has a new table id and restarts at "
                "version 0. The sink may hold entries of rows that no longer exist.",
                RESYNC,
            )
        return newest

    def retention_seconds(self) -> float:
        """Return the table's retention of change files or of commits in seconds, whichever is shorter."""
        configs: Any = getattr(self._jvm, "org.apache.spark.sql.delta.DeltaConfigs")
        metadata = self._newest().metadata()
        kept = [configs.TOMBSTONE_RETENTION()]
        if configs.ENABLE_EXPIRED_LOG_CLEANUP().fromMetaData(metadata):
            kept.append(configs.LOG_RETENTION())
        return min(float(configs.getMilliSeconds(each.fromMetaData(metadata))) for each in kept) / 1000

    def _newest(self) -> Any:
        # Full class names avoid a search: for `jvm.org.apache...`, py4j searches every jar for a class at each dot.
        none = getattr(self._jvm, "scala.Option").empty()
        log = getattr(self._jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(
            self._spark._jsparkSession, self.location
        )
        snapshot = log.update(False, none, none)
        if snapshot.version() < 0:
            self._located()  # raises Delta's error for an absent table
        return snapshot

    def shortest_vacuum_retention(self, commits: int) -> float:
        """Return the shortest retention in seconds given to a VACUUM among the newest commits; infinity if none.

        Args:
            commits: Number of newest commits to search.
        """
        history = self._spark.sql(f"DESCRIBE HISTORY {self.source.identifier} LIMIT {commits}")
        checks = history.select(
            F.expr("try_cast(operationParameters['specifiedRetentionMillis'] AS BIGINT)").alias("retention")
        )
        shortest = checks.agg(F.min("retention")).first()
        return math.inf if shortest is None or shortest[0] is None else float(shortest[0]) / 1000

    def check_range(self, version: int, next_step: str = _USE_RANGE_OR_OMIT) -> None:
        """Check that the log has changes from ``version`` on; raises ``RouteHaltError`` with the range of the change feed.

        Streams must be able to start at V+1. The Delta setting for that accepts any future version silently
        (docs/design.md).
        """
        earliest, latest = self.log.available()
        if not earliest <= version <= latest:
            try:
                first = self.change_feed_enabled_since()
            except PySparkException:  # the range is only a part of the message
                first = earliest
            available = "the change feed is off"
            if first is not None:
                available = f"changes of versions {max(earliest, first)} to {latest} are available"
            raise RouteHaltError(
                "start_out_of_range",
                f"Version {version} of table {self.source.slug} ({self.source.location}) is out of range: {available}.",
                next_step,
            )

    def version_at(self, timestamp: str) -> int:
        """Resolve ``startingTimestamp`` as Delta does: the first available commit at or after it.

        A text without an offset is UTC. The time zones of session and process have no effect. Raises ``RouteHaltError`` if
        the time is later than the newest commit.
        """
        latest = self.log.available()[1]
        version = self._dated(F.col("timestamp") >= _literal(timestamp), F.min("version"))
        if version is None:
            raise RouteHaltError(
                "start_out_of_range",
                f"Starting timestamp {timestamp} of table {self.source.slug} is later than its newest commit "
                f"(version {latest}).",
                "Use an earlier time (UTC), or omit it to start from the current snapshot.",
            )
        return version

    def version_until(self, timestamp: str) -> int:
        """Resolve ``endingTimestamp`` as Delta does: the last commit at or before it; raises ``RouteHaltError`` if none."""
        earliest = self.log.available()[0]
        version = self._dated(F.col("timestamp") <= _literal(timestamp), F.max("version"))
        if version is None:
            raise RouteHaltError(
                "start_out_of_range",
                f"Timestamp {timestamp} of table {self.source.slug} is earlier than its oldest commit "
                f"(version {earliest}).",
                "Use a later time (UTC).",
            )
        return version

    def _dated(self, when: Column, choice: Column) -> int | None:
        """Return the choice among the available versions whose commit time meets a condition; None if there are none.

        Delta's history gives the in-commit timestamp if the table has it, else the time of the commit file.
        """
        history = self._spark.sql(f"DESCRIBE HISTORY {self.source.identifier}")
        found = history.where(when & F.col("version").between(*self.log.available())).agg(choice).first()
        return None if found is None or found[0] is None else int(found[0])

    def change_feed_enabled_since(self) -> int | None:
        """Return the version from which the change feed is on without a gap, by the available log; None if it is off.

        Each commit that changes the table's metadata contains all of its properties.
        """
        if not self.metadata.change_feed:
            return None
        earliest = self.log.available()[0]
        schema = "metaData struct<configuration map<string, string>>"
        commits = self._spark.read.schema(schema).json(f"{self.log.folder}/[0-9]*.json")
        name = F.col("_metadata.file_name")
        commits = (
            commits.where(F.col("metaData").isNotNull() & name.rlike(COMMIT.pattern))
            .select(F.substring(name, 1, 20).cast("long").alias("version"), "metaData.configuration")
            .orderBy(F.desc("version"))
        )
        since = None
        for row in commits.collect():
            if (row["configuration"] or {}).get(CHANGE_FEED_PROPERTY, "false").lower() != "true":
                return since
            since = int(row["version"])
        return earliest if since is None or self._feed_on_at(earliest) else since

    def _feed_on_at(self, version: int) -> bool:
        try:
            self.changes(version, version).isEmpty()
        except PySparkException as error:
            if "DELTA_MISSING_CHANGE_DATA" in str(error):
                return False
            raise
        return True

    def enable_feed(self) -> None:
        """Enable the change feed from the next commit on; raises Delta's errors."""
        self._spark.sql(f"ALTER TABLE {self.source.identifier} SET TBLPROPERTIES ({CHANGE_FEED_PROPERTY} = true)")
        self.metadata = self.newest_metadata()

    def snapshot(self, version: int) -> DataFrame:
        """Return the table's rows at a version of the log that was opened, also if its name has another location now."""
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return reader.load(self.source.path or self.location)

    def changes(self, starting_version: int, ending_version: int) -> DataFrame:
        """Return the change feed of a closed range of versions, for a replay with an end and for dry runs."""
        versions = {"startingVersion": starting_version, "endingVersion": ending_version}
        return self._loaded(self._spark.read.format("delta").options(readChangeFeed=True, **versions))

    def stream(self, starting_version: int | None, schema_log: str | None) -> DataFrame:
        """Return the change feed as a stream. Callers build it again at each restart (docs/design.md).

        Args:
            starting_version: First version to read; None leaves ``startingVersion`` unset.
            schema_log: Folder of Delta's schema tracking log; None without column mapping.
        """
        reader: DataStreamReader = self._spark.readStream.format("delta").option("readChangeFeed", "true")
        reader = reader.option("maxFilesPerTrigger", self.source.max_files_per_trigger)
        if self.source.max_bytes_per_trigger:
            reader = reader.option("maxBytesPerTrigger", self.source.max_bytes_per_trigger)
        if starting_version is not None:
            reader = reader.option("startingVersion", starting_version)
        if schema_log:
            reader = reader.option("schemaTrackingLocation", schema_log)
            # ``schema_evolution`` checks schema changes, with and without column mapping, so Delta's check is off.
            for change in ("Rename", "Drop", "TypeChange"):
                reader = reader.option(f"allowSourceColumn{change}", "always")
        return self._loaded(reader)

    def _loaded(self, reader: DataFrameReader | DataStreamReader) -> DataFrame:
        return reader.load(self.source.path) if self.source.path else reader.table(str(self.source.name))


def _literal(timestamp: str) -> Column:
    """Return a timestamp literal that does not depend on a time zone."""
    at = parse_timestamp(timestamp)
    if at is None:
        raise ValueError(f"{timestamp!r} is not a date or time")
    return F.timestamp_micros(F.lit((at - _EPOCH) // timedelta(microseconds=1)))
