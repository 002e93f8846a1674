"""Start a small Spark session with Delta for the demo; its log goes to a file."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdf_replicator.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The source of each MERGE is a file that does not change: Delta need not copy it first.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session(folder: Path, *, memory: str) -> Iterator[SparkSession]:
    """Yield a session on two cores whose files are in `folder`."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    places = {
        "spark.driver.memory": memory,
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # The JVM runs for a short time: the second compiler would cost more than it saves.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    }
    builder = SparkSession.builder.master("local[2]").appName("demo").config(map=SETTINGS | places)
    with _stderr_into(folder / "spark.log"):  # the JVM inherits this stderr at its start
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    kept = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
