"""Write the flight board, a Delta table, as its source system does: the timetable of 2013, then one day after another.

    python -m deploy.local.demo.board FOLDER [--days 28] [--pause 2]     the writer of deploy/compose.yaml

A day has five commits. Four MERGEs bring the departures and arrivals of a part of the day and delete its cancelled flights.
The fifth, at night, inserts the cancelled flights with their final status and changes flight numbers, a part of the key.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cdf_replicator import spark as replicator_spark
from cdf_replicator.settings.models import Spark
from deploy.local.demo import flights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import SparkSession

TABLE = "flights"
KEYS = ("time_hour", "carrier", "flight")
FIRST_DAY = date(2013, 2, 4)
"""The Monday of the week in which a snowstorm cancelled half of the flights of two days."""
MOST_DAYS = (date(2014, 1, 1) - FIRST_DAY).days
VERY_LATE = 180
"""Minutes of delay from which a flight gets another number."""
RENUMBERED = 10_000
"""Added to the number of a very late flight; the highest number in the data is 8500."""

SCHEMA = pa.schema(
    [
        *(("time_hour", pa.timestamp("us", tz="UTC")), ("carrier", pa.string()), ("flight", pa.int32())),
        *(("origin", pa.string()), ("dest", pa.string()), ("day", pa.date32()), ("distance", pa.int32())),
        *(("sched_dep_time", pa.string()), ("sched_arr_time", pa.string()), ("status", pa.string())),
        *(("dep_time", pa.string()), ("dep_delay", pa.int32()), ("arr_time", pa.string())),
        *(("arr_delay", pa.int32()), ("air_time", pa.int32()), ("updated_at", pa.timestamp("us", tz="UTC"))),
    ]
)
ACTUAL = ("status", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "updated_at")
"""Columns that are known only after the departure or the arrival."""
TAILNUM = pa.field("tailnum", pa.string())
NUMBER = pa.field("number", pa.int32())

SETTINGS = {
    # Each MERGE has few rows: these plans take the least processor time.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.merge.materializeSource": "none",
    # Departures set the new column before the table has it.
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
    # An OPTIMIZE keeps the table in several files, so that a MERGE reads only those of its day.
    "spark.databricks.delta.optimize.maxFileSize": "1000000",
}


@dataclass(frozen=True)
class Commit:
    """A commit to the table.

    Attributes:
        changes: Number of rows by kind of change.
        key: Key text of a row that the commit wrote; None if it wrote no row.
        updated_at: The `updated_at` of that row.
        committed_at: Time of the commit, in seconds since 1970.
    """

    version: int
    changes: dict[str, int]
    key: str | None
    updated_at: datetime
    committed_at: float


class Board:
    """The Delta table at `path`, filled from the CSV file of the flights.

    Args:
        days: Number of days that will be written. From the middle day on, departures carry a new column, `tailnum`.
        rows: Number of flights from the first day on; all flights of the year by default.
    """

    def __init__(self, spark: SparkSession, csv: Path, path: Path, *, days: int, rows: int | None = None) -> None:
        self._spark = spark
        self._path = path
        known = flights.read(csv)
        self._flights = known if rows is None else known[known["day"] >= FIRST_DAY].head(rows)
        self._tailnum_from = FIRST_DAY + timedelta(days=days // 2)

    def create(self) -> int:
        """Create the table with the timetable of the year. Return the number of rows."""
        timetable = self._flights.assign(status="scheduled", updated_at=_now())
        timetable[[name for name in ACTUAL if name not in ("status", "updated_at")]] = None
        file = self._path.with_suffix(".parquet")
        pq.write_table(_arrow(timetable, SCHEMA), file)
        rows = self._spark.read.parquet(str(file)).repartitionByRange(12, "day")
        features = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
        rows.write.format("delta").options(**features).save(str(self._path))
        return len(timetable)

    def write_day(self, number: int) -> Iterator[Commit]:
        """Write the commits of a day, counted from 0, and yield each."""
        day = FIRST_DAY + timedelta(days=number)
        today = self._flights[self._flights["day"] == day]
        for part in range(len(flights.PARTS)):
            yield self._part(today, day, part)
        yield self._night(today, day)
        if number % 5 == 0:
            self._spark.sql(f"OPTIMIZE delta.`{self._path}`")
            yield self._commit({}, today.head(0), _now())

    def first_key(self) -> str:
        """Return the key text of the first flight of the first day."""
        return _key_text(self._flights[self._flights["day"] == FIRST_DAY].iloc[0])

    def _part(self, today: pd.DataFrame, day: date, part: int) -> Commit:
        """Update what departed or landed in a part of the day, and delete what was cancelled."""
        at = _now()
        cancelled = today["departed_part"].isna() & (today["scheduled_part"] == part)
        departed, landed = today["departed_part"] == part, today["landed_part"] == part
        news = today[(departed | landed).fillna(value=False) | cancelled].assign(status="departed", updated_at=at)
        news.loc[(news["landed_part"] <= part).fillna(value=False), "status"] = "landed"
        news.loc[(news["status"] == "landed") & news["air_time"].isna(), "status"] = "diverted"
        news.loc[news["departed_part"].isna(), "status"] = "cancelled"
        news.loc[news["status"] == "departed", ["arr_time", "arr_delay", "air_time"]] = None
        tailnum = [TAILNUM] if day >= self._tailnum_from else []
        updated = {name: f"news.{name}" for name in (*ACTUAL, *(field.name for field in tailnum))}
        merge = self._merge(news, day, *tailnum).whenMatchedDelete("news.status = 'cancelled'")
        changes = {name: int(count) for name, count in news["status"].value_counts().items()}
        lasting = news[news["dep_delay"] < VERY_LATE]  # no later commit removes these keys
        merge.whenMatchedUpdate(set=updated).execute()
        return self._commit(changes, lasting, at)

    def _night(self, today: pd.DataFrame, day: date) -> Commit:
        """Insert the cancelled flights, give very late flights other numbers, and swap the numbers of two flights."""
        at = _now()
        cancelled = today[today["departed_part"].isna()].assign(status="cancelled", updated_at=at)
        late = today[today["dep_delay"] >= VERY_LATE]
        pair = today[today["dep_delay"] < VERY_LATE].groupby(["time_hour", "carrier"]).head(2)
        pair = pair[pair.duplicated(["time_hour", "carrier"], keep=False)].head(2)
        moved = pd.concat(
            [late.assign(number=late["flight"] + RENUMBERED), pair.assign(number=[*pair["flight"]][::-1])]
        )
        news = pd.concat([cancelled.assign(number=cancelled["flight"]), moved.assign(updated_at=at)])
        merge = self._merge(news, day, NUMBER).whenMatchedUpdate(
            set={"flight": "news.number", "updated_at": "news.updated_at"}
        )
        inserted = {name: f"news.{name}" for name in SCHEMA.names}
        merge.whenNotMatchedInsert(values=inserted).execute()
        changes = {"inserted": len(cancelled), "renumbered": len(moved)}
        return self._commit(changes, moved.assign(flight=moved["number"]), at)

    def _merge(self, news: pd.DataFrame, day: date, *further: pa.Field) -> DeltaMergeBuilder:
        from delta.tables import DeltaTable

        rows = self._spark.createDataFrame(_arrow(news, pa.schema([*SCHEMA, *further])))
        same = " AND ".join([f"board.day = DATE'{day}'", *(f"board.{key} = news.{key}" for key in KEYS)])
        return DeltaTable.forPath(self._spark, str(self._path)).alias("board").merge(rows.alias("news"), same)

    def _commit(self, changes: dict[str, int], written: pd.DataFrame, at: datetime) -> Commit:
        file = max((self._path / "_delta_log").glob("*.json"))
        key = None if written.empty else _key_text(written.iloc[0])
        return Commit(int(file.stem), changes, key, at, file.stat().st_mtime)


def _key_text(row: pd.Series) -> str:
    """Return the key of a row in the form that the service documents: values as text, escaped, joined by colons."""
    return f"{quote(f'{row.time_hour:%Y-%m-%dT%H:%M:%S.%fZ}', safe='')}:{row.carrier}:{row.flight}"


@contextmanager
def session(folder: Path, *, memory: str) -> Iterator[SparkSession]:
    """Yield the service's kind of Spark session, on two cores, with its files and its log in `folder`."""
    conf = SETTINGS | {
        "spark.driver.memory": memory,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # The JVM runs for a short time: the second compiler would cost more than it saves.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    }
    terminal = os.dup(2)
    with (folder / "spark.log").open("ab") as log:
        os.dup2(log.fileno(), 2)  # the JVM inherits this stderr at its start
    try:
        spark = replicator_spark.start(Spark(master="local[2]", conf=conf))
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
    try:
        yield spark
    finally:
        spark.stop()


def _arrow(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pandas(frame, schema, preserve_index=False)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--pause", type=float, default=2, help="seconds between two days")
    options = parser.parse_args()
    path = options.folder / TABLE
    if (path / "_delta_log").exists():
        print(f"{path} already exists: nothing to write", flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch, session(Path(scratch), memory="600m") as spark:
        board = Board(spark, flights.write_csv(Path(scratch)), path, days=options.days)
        print(f"{board.create():,} flights of the timetable", flush=True)
        for number in range(options.days):
            for commit in board.write_day(number):
                print(f"version {commit.version}: {commit.changes}", flush=True)
            time.sleep(options.pause)


if __name__ == "__main__":
    main()
