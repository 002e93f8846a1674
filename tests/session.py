"""A Spark session as the service sets it, small enough to share two cores with the servers."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from pyspark.sql import SparkSession

from cdf_replicator.java import java_home
from cdf_replicator.spark import DEFAULTS, FIXED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def started(folder: Path) -> Iterator[SparkSession]:
    """``folder``: for the warehouse and what Spark spills."""
    settings = {
        **DEFAULTS,
        **FIXED,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "2g",
        # The second compiler never earns back, in a JVM of some minutes, the processor time it takes. Without it the
        # code cache is small, and sweeping it takes more.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
    }
    environ = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with patch.dict(os.environ, environ):
        session = SparkSession.builder.master("local[2]").appName("tests").config(map=settings).getOrCreate()
        try:
            yield session
        finally:
            session.stop()
