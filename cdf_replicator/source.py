"""A source table as Delta shows it: identity, versions, schema, and what of its history is still there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.schema import CHANGE_FEED_PROPERTY, Metadata
from cdf_replicator.settings import moment
from cdf_replicator.verdict import HaltError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from cdf_replicator.route import Source

_COMMIT: Final = re.compile(r"^(\d{20})\.json$")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_METADATA: Final = r'(?md)^\{"metaData":.*$'
_CHECKPOINT: Final = re.compile(r"^(\d{20})\.checkpoint\.")


@dataclass(frozen=True, slots=True)
class Detail:
    """``DESCRIBE DETAIL`` of a table, what of it we use."""

    table_id: str
    location: str
    properties: dict[str, str]

    @property
    def change_feed(self) -> bool:
        return self.properties.get(CHANGE_FEED_PROPERTY, "false").lower() == "true"

    @property
    def column_mapping(self) -> bool:
        return self.properties.get("delta.columnMapping.mode", "none") != "none"


class SourceTable:
    """One source table, asked through one Spark session. Raises what Spark raises when the table is absent."""

    def __init__(self, spark: SparkSession, source: Source) -> None:
        self._spark = spark
        self.source = source
        self.detail = self._describe()
        jvm: Any = spark._jvm
        self._log = jvm.org.apache.hadoop.fs.Path(self.detail.location, "_delta_log")
        self._files = self._log.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._latest = self.available()[1]
        self._next = self._commit_file(self._latest + 1)

    @property
    def sql_name(self) -> str:
        """What the table is called in a SQL statement."""
        return f"delta.`{self.source.path.replace('`', '``')}`" if self.source.path else str(self.source.name)

    @property
    def is_local(self) -> bool:
        """Whether it lies in this machine's own file system."""
        return bool(self._files.getUri().getScheme() == "file")

    def _describe(self) -> Detail:
        row = self._spark.sql(f"DESCRIBE DETAIL {self.sql_name}").first()
        assert row is not None
        return Detail(row["id"], row["location"], dict(row["properties"]))

    def schema(self) -> StructType:
        """Return today's schema."""
        reader = self._spark.read.format("delta")
        frame = reader.load(self.source.path) if self.source.path else reader.table(str(self.source.name))
        return frame.schema

    def metadata(self) -> Metadata:
        """Return the newest metadata, with what Spark's schema lacks: the ids of column mapping."""
        jvm: Any = self._spark._jvm
        none = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.detail.location)
        snapshot = log.update(False, none, none)
        return Metadata.parse(int(snapshot.version()), snapshot.metadata().json())

    def metadata_at(self, version: int) -> Metadata | None:
        """Return the metadata that a commit sets; None if it sets none, or its file is gone."""
        path = self._commit_file(version)
        if not self._files.exists(path):
            return None
        jvm: Any = self._spark._jvm
        scanner = jvm.java.util.Scanner(self._files.open(path), "UTF-8")
        try:
            action = scanner.findWithinHorizon(_METADATA, 0)
        finally:
            scanner.close()
        return None if action is None else Metadata.parse(version, action)

    def available(self) -> tuple[int, int]:
        """Return (earliest, latest) commit version from which changes can be read.

        Earliest: version 0, or the oldest checkpoint from which every later commit file is still there (a start needs
        the table's state at that version: facts of ``startingVersion``).
        """
        names = [status.getPath().getName() for status in self._files.listStatus(self._log)]
        commits = {int(m.group(1)) for name in names if (m := _COMMIT.match(name))}
        checkpoints = {int(m.group(1)) for name in names if (m := _CHECKPOINT.match(name))}
        latest = max(commits, default=-1)
        first = latest
        while first - 1 in commits:
            first -= 1
        if first == 0:
            return 0, latest
        starts = [version if version in commits else version + 1 for version in checkpoints if version + 1 >= first]
        return min(starts, default=latest), latest

    def latest_version(self) -> int:
        """Return the newest commit version, by looking only for files newer than the last one seen."""
        while self._files.exists(self._next):
            self._latest += 1
            self._next = self._commit_file(self._latest + 1)
        return self._latest

    def committed_at(self, version: int) -> float | None:
        """Return when a version was committed, in epoch seconds, by its file; None when the file is gone."""
        path = self._commit_file(version)
        if not self._files.exists(path):
            return None
        return float(self._files.getFileStatus(path).getModificationTime()) / 1000

    def check_range(self, version: int) -> None:
        """See that changes can be read from ``version`` on; raises ``HaltError`` naming the range that can.

        Needed because Delta accepts any future version silently once a stream may start at V+1 (design rule 5).
        """
        earliest, latest = self.available()
        if not earliest <= version <= latest:
            raise HaltError(
                "start_out_of_range",
                f"Starting version {version} of table {self.source.slug} ({self.source.location}) is out of range: "
                f"versions {earliest} to {latest} are available.",
                "Ask for one of those, or leave it out to start from the current snapshot.",
            )

    def version_at(self, timestamp: str) -> int:
        """Resolve ``startingTimestamp`` as Delta does: the first commit at or after it, the earliest if older.

        UTC unless the text has an offset, whatever the time zones of session and process. Raises ``HaltError`` when it
        is later than the newest commit.
        """
        latest = self.available()[1]
        found = self._dated(F.col("timestamp") >= _literal(timestamp)).agg(F.min("version")).first()
        if found is None or found[0] is None:
            raise HaltError(
                "start_out_of_range",
                f"Starting timestamp {timestamp} of table {self.source.slug} is later than its newest commit "
                f"(version {latest}).",
                "Ask for an earlier time (UTC), or leave it out to start from the current snapshot.",
            )
        return int(found[0])

    def version_until(self, timestamp: str) -> int:
        """Resolve ``endingTimestamp`` as Delta does: the last commit at or before it; raises ``HaltError`` if none is."""
        earliest = self.available()[0]
        found = self._dated(F.col("timestamp") <= _literal(timestamp)).agg(F.max("version")).first()
        if found is None or found[0] is None:
            raise HaltError(
                "start_out_of_range",
                f"Timestamp {timestamp} of table {self.source.slug} is earlier than its oldest commit "
                f"(version {earliest}).",
                "Ask for a later time (UTC).",
            )
        return int(found[0])

    def _dated(self, when: Column) -> DataFrame:
        """Versions of the available range, by their commit's time: the in-commit timestamp where the table has it."""
        history = self._spark.sql(f"DESCRIBE HISTORY {self.sql_name}")
        return history.where(when & F.col("version").between(*self.available())).select("version")

    def feed_since(self) -> int | None:
        """Return the version from which the change feed is on without a gap, as far as the log tells; None if it is off.

        Every commit that changes the table's metadata holds all of its properties.
        """
        if not self.detail.change_feed:
            return None
        earliest = self.available()[0]
        schema = "metaData struct<configuration map<string, string>>"
        commits = self._spark.read.schema(schema).json(f"{self._log.toString()}/[0-9]*.json")
        name = F.col("_metadata.file_name")
        told = (
            commits.where(F.col("metaData").isNotNull() & name.rlike(_COMMIT.pattern))
            .select(F.substring(name, 1, 20).cast("long").alias("version"), "metaData.configuration")
            .orderBy(F.desc("version"))
        )
        since = None
        for row in told.collect():
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
        """Turn the change feed on, from the next commit on; raises what Delta raises."""
        self._spark.sql(f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ({CHANGE_FEED_PROPERTY} = true)")
        self.detail = self._describe()

    def snapshot(self, version: int) -> DataFrame:
        """Return the table as it was at a version."""
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return reader.load(self.source.path) if self.source.path else reader.table(str(self.source.name))

    def changes(self, starting_version: int, ending_version: int) -> DataFrame:
        """Return the change feed of a closed range of versions, for a replay with an end and for dry runs."""
        reader = (
            self._spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", starting_version)
            .option("endingVersion", ending_version)
        )
        return reader.load(self.source.path) if self.source.path else reader.table(str(self.source.name))

    def stream(self, starting_version: int | None, schema_log: str | None) -> DataFrame:
        """Return the change feed from a version on. To be built anew at each (re)start (design rule 8)."""
        reader: DataStreamReader = self._spark.readStream.format("delta").option("readChangeFeed", "true")
        reader = reader.option("maxFilesPerTrigger", self.source.max_files_per_trigger)
        if self.source.max_bytes_per_trigger:
            reader = reader.option("maxBytesPerTrigger", self.source.max_bytes_per_trigger)
        if starting_version is not None:
            reader = reader.option("startingVersion", starting_version)
        if schema_log:
            reader = reader.option("schemaTrackingLocation", schema_log)
            # What changed is judged by us (``evolution``), in the same way with column mapping and without.
            for change in ("Rename", "Drop", "TypeChange"):
                reader = reader.option(f"allowSourceColumn{change}", "always")
        return reader.load(self.source.path) if self.source.path else reader.table(str(self.source.name))

    def _commit_file(self, version: int) -> Any:
        return self._new_path(self._log, f"{version:020d}.json")


def _literal(timestamp: str) -> Column:
    """A moment as a literal that no time zone can shift."""
    at = moment(timestamp)
    if at is None:
        raise ValueError(f"{timestamp!r} is no date or time")
    return F.timestamp_micros(F.lit((at - _EPOCH) // timedelta(microseconds=1)))
