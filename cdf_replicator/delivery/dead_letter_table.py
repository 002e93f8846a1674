"""The Delta table of dead letters: created when first needed, and read back from its files where its log is damaged.

A power cut or a disk may leave a torn file there. The table is then moved aside, and made again of every row that can be
read in the data files of all copies: a letter never changes but from open to closed, so the closed row of an id is the
newer one, whatever the lost log said.
"""

from __future__ import annotations

import os
import threading
import time
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.errors.classifier import judge
from cdf_replicator.errors.exceptions import HaltError
from cdf_replicator.spark.session import forget_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from cdf_replicator.spark.hadoop_path import RemotePath

log = structlog.get_logger(__name__)

TABLE_SCHEMA: Final = """
    id string, route string, table string, sink string, key string, guard long, change_type string,
    commit_version long, row string, code string, reason string, generation long, batch long,
    state string, created_at timestamp, closed_at timestamp
"""
_DAMAGE: Final = ("read_failed", "history_lost", "table_missing")
"""Reasons by which the conditions know a table that can't be read; here they are of this table, not of a source."""

Result = TypeVar("Result")


class DeadLetterTable:
    """Partitioned by route, so that no route's write meets another's or waits for it; the lock is for creation and recovery."""

    def __init__(self, spark: SparkSession, path: Path | RemotePath) -> None:
        self._spark = spark
        self._path = path
        self._lock = threading.Lock()
        self._checked = False

    def frame(self) -> DataFrame:
        """Return every row; none where there is no table yet."""
        if not self._exists():
            return self._spark.createDataFrame([], TABLE_SCHEMA)
        return self._spark.read.format("delta").load(str(self._path))

    def delta(self) -> DeltaTable:
        """Return the table for a change of rows that are there."""
        return DeltaTable.forPath(self._spark, str(self._path))

    def append(self, rows: DataFrame, route: str) -> None:
        """Add rows of a route in one commit that is on the disk before this returns: the checkpoint moves after it."""
        if not self._exists():
            with self._lock:
                self._create()
        began = time.time() - 1  # a file system may count in whole seconds
        _append(rows, self._path)
        if isinstance(self._path, Path):
            _sync((self._path / f"route={route}", self._path / "_delta_log"), began)

    def may_hold(self, route: str) -> bool:
        """Whether a letter of the route may be there, by the names of folders alone."""
        return (self._path / f"route={route}").exists() or bool(self._copies())

    def recovering(self, work: Callable[[], Result]) -> Result:
        """Do the work; where the table is damaged, recover it and do the work once more. Raises ``HaltError`` after that."""
        if not self._checked:
            self._recover()
        try:
            return work()
        except Exception as error:
            if judge(error, route="").reason not in _DAMAGE:
                raise
            self._recover(error)
        return self.naming(work)

    def naming(self, work: Callable[[], Result]) -> Result:
        """Do the work; raises ``HaltError`` that names this table where it is damaged: the conditions would name the source."""
        if not self._is_whole():
            raise self._damaged("a commit of its log is torn.")
        try:
            return work()
        except Exception as error:
            verdict = judge(error, route="")
            if verdict.reason not in _DAMAGE:
                raise
            raise self._damaged(verdict.what) from error

    def _damaged(self, what: str) -> HaltError:
        return HaltError(
            "dead_letters_damaged",
            f"The dead-letter table {self._path} is damaged: {what}",
            "The service recovers it when it next starts. If that fails, move the folder away, start the service, and resync "
            "the routes that had dead letters.",
        )

    def _recover(self, error: Exception | None = None) -> None:
        """Make a damaged table again; raises ``error`` where it is whole and readable, so that the error is of another one."""
        with self._lock:
            if self._is_whole() and (error is None or self._is_readable()):
                self._checked = True
                if error is not None:
                    raise error
                return
            self._checked = False  # others wait here from now on
            if self._path.exists():
                aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
                self._path.rename(aside)  # type: ignore[arg-type]  # both are local, or both remote
            forget_tables(self._spark)
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
        """Whether each commit ends as Delta ends it. Delta reads an empty one as a commit of nothing.

        A table that is gone while a copy of it lies aside is one whose recovery was broken off.
        """
        commits = list((self._path / "_delta_log").glob("[0-9]*.json"))
        if not commits:
            return not self._path.exists() and not self._copies()
        return all(_last_byte(file) == b"\n" for file in commits if isinstance(file, Path))  # a store tears none

    def _is_readable(self) -> bool:
        forget_tables(self._spark)
        try:
            self.frame().agg(F.max(F.xxhash64("*"))).collect()
        except Exception as error:
            if judge(error, route="").reason not in _DAMAGE:
                raise
            return False
        return True

    def _copies(self) -> Sequence[Path | RemotePath]:
        return sorted(self._path.parent.glob(f"{self._path.name}.damaged-*"), key=str)

    def _rows_of(self, copies: Iterable[Path | RemotePath]) -> DataFrame:
        """Return every row of every data file that can be read, with the name of its ``file``."""
        reader = self._spark.read.schema(TABLE_SCHEMA).option("ignoreCorruptFiles", "true")
        rows = reduce(DataFrame.unionByName, [reader.parquet(str(copy)) for copy in copies])
        return rows.withColumn("file", F.regexp_extract(F.input_file_name(), "[^/]+$", 0))


def _newest(rows: DataFrame) -> DataFrame:
    newest_first = Window.partitionBy("id").orderBy(F.desc_nulls_last("closed_at"))
    return rows.withColumn("rank", F.row_number().over(newest_first)).where("rank = 1").drop("rank")


def _append(rows: DataFrame, path: Path | RemotePath) -> None:
    rows.write.format("delta").mode("append").save(str(path))


def _warn(path: Path | RemotePath, copies: Iterable[Path | RemotePath], rows: DataFrame) -> None:
    read = {row["file"] for row in rows.select("file").distinct().collect()}
    folders = [folder for copy in copies for folder in copy.glob("route=*")]
    lost = [
        folder.name.partition("=")[2]
        for folder in folders
        for file in folder.glob("*.parquet")
        if file.name not in read
    ]
    log.warning(
        "the dead-letter table was damaged: it was moved aside, and made again of its data files",
        table=str(path),
        copies=[copy.name for copy in copies],
        rows=rows.count(),
        next_step=_found_again(lost) if lost else None,
    )


def _found_again(lost: Sequence[str]) -> str:
    commands = ", ".join(f"cdf-replicator resync {route}" for route in sorted(set(lost)))
    return f"{len(lost)} data files can't be read. To have what is refused kept again, run: {commands}"


def _sync(folders: Iterable[Path], began: float) -> None:
    """Have the disk take what was written there since."""
    for folder in filter(Path.is_dir, folders):
        written = [file for file in folder.iterdir() if file.is_file() and file.stat().st_mtime >= began]
        for place in (*written, folder):
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _last_byte(file: Path) -> bytes:
    return file.read_bytes()[-1:]
