"""A table that a route joins: a label for each region."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession


def label(region: str) -> str:
    return f"label of {region}"


def recreate(spark: SparkSession, path: Path, regions: Iterable[str], *, doubled: bool) -> None:
    """Write it under its path as another table, at version 0. ``doubled``: one region has two rows."""
    rows = [(region, label(region)) for region in regions]
    shutil.rmtree(path, ignore_errors=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    frame = spark.createDataFrame(rows + rows[:1] if doubled else rows, "code string, label string")
    frame.coalesce(1).write.format("delta").save(str(path))
