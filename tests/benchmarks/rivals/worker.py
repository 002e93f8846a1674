"""Run by the Python of Spark 3.5: takes commands as JSON lines, does them with the rivals' connectors, answers each with a line.

    python worker.py JARS_FOLDER SCRATCH_FOLDER DRIVER_MEMORY

Imports nothing of the project.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEED = ("_change_type", "_commit_version", "_commit_timestamp")
KEY = "_key"


def session(jars: str, scratch: str, memory: str) -> SparkSession:
    settings = {
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.driver.memory": memory,
        "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC -XX:GCTimeRatio=19 -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40",  # as ours
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # two are what two cores need
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master("local[2]").appName("rivals").config(map=settings).getOrCreate()


def newest(frame: DataFrame, keys: list[str]) -> DataFrame:
    """The newest change of each key. Preimages are left out: the keys of the works never change."""
    order = [F.desc("_commit_version"), F.col("_change_type") == "delete"]
    place = F.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    return frame.where("_change_type <> 'update_preimage'").withColumn("_place", place).where("_place = 1")


def upserts_and_deletes(frame: DataFrame, keys: list[str]) -> tuple[DataFrame, DataFrame | None]:
    """Rows to write and rows to delete, with no column of the feed; a snapshot has none to delete."""
    if FEED[0] not in frame.columns:
        return frame, None
    reduced = newest(frame, keys)
    deleted = F.col("_change_type") == "delete"
    return tuple(reduced.where(which).drop(*FEED, "_place") for which in (~deleted, deleted))


def key_text(keys: list[str]) -> Any:
    return F.concat_ws(":", *(F.col(key).cast("string") for key in keys))


def to_elasticsearch(frame: DataFrame, keys: list[str], index: str, settings: dict[str, str]) -> None:
    """Write a feed in two passes, since a job of es-hadoop has one operation.

    Each pass reduces the feed again: the second needs only the keys, which is faster than keeping the first's rows.
    A delete of an absent document is no failure: its response has status 404 without the error that es-hadoop checks.
    es-hadoop takes no decimals, and one column as the id. It writes dates and timestamps as milliseconds: fewer bytes.
    """
    upserts, deletes = upserts_and_deletes(frame, keys)
    decimals = [name for name, kind in upserts.dtypes if kind.startswith("decimal")]
    upserts = upserts.withColumns({name: F.col(name).cast("double") for name in decimals})
    settings = {**settings, "es.mapping.id": keys[0]}
    hidden = {}
    if len(keys) > 1:
        settings["es.mapping.id"] = KEY
        hidden = {"es.mapping.exclude": KEY}
        upserts = upserts.withColumn(KEY, key_text(keys))
    _save(upserts, index, {**settings, **hidden, "es.write.operation": "index"})
    if deletes is not None:
        ids = deletes.select(*keys) if len(keys) == 1 else deletes.select(key_text(keys).alias(KEY))
        _save(ids, index, {**settings, "es.write.operation": "delete"})


def _save(frame: DataFrame, index: str, settings: dict[str, str]) -> None:
    frame.write.format("org.elasticsearch.spark.sql").options(**settings).mode("append").save(index)


def to_redis(frame: DataFrame, keys: list[str], table: str, settings: dict[str, str]) -> None:
    """Write each row as one field of JSON: closest to the service's value, and faster than a field per column.

    The other model, ``binary``, is Java's serialization, which only Spark reads. The connector supports no deletes.
    """
    upserts, _ = upserts_and_deletes(frame, keys)
    rows = upserts.select(key_text(keys).alias(KEY), F.to_json(F.struct(*upserts.columns)).alias("value"))
    writer = rows.write.format("org.apache.spark.sql.redis").options(**settings)
    writer.option("table", table).option("key.column", KEY).mode("append").save()


TARGETS = {"elasticsearch": to_elasticsearch, "redis": to_redis}


def main() -> None:
    # Spark's and the JVM's own words go to the log, which is where standard error goes; answers alone stay on standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spark = session(*sys.argv[1:])
    print(json.dumps({"spark": spark.version}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            frame = spark.read.parquet(order["folder"])
            TARGETS[order["to"]](frame, order["keys"], order["name"], order["settings"])
            print(json.dumps({}), file=answers)
        except Exception as error:  # noqa: BLE001 - the caller decides
            print(json.dumps({"error": str(error)}), file=answers)
    spark.stop()


if __name__ == "__main__":
    main()
