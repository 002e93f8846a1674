"""Start the Spark session of a test process, small enough to share two cores with the servers."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from cdf_replicator.spark.class_archive import settings as archive_settings
from cdf_replicator.spark.java import java_home
from cdf_replicator.spark.jvm_classes import keep
from cdf_replicator.spark.session import DEFAULTS, FIXED, LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SMALL_PLANS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # a VACUUM lists in 10,000 tasks otherwise
}
"""Plans for tables of some rows: no generated code, no adaptive plans, one task a stage."""
ONE_WRITER: Final = {"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}
"""The log store for tables that one process writes. Hadoop starts a process for each chmod and readlink of a local file: ten
for a commit with Delta's default store, and two with this one.
"""
JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Djdk.lang.Process.launchMechanism=VFORK"
)
"""Save processor time in a JVM of less than twenty minutes.

The second compiler takes more than it saves, in the JVM of a test process too. Without it the JVM reserves 48 MB for code and
stops compiling when they are full. A tenth of a start is the verification of classes. VFORK starts a process without a
helper process.
"""
LARGE_HEAP: Final = "-Xms2g -Xmn768m"
"""With a growing heap, the JVM of a test process spends 7 % of its time on garbage."""


@contextmanager
def started(folder: Path, plans: Mapping[str, str] = SMALL_PLANS) -> Iterator[SparkSession]:
    """Start a session, and stop it when the block ends.

    Args:
        folder: Of the warehouse and of what Spark spills.
        plans: Spark settings beside those of the service; none of them gives the plans of production.
    """
    archive_option, class_path = archive_settings("", {})
    settings = {
        **DEFAULTS,
        **LOCAL,
        **class_path,
        **FIXED,
        **plans,
        **(ONE_WRITER if plans else {}),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"{archive_option} {JAVA_OPTIONS} {LARGE_HEAP}",
    }
    environ = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with patch.dict(os.environ, environ):
        session = SparkSession.builder.master("local[2]").appName("tests").config(map=settings).getOrCreate()
        keep(session)
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def replaced(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set Spark settings for the block, and restore the values that the session had.

    ``conf.unset`` restores the default of Spark instead, for every later test of the process.
    """
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
