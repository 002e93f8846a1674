"""VACUUM as tests want it: at once, of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # else 10,000 tasks list a folder
}


def vacuum(spark: SparkSession, path: str) -> None:
    """Remove every file that the newest version does not need."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    finally:
        for name in SETTINGS:
            spark.conf.unset(name)
