"""Delta: our audit table against a plain append, our replica against a MERGE written by hand."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812

from tests.benchmarks.arm import Arm, Contest
from tests.benchmarks.ours import ROUTE, TABLE, OurRoute
from tests.benchmarks.works import DELETED, newest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.benchmarks.works import Work

WARM_UPS = 3
RENAMED = ("change_type", "commit_version", "commit_timestamp")


def audit(spark: SparkSession, work: Work, folder: Path, jvm: int) -> Contest:
    """Plain appends by hand: of the same frame, with all columns that our table has, and of the feed's columns alone."""
    place = folder / "audit"
    route = OurRoute(spark, work, {"CDF_SINKS__SINK__TYPE": "delta_audit", "CDF_SINKS__SINK__PATH": str(place)})
    plain = folder / "append"

    def append_feed(frame: DataFrame) -> None:
        _named(frame, work).write.format("delta").mode("append").save(str(plain))

    def append(frame: DataFrame) -> None:
        rows = _named(frame, work).withColumns(
            {
                "commit_date": F.to_date("commit_timestamp"),
                "source_table": F.lit(TABLE),
                "source_table_id": F.lit(str(uuid4())),
                "route": F.lit(ROUTE),
                "generation": F.lit(1),
                "batch": F.lit(1),
            }
        )
        rows.write.format("delta").mode("append").partitionBy("commit_date").save(str(plain))

    def check(arm: Arm) -> None:
        _check(spark, place / TABLE if arm.name == "ours" else plain, work.rows, arm.name)

    def prepare() -> None:
        _empty(spark, place, plain)
        route.prepare()

    arms = [
        Arm("ours", route.deliver, [jvm], prepare),
        Arm("append of the same frame", partial(work.read, spark, append), [jvm], prepare),
        Arm("append of the feed alone", partial(work.read, spark, append_feed), [jvm], prepare),
    ]
    return Contest(f"delta audit {work.name}", work.what, arms, check, WARM_UPS)


def _named(frame: DataFrame, work: Work) -> DataFrame:
    """A feed without the images before, its own columns under names that Delta lets a table have; a snapshot with the same."""
    if work.versions is None:
        columns = {
            "change_type": F.lit("snapshot"),
            "commit_version": F.lit(1),
            "commit_timestamp": F.current_timestamp(),
        }
        return frame.withColumns(columns)
    return frame.where("_change_type <> 'update_preimage'").withColumnsRenamed({f"_{name}": name for name in RENAMED})


def replica(spark: SparkSession, work: Work, folder: Path, jvm: int) -> Contest:
    """A MERGE of the newest change of each key; changes meet a table that holds all rows from before them."""
    place = folder / "replica"
    route = OurRoute(spark, work, {"CDF_SINKS__SINK__TYPE": "delta_replica", "CDF_SINKS__SINK__PATH": str(place)})
    merged, kept = folder / "merged", folder / f"before-{work.name}"

    def merge(given: DataFrame) -> None:
        frame = newest(given, work.keys)
        on = " AND ".join(f"t.{key} = s.{key}" for key in work.keys)
        merging = DeltaTable.forPath(spark, str(merged)).alias("t").merge(frame.alias("s"), on)
        columns = {name: f"s.{name}" for name in frame.columns if not name.startswith("_")}
        if work.versions is not None:
            merging = merging.whenMatchedDelete(f"s.{DELETED}")
        merging.whenMatchedUpdate(set=columns).whenNotMatchedInsert(f"NOT s.{DELETED}", values=columns).execute()

    expected = spark.read.format("delta").load(str(work.table)).count()

    def check(arm: Arm) -> None:
        _check(spark, place / TABLE if arm.name == "ours" else merged, expected, arm.name)

    def make() -> None:
        route.prepare()
        before = work.before(spark)
        before.limit(0).write.format("delta").save(str(merged))
        if work.versions is not None:
            route.deliver_before()
            before.write.format("delta").mode("append").save(str(merged))

    def prepare() -> None:
        _empty(spark, place, merged)
        if kept.exists():
            shutil.copytree(kept / "replica", place)
            shutil.copytree(kept / "merged", merged)
            route.prepare()
        else:
            make()
            shutil.copytree(place, kept / "replica")
            shutil.copytree(merged, kept / "merged")

    arms = [
        Arm("ours", route.deliver, [jvm], prepare),
        Arm("MERGE by hand", partial(work.read, spark, merge), [jvm], prepare),
    ]
    return Contest(f"delta replica {work.name}", work.what, arms, check, WARM_UPS)


def _empty(spark: SparkSession, *folders) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _check(spark: SparkSession, path, expected: int, name: str) -> None:
    held = spark.read.format("delta").load(str(path)).count()
    if held != expected:
        raise AssertionError(f"{name} left {held:,} rows, not {expected:,}")
