"""Build the only SparkSession of the process.

Settings and secrets reach the JVM through a properties file with mode 0600, since ``ps`` shows arguments.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cdf_replicator
import connectors
from cdf_replicator.settings.redact import SENSITIVE
from cdf_replicator.spark import class_archive, jars, jvm_classes
from cdf_replicator.spark.java import SparkStartError, java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cdf_replicator.settings.models import Spark

__all__ = [
    "JVM_ENVIRON",
    "SparkStartError",
    "clear_delta_cache",
    "context_stopped",
    "is_spark_exit",
    "jvm_alive",
    "jvm_pid",
    "jvm_settings",
    "start",
    "versions",
]

log = structlog.get_logger(__name__)

JVM_ENVIRON: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
_DEFAULT_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_EXIT: Final = "-XX:+ExitOnOutOfMemoryError"
_THROUGHPUT: Final = "-XX:+UseParallelGC -XX:GCTimeRatio=19 -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
GOING_SECONDS: Final = 2.0
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")

# Operators can't change these settings, since correctness depends on them.
FIXED: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Timestamps in keys, JSON and startingTimestamp have the same meaning on every host.
    "spark.sql.session.timeZone": "UTC",
    # A key has one text: with the microseconds of a timestamp, and a decimal without an exponent.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.ansi.enabled": "true",
    # A stream that starts at V+1 waits for that commit; the service checks the range before (see docs/design.md).
    "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true",
    # Bootstraps and replays read old files as long as they exist; a file that VACUUM removed is an error anyway.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.speculation": "false",
    # Constraint propagation copies the text of a whole row into every inferred filter. With many nested columns, Spark never
    # finished planning a replay into an audit table.
    "spark.sql.constraintPropagation.enabled": "false",
    # This rule removes the counts from the plan of an empty micro-batch, and reading them would then fail.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}

DEFAULTS: Final = {
    "spark.app.name": "cdf-replicator",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # PySpark would send the Python line of each column to the JVM: ten requests for each column instead of one.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark's default knows no key of a cloud store except S3's.
    "spark.redaction.regex": f"(?i){SENSITIVE}",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": (Path(__file__).parent / "conf" / "fairscheduler.xml").as_uri(),
    "spark.driver.memory": "1g",
    # Micro-batches are small: 200 shuffle tasks and 50 snapshot tasks per batch would take most of its time.
    "spark.sql.shuffle.partitions": str(max(2, min(16, os.cpu_count() or 2))),
    "spark.databricks.delta.snapshotPartitions": "2",
    # A micro-batch of one sink uses up to sixty generated classes. With Spark's default of 100, the next sink's classes would
    # evict them, and every batch would compile them again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # A batch for a Python worker fills one request of a sink, with the default of CHUNK_BYTES. With Spark's default of 64 MB, the
    # worker's allocator returns the memory to the system after each batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": "7500000",
    # The default manager starts twenty processes (readlink, chmod) per micro-batch in a local file system.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A query that does not stop must not block the thread that stops it for ever.
    "spark.sql.streaming.stopTimeout": "60s",
    # Spark keeps these for its UI, which is off: plans, metrics and tasks of a thousand micro-batches.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
}

LOCAL: Final = {"spark.python.daemon.module": "cdf_replicator.spark.worker_daemon"}
"""Defaults of workers beside the driver. A daemon on another machine can't import the packages, since the driver sends them to workers alone."""

LEFTOVER_SECONDS: Final = 3600
"""Age of a properties file that no start still reads."""


def start(settings: Spark, *, log_tasks: bool = True) -> SparkSession:
    """Start the JVM and the session; raise ``SparkStartError``.

    Args:
        settings: Settings of the session.
        log_tasks: Whether the JVM logs each failed task with its stack trace.
    """
    os.environ["JVM_LOG_TASKS"] = "warn" if log_tasks else "off"  # conf/log4j2.properties reads it
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need this pyarrow and these sinks
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    local = LOCAL if settings.master.startswith("local") else {}
    conf = {**DEFAULTS, **local, **settings.conf, **FIXED, "spark.master": settings.master}
    for name, own in jars.for_delta(settings).items():  # in addition to the operator's
        conf[name] = ",".join(filter(None, (conf.get(name), own)))
    conf = {**jvm_settings(conf), **conf}
    with _properties_file(conf) as path:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {path} pyspark-shell"
        try:
            session = SparkSession.builder.getOrCreate()
        except PySparkException as error:
            raise SparkStartError(f"Spark did not start: {error}. See its own log above for the cause.") from error
    jvm_classes.keep(session)
    if not settings.master.startswith("local"):
        _ship_packages(session)
    return session


def jvm_pid(spark: SparkSession) -> int | None:
    """Return the process id of the JVM, for its metrics; None if another process started the JVM."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process.pid if process else None


def jvm_alive(spark: SparkSession) -> bool:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def context_stopped(spark: SparkSession) -> bool:
    """Return whether the JVM has stopped its context, as after an error in a thread of Spark's own; it calls the JVM."""
    return spark.sparkContext._jsc is None or bool(spark.sparkContext._jsc.sc().isStopped())


def is_spark_exit(spark: SparkSession, error: BaseException) -> bool:
    """Return whether the end of the JVM or of its context caused an error; the process ends shortly after its connections."""
    with suppress(Py4JNetworkError, ConnectionError):  # the JVM ends
        if not isinstance(error, Py4JNetworkError | ConnectionError):
            return context_stopped(spark)
    deadline = time.monotonic() + GOING_SECONDS
    while jvm_alive(spark) and time.monotonic() < deadline:
        time.sleep(GOING_SECONDS / 100)
    return not jvm_alive(spark)


def clear_delta_cache(spark: SparkSession) -> None:
    """Clear Delta's cache of tables, since a cached snapshot may be the cause of an error."""
    jvm: Any = spark.sparkContext._jvm
    getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()


def versions(spark: SparkSession) -> Mapping[str, str]:
    """Return the versions of Spark, Delta and Java, for the build info."""
    import delta

    jvm: Any = spark.sparkContext._jvm
    return {
        "spark_version": spark.version,
        "delta_version": getattr(delta, "__version__", jars.listed()[0].version),
        "java_version": getattr(jvm, "java.lang.System").getProperty("java.version"),
    }


def jvm_settings(conf: Mapping[str, str], archive: Path = class_archive.ARCHIVE) -> dict[str, str]:
    """Return the settings of the driver's JVM: its collector and its archive of classes, unless the operator selects them.

    A JVM ends if it is out of memory; Spark might only stop its context. A JVM refuses two collectors. The parallel collector may take a
    twentieth of the time before the heap grows, and at most 40 % of the heap remain free (defaults: a hundredth, 70 %): less memory.
    """
    named = " ".join([*(os.environ.get(name, "") for name in JVM_ENVIRON), conf.get(_JVM_OPTIONS, "")])
    archived, class_path = class_archive.settings(named, conf, archive)
    options = " ".join(filter(None, (_EXIT, "" if _COLLECTOR.search(named) else _THROUGHPUT, archived)))
    return class_path | {_DEFAULT_OPTIONS: options}


def _ship_packages(session: SparkSession) -> None:
    """Send the packages of this version to executors on other machines; these supply all other packages."""
    context = session.sparkContext
    archive = Path(context._temp_dir, "cdf_packages.zip")
    with zipfile.ZipFile(archive, "w") as packages:
        for package in (cdf_replicator, connectors):
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*")):
                if file.is_file() and file.suffix != ".pyc":  # a sink may read a file of its package
                    packages.write(file, file.relative_to(root.parent))
    context.addPyFile(str(archive))


@contextmanager
def _properties_file(conf: Mapping[str, str]) -> Iterator[Path]:
    for leftover in Path(tempfile.gettempdir()).glob("cdf-spark-*.properties"):  # of a process killed during its start
        with suppress(OSError):  # another user's file, or another process deletes it too
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()
    handle, name = tempfile.mkstemp(prefix="cdf-spark-", suffix=".properties")  # created with mode 0600
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(conf.items()))
        yield path
    finally:
        path.unlink()


def _escaped(text: str) -> str:
    """Escape text for ``java.util.Properties``."""
    for plain, escape in (("\\", "\\\\"), ("\n", "\\n"), ("=", "\\="), (":", "\\:"), (" ", "\\ "), ("#", "\\#")):
        text = text.replace(plain, escape)
    return text
