"""The job that a data engineer writes without the service: foreachBatch, row_number, foreachPartition.

    python -m tests.benchmarks.by_hand TABLE FOLDER TRIGGER_SECONDS '{"redis": URL, "elasticsearch": URL, "audit": PATH}'

It writes to the sinks that are named and streams until it is ended. It has no guard, no dead letters and no state but Spark's
checkpoint in FOLDER, and uses none of the service's code. Its session has the settings of `bare`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from tests.benchmarks.bare import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = "orders"


def into_redis(url: str) -> Callable[[Iterable[Row]], None]:
    def write(rows: Iterable[Row]) -> None:
        import redis

        with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
            for row in rows:
                if row.kind == "delete":
                    pipeline.delete(f"{NAME}:{row.id}")
                else:
                    pipeline.set(f"{NAME}:{row.id}", row.body)
            pipeline.execute()

    return write


def into_elasticsearch(url: str) -> Callable[[Iterable[Row]], None]:
    def write(rows: Iterable[Row]) -> None:
        from elasticsearch import Elasticsearch
        from elasticsearch.helpers import bulk

        def actions() -> Iterable[dict[str, object]]:
            for row in rows:
                action: dict[str, object] = {"_index": NAME, "_id": row.id}
                if row.kind == "delete":
                    yield {**action, "_op_type": "delete"}
                else:
                    yield {**action, "_op_type": "index", "_source": json.loads(row.body)}

        with Elasticsearch(url) as client:
            bulk(client, actions(), raise_on_error=False)

    return write


def newest(frame: DataFrame) -> DataFrame:
    """The newest change of each key, with its row as JSON."""
    columns = [name for name in frame.columns if not name.startswith("_")]
    order = [F.desc("_commit_version"), F.col("_change_type") == "delete"]
    ranked = frame.withColumn("place", F.row_number().over(Window.partitionBy("id").orderBy(*order)))
    return ranked.where("place = 1").select(
        "id", F.col("_change_type").alias("kind"), F.to_json(F.struct(*columns)).alias("body")
    )


def batch_writer(sinks: dict[str, str]) -> Callable[[DataFrame, int], None]:
    row_writers = {"redis": into_redis, "elasticsearch": into_elasticsearch}
    writers = [make(sinks[sink]) for sink, make in row_writers.items() if sink in sinks]

    def write(frame: DataFrame, number: int) -> None:
        changes = frame.where("_change_type <> 'update_preimage'")
        if len(sinks) > 1:
            changes = changes.persist()
        if "audit" in sinks:
            once = {"txnAppId": "by hand", "txnVersion": str(number)}
            changes.write.format("delta").mode("append").options(**once).save(sinks["audit"])
        for into in writers:
            newest(changes).foreachPartition(into)
        if len(sinks) > 1:
            changes.unpersist()

    return write


def main() -> None:
    table, folder, seconds, sinks = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
    feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    query = feed.writeStream.foreachBatch(batch_writer(json.loads(sinks))).option("checkpointLocation", folder)
    query.trigger(processingTime=f"{seconds} seconds").start().awaitTermination()


if __name__ == "__main__":
    main()
