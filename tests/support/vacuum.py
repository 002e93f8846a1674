"""VACUUM as tests want it: at once, of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.session import replaced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # a folder is listed in 10,000 tasks otherwise
}


def vacuum(spark: SparkSession, path: str) -> None:
    """Remove every file that the newest version does not need."""
    with replaced(spark, SETTINGS):
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
