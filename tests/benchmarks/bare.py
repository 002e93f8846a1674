"""A minimal stream of a change feed, run once: ``python -m tests.benchmarks.bare TABLE``.

Its session has Delta, two cores and few partitions. It uses none of the service's code.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def counted(frame: DataFrame, _number: int) -> None:
    print("counted", frame.count(), flush=True)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
    feed = (
        spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(sys.argv[1])
    )
    feed.writeStream.foreachBatch(counted).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
