"""The source system: a flight board in a Delta table, written day by day as such a system would.

A day is six commits: the schedule is inserted; four times departures and arrivals are merged in and cancelled flights
deleted; at night flights get other numbers, which changes their key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

KEYS = ("time_hour", "carrier", "flight")
FIRST_DAY = date(2013, 2, 1)
"""What flew before is in the table when the service first sees it."""
MOST_DAYS = (date(2014, 1, 1) - FIRST_DAY).days
PARTS = ("morning", "midday", "afternoon", "evening")
PART_ENDS = (10 * 60, 14 * 60, 18 * 60)
"""Minutes after midnight at which all but the last part of the day end."""
VERY_LATE = 180
"""Minutes of delay from which a flight gets another number."""
RENUMBERED = 10_000
"""Added to the number of a very late flight; the highest number there is is 8500."""

CSV_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, distance int, "
    "hour int, minute int, time_hour timestamp"
)
SCHEDULE = (*KEYS, "origin", "dest", "day", "sched_dep", "sched_arr", "distance", "status", "updated_at")
ACTUAL = ("status", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "updated_at")


@dataclass(frozen=True)
class Commit:
    """One commit to the board. `key`: one row it writes, None if it writes none; `at`: that row's `updated_at`, in UTC."""

    what: str
    version: int
    key: str | None
    at: datetime


class Board:
    """The table of flights at `path`, and the flights that will be written to it. Each commit is announced first."""

    def __init__(
        self, spark: SparkSession, csv: Path, path: Path, *, days: int, announce: Callable[[Commit], None]
    ) -> None:
        self.spark = spark
        self.path = path
        self._announce = announce
        self.days = days
        flights = spark.read.csv(str(csv), header=True, nullValue="NA", schema=CSV_SCHEMA)
        last = FIRST_DAY + timedelta(days=days)
        # In a file of its own: a merge from a cached frame would be refused, and a CSV be read again for each commit.
        file = str(path.with_suffix(".parquet"))
        _reckoned(flights).where(F.col("day") < F.lit(last)).sort("day").coalesce(1).write.parquet(file)
        self._flights = spark.read.parquet(file)
        self._tailnum_from = FIRST_DAY + timedelta(days=days // 2)

    def create(self) -> int:
        """Make the table with all that flew before the first day; returns the number of its rows."""
        before = self._flights.where((F.col("day") < F.lit(FIRST_DAY)) & F.col("landed_part").isNotNull())
        final = F.when(F.col("air_time").isNull(), "diverted").otherwise("landed")
        rows = before.select(*_columns((*SCHEDULE, *ACTUAL[1:-1]), status=final, updated_at=F.lit(_now())))
        empty = rows.limit(0).write.format("delta").option("delta.enableChangeDataFeed", "true")
        empty.save(str(self.path))
        self._append(rows)
        return self.rows().count()

    def latest_version(self) -> int:
        return max(int(file.stem) for file in (self.path / "_delta_log").glob("*.json"))

    def rows(self) -> DataFrame:
        """The board as it is now."""
        return self.spark.read.format("delta").load(str(self.path))

    def write_day(self, number: int) -> Iterator[Commit]:
        """Write one day, commit by commit; `number` counts from 0."""
        day = FIRST_DAY + timedelta(days=number)
        flights = self._flights.where(F.col("day") == F.lit(day))
        yield self._schedule(flights, day)
        for part in range(len(PARTS)):
            yield self._merge_part(flights, part)
        yield self._renumber(flights)
        if number % 5 == 0:
            commit = self._next("OPTIMIZE", None, _now())
            self.spark.sql(f"OPTIMIZE delta.`{self.path}`")
            yield commit

    def _schedule(self, flights: DataFrame, day: date) -> Commit:
        """The day's flights as planned; from the middle of the demo on with a new column, the aircraft."""
        with_aircraft = day >= self._tailnum_from
        columns = (*SCHEDULE, "tailnum") if with_aircraft else SCHEDULE
        what = "schedule, new column tailnum" if day == self._tailnum_from else "schedule"
        at = _now()
        commit = self._next(what, flights.where(F.col("dep_part") == len(PARTS) - 1), at)
        self._append(flights.select(*_columns(columns, status=F.lit("scheduled"), updated_at=F.lit(at))))
        return commit

    def _merge_part(self, flights: DataFrame, part: int) -> Commit:
        """Departures, arrivals and cancellations of one part of the day."""
        landed = F.col("landed_part") <= part
        status = (
            F.when(F.col("dep_part").isNull(), "cancelled")
            .when(~landed, "departed")
            .when(F.col("air_time").isNull(), "diverted")
            .otherwise("landed")
        )
        known = {name: F.when(landed, F.col(name)) for name in ("arr_time", "arr_delay", "air_time")}
        told = (F.col("dep_part") == part) | (F.col("landed_part") == part)
        cancelled = F.col("dep_part").isNull() & (F.col("sched_part") == part)
        at = _now()
        news = flights.where(told | cancelled).select(
            *_columns((*KEYS, *ACTUAL), status=status, updated_at=F.lit(at), **known)
        )
        commit = self._next(PARTS[part], news.where("status <> 'cancelled'"), at)
        matched = self._merge(news).whenMatchedDelete("news.status = 'cancelled'")
        matched.whenMatchedUpdate(set={name: f"news.{name}" for name in ACTUAL}).execute()
        return commit

    def _renumber(self, flights: DataFrame) -> Commit:
        """Very late flights get a new number, and two flights swap theirs: both change the key."""
        late = flights.where(F.col("dep_delay") >= VERY_LATE)
        on_time = flights.where(F.col("dep_delay") < VERY_LATE)
        pair = on_time.groupBy("time_hour", "carrier").agg(F.min("flight").alias("low"), F.max("flight").alias("high"))
        pair = pair.where("low < high").orderBy(*KEYS[:2]).limit(1)
        moves = (
            late.select(*KEYS, (F.col("flight") + RENUMBERED).alias("number"))
            .union(pair.select(*KEYS[:2], F.col("low"), F.col("high")))
            .union(pair.select(*KEYS[:2], F.col("high"), F.col("low")))
        )
        at = _now()
        commit = self._next("other numbers", moves.select(*KEYS[:2], F.col("number").alias("flight")), at)
        self._merge(moves).whenMatchedUpdate(set={"flight": "news.number", "updated_at": F.lit(at)}).execute()
        return commit

    def _merge(self, news: DataFrame):  # noqa: ANN202 - DeltaMergeBuilder, which delta-spark does not export
        from delta.tables import DeltaTable

        same = " AND ".join(f"board.{key} = news.{key}" for key in KEYS)
        return DeltaTable.forPath(self.spark, str(self.path)).alias("board").merge(news.alias("news"), same)

    def _append(self, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").option("mergeSchema", "true").save(str(self.path))

    def _next(self, what: str, written: DataFrame | None, at: datetime) -> Commit:
        """Announce the commit that is about to be made."""
        row = None if written is None else written.orderBy(*KEYS).select(key_text().alias("key")).first()
        commit = Commit(what, self.latest_version() + 1, None if row is None else row["key"], at)
        self._announce(commit)
        return commit


def key_text() -> Column:
    """The key of a row as the service promises it: the key columns as text, colons in them escaped, joined by colons."""
    hour = F.date_format("time_hour", "yyyy-MM-dd'T'HH'%3A'mm'%3A'ss.SSSSSS'Z'")
    return F.concat_ws(":", hour, "carrier", F.col("flight").cast("string"))


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _columns(names: tuple[str, ...], **values: Column) -> list[Column]:
    return [values[name].alias(name) if name in values else F.col(name) for name in names]


def _reckoned(flights: DataFrame) -> DataFrame:
    """The flights with readable times, and with the part of their day in which each thing happens."""
    scheduled = F.expr("hour * 60 + minute")
    departed = scheduled + F.col("dep_delay")
    landed = F.when(F.col("dep_delay").isNotNull(), departed + F.coalesce("air_time", F.lit(24 * 60)))
    return flights.select(
        *KEYS,
        "origin",
        "dest",
        F.make_date("year", "month", "day").alias("day"),
        _clock("sched_dep_time").alias("sched_dep"),
        _clock("sched_arr_time").alias("sched_arr"),
        "distance",
        *(_clock(name).alias(name) for name in ("dep_time", "arr_time")),
        "dep_delay",
        "arr_delay",
        "air_time",
        "tailnum",
        _part(scheduled).alias("sched_part"),
        _part(departed).alias("dep_part"),
        _part(landed).alias("landed_part"),
    )


def _clock(name: str) -> Column:
    """517 is 05:17."""
    return F.when(F.col(name).isNotNull(), F.format_string("%02d:%02d", F.expr(f"{name} div 100"), F.col(name) % 100))


def _part(minute: Column) -> Column:
    """Null where the minute is: it never happened."""
    return F.when(minute.isNotNull(), sum((minute > end).cast("int") for end in PART_ENDS))
