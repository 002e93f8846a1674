"""Create the Delta table of dead letters at the first use, and rebuild it from its data files if its log is damaged.

A power cut or a disk error may leave a torn file. The service then moves the table aside and creates it again from
every readable row in the data files of all copies. Each change of a dead letter sets ``created_at`` or ``closed_at``. The
row of an id with the later time is therefore the newer row, whatever the lost log contained.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import commit_files
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.spark.session import clear_delta_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from cdf_replicator.state.storage_path import StoragePath

log = structlog.get_logger(__name__)

TABLE_SCHEMA: Final = """
    id string, route string, table string, sink string, key string, guard long, change_type string,
    commit_version long, row string, code string, reason string, generation long, batch long,
    state string, created_at timestamp, closed_at timestamp
"""
_DAMAGE: Final = ("read_failed", "history_lost", "table_missing")
"""Reasons of ``conditions`` for an unreadable table. In this module it is the dead-letter table, not a source table."""

MOST_FILES: Final = 100
"""Most data files of a route before its dead letters are compacted; each append adds a file."""
VACUUM_SECONDS: Final = 86_400.0
_VACUUM: Final = {
    # The number of tasks for each folder that it lists; Spark's default of 10,000 would take most of its time.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Otherwise the driver deletes one file after the other.
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}

Result = TypeVar("Result")


class DeadLetterTable:
    """The table, partitioned by route, so that the writes of routes never conflict.

    A lock serializes creation and recovery.
    """

    def __init__(self, spark: SparkSession, path: StoragePath) -> None:
        self._spark = spark
        self._path = path
        self._lock = threading.Lock()
        self._checked = False
        self._vacuumed_at = 0.0
        self.files = Counter[str]()
        """Number of data files by route, from the last read of all dead letters of the route on."""

    def frame(self) -> DataFrame:
        """Return every row; an empty frame if the table does not exist yet."""
        if not self._exists():
            return self._spark.createDataFrame([], TABLE_SCHEMA)
        return self._spark.read.format("delta").load(str(self._path))

    def delta(self) -> DeltaTable:
        """Return the table for an update or a merge."""
        return DeltaTable.forPath(self._spark, str(self._path))

    def append(self, rows: DataFrame, route: str) -> None:
        """Append rows of a route in a commit, and sync it to the disk, since Spark's checkpoint advances afterwards."""
        if not self._exists():
            with self._lock:
                self._create()
        began = time.time()
        _append(rows, self._path)
        self.sync(route, began)
        self.files[route] += 1

    def compact(self, route: str) -> None:
        """Compact the data files of a route if they are many, and once a day remove files that a week has not needed.

        The thread that writes the dead letters of the route calls it, so that none of its writes conflicts with it. A failure is a
        warning, since the dead letters are written; as many further appends repeat it.
        """
        if self.files[route] <= MOST_FILES:
            return
        self.files[route] = 1
        try:
            self._compact(route)
        except Exception as error:  # noqa: BLE001 - failed maintenance must not halt the route
            why = (str(error).splitlines() or [""])[0][:500]
            log.warning("dead letters were not compacted, a later append tries again", route=route, error=why)

    def _compact(self, route: str) -> None:
        began = time.time()
        self.delta().optimize().where(f"route = '{route}'").executeCompaction()
        self.sync(route, began)
        if began - self._vacuumed_at > VACUUM_SECONDS:
            self._vacuumed_at = began
            spark = self._spark.newSession()
            for name, value in _VACUUM.items():
                spark.conf.set(name, value)
            DeltaTable.forPath(spark, str(self._path)).vacuum()

    def sync(self, route: str, began: float) -> None:
        for folder in (f"route={route}", "_delta_log"):
            (self._path / folder).sync(since=began - 1)  # a file system may store times in whole seconds

    def may_hold(self, route: str) -> bool:
        """Return whether the table may hold a dead letter of the route, by the names of folders alone."""
        return (self._path / f"route={route}").exists() or bool(self._copies())

    def recovering(self, work: Callable[[], Result]) -> Result:
        """Run ``work``; if the table is damaged, recover it and run ``work`` again.

        Raises ``RouteHaltError`` if the table is damaged after the recovery.
        """
        if not self._checked:
            self._recover()
        try:
            return work()
        except Exception as error:
            if classify_error(error, route="").reason not in _DAMAGE:
                raise
            self._recover(error)
        return self.naming(work)

    def naming(self, work: Callable[[], Result]) -> Result:
        """Run ``work``; if the table is damaged, raise a ``RouteHaltError`` that names it and not the source table."""
        if not self._is_whole():
            raise self._damaged("a commit of its log is torn.")
        try:
            return work()
        except Exception as error:
            decision = classify_error(error, route="")
            if decision.reason not in _DAMAGE:
                raise
            raise self._damaged(decision.message) from error

    def _damaged(self, what: str) -> RouteHaltError:
        return RouteHaltError(
            "dead_letters_damaged",
            f"The dead-letter table {self._path} is damaged: {what}",
            "The service recovers it at its next start. If that fails, move the folder away, start the service, and resync "
            "the routes that had dead letters.",
        )

    def _recover(self, error: Exception | None = None) -> None:
        """Rebuild a damaged table; raises ``error`` if the table is intact, since another table caused it then."""
        with self._lock:
            if self._is_whole() and (error is None or self._is_readable()):
                self._checked = True
                if error is not None:
                    raise error
                return
            self._checked = False  # from now on the threads of other routes wait for the lock
            if self._path.exists():
                self._path.move_to(f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
            clear_delta_cache(self._spark)
            copies = self._copies()
            rows = self._rows_of(copies).localCheckpoint()
            self._create()
            _append(_newest(rows.drop("file")), self._path)
            self._checked = True
        _warn(self._path, copies, rows)

    def _exists(self) -> bool:
        return bool(DeltaTable.isDeltaTable(self._spark, str(self._path)))

    def _create(self) -> None:
        if self._exists():
            return
        schema = self._spark.createDataFrame([], TABLE_SCHEMA).schema
        builder = DeltaTable.createIfNotExists(self._spark).location(str(self._path)).addColumns(schema)
        builder.partitionedBy("route").execute()

    def _is_whole(self) -> bool:
        """Return whether no commit file that Delta reads is torn.

        If the table is absent and a copy exists, a recovery was interrupted, and the table is not whole.
        """
        log = self._path / "_delta_log"
        commits = list(log.glob("[0-9]*.json"))
        if not commits:
            return not self._path.exists() and not self._copies()
        # Only local files are checked: an object store never holds a part of a file.
        return not self._path.is_local or commit_files.are_whole(log, commits)

    def _is_readable(self) -> bool:
        clear_delta_cache(self._spark)
        try:
            self.frame().agg(F.max(F.xxhash64("*"))).collect()
        except Exception as error:
            if classify_error(error, route="").reason not in _DAMAGE:
                raise
            return False
        return True

    def _copies(self) -> Sequence[StoragePath]:
        return sorted(self._path.parent.glob(f"{self._path.name}.damaged-*"), key=str)

    def _rows_of(self, copies: Iterable[StoragePath]) -> DataFrame:
        """Return every row of every readable data file, with the name of its ``file``."""
        reader = self._spark.read.schema(TABLE_SCHEMA).option("ignoreCorruptFiles", "true")
        rows = reduce(DataFrame.unionByName, [reader.parquet(str(copy)) for copy in copies])
        return rows.withColumn("file", F.regexp_extract(F.input_file_name(), "[^/]+$", 0))


def _newest(rows: DataFrame) -> DataFrame:
    newest_first = Window.partitionBy("id").orderBy(F.greatest("created_at", "closed_at").desc())
    return rows.withColumn("rank", F.row_number().over(newest_first)).where("rank = 1").drop("rank")


def _append(rows: DataFrame, path: StoragePath) -> None:
    rows.write.format("delta").mode("append").save(str(path))


def _warn(path: StoragePath, copies: Iterable[StoragePath], rows: DataFrame) -> None:
    read = {row["file"] for row in rows.select("file").distinct().collect()}
    folders = [folder for copy in copies for folder in copy.glob("route=*")]
    lost = [
        folder.name.partition("=")[2]
        for folder in folders
        for file in folder.glob("*.parquet")
        if file.name not in read
    ]
    log.warning(
        "the dead-letter table was damaged: moved aside and rebuilt from its data files",
        table=str(path),
        copies=[copy.name for copy in copies],
        rows=rows.count(),
        next_step=_found_again(lost) if lost else None,
    )


def _found_again(lost: Sequence[str]) -> str:
    commands = ", ".join(f"cdf-replicator resync {route}" for route in sorted(set(lost)))
    return f"{len(lost)} data files can't be read. To record their rejected rows again, run: {commands}"
