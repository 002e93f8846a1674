"""Builds the one SparkSession of the process.

Settings and secrets reach the JVM by a 0600 properties file, never as arguments that ``ps`` would show.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
import structlog
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cdf_replicator
import connectors
from cdf_replicator import jars
from cdf_replicator.java import JavaNotFoundError, java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cdf_replicator.settings import Spark

__all__ = [
    "JVM_ENVIRON",
    "JavaNotFoundError",
    "SparkStartError",
    "default_collector",
    "delta_jars",
    "forget_tables",
    "jvm_alive",
    "jvm_gone",
    "jvm_pid",
    "start",
    "versions",
]

log = structlog.get_logger(__name__)

_JARS: Final = Path(pyspark.__file__).parent / "jars"

JVM_ENVIRON: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
_THROUGHPUT: Final = "-XX:+UseParallelGC -XX:GCTimeRatio=19"
GOING_SECONDS: Final = 2.0
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")

# Not for the operator to change: correctness leans on them.
FIXED: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Timestamps in keys, JSON and startingTimestamp mean the same wherever the service runs.
    "spark.sql.session.timeZone": "UTC",
    # A stream that starts at V+1 waits for that commit; the range is checked by us before (design rule 5).
    "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true",
    # Bootstraps and replays read whatever is still there, however old; a file that VACUUM removed is an error anyway.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.speculation": "false",
    # It copies the text of a whole row into every filter it infers: of a table with many nested columns, the plan of a
    # replay into an audit table was never finished.
    "spark.sql.constraintPropagation.enabled": "false",
    # Of a micro-batch that comes to nothing, it would cut away the plan's counts, and reading them would fail.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}

DEFAULTS: Final = {
    "spark.app.name": "cdf-replicator",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.driver.memory": "1g",
    # Micro-batches are small: 200 shuffle tasks and 50 snapshot tasks a batch would be most of its time.
    "spark.sql.shuffle.partitions": str(max(2, min(16, os.cpu_count() or 2))),
    "spark.databricks.delta.snapshotPartitions": "2",
    # A micro-batch of one sink takes up to sixty generated classes; of the hundred that Spark keeps by itself, the next one finds
    # none, and all are compiled again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # The other one starts twenty processes (readlink, chmod) a micro-batch in a local file system.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A query that does not end when it is told to must not take the thread along that told it.
    "spark.sql.streaming.stopTimeout": "60s",
    # What Spark remembers for a UI that is off: plans, metrics, tasks of a thousand micro-batches.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
}


class SparkStartError(Exception):
    """Spark did not start; the text says what to do."""


def start(settings: Spark) -> SparkSession:
    """Start the JVM and the session; raises ``SparkStartError`` or ``JavaNotFoundError``."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need our pyarrow and our sinks
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = {**DEFAULTS, **settings.conf, **FIXED, "spark.master": settings.master}
    for name, own in delta_jars(settings).items():  # beside those that were asked for
        conf[name] = ",".join(filter(None, (conf.get(name), own)))
    conf = {**default_collector(conf), **conf}
    with _properties_file(conf) as path:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {path} pyspark-shell"
        try:
            session = SparkSession.builder.getOrCreate()
        except PySparkException as error:
            raise SparkStartError(f"Spark did not start: {error}. Its own log above says why.") from error
    if not settings.master.startswith("local"):
        _ship_packages(session)
    return session


def jvm_pid(spark: SparkSession) -> int | None:
    """Return the process id of the JVM, for its metrics; None when it was not started by us."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process.pid if process else None


def jvm_alive(spark: SparkSession) -> bool:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def jvm_gone(spark: SparkSession, error: BaseException) -> bool:
    """Whether an error comes of the JVM's end. Its process is seen to end a little after its connections."""
    if not isinstance(error, Py4JNetworkError | ConnectionError):
        return False
    deadline = time.monotonic() + GOING_SECONDS
    while jvm_alive(spark) and time.monotonic() < deadline:
        time.sleep(GOING_SECONDS / 100)
    return not jvm_alive(spark)


def forget_tables(spark: SparkSession) -> None:
    """Have Delta read its tables anew: what it keeps of one may be what was broken, and would be for as long as that version lasts."""
    jvm: Any = spark.sparkContext._jvm
    getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()


def versions(spark: SparkSession) -> Mapping[str, str]:
    """Return the versions of what runs, for the build info."""
    import delta

    jvm: Any = spark.sparkContext._jvm
    return {
        "spark_version": spark.version,
        "delta_version": getattr(delta, "__version__", jars.listed()[0].version),
        "java_version": getattr(jvm, "java.lang.System").getProperty("java.version"),
    }


def default_collector(conf: Mapping[str, str]) -> dict[str, str]:
    """The JVM's collector for throughput, which also keeps less memory; unless one is named, since a JVM refuses two.

    It may take a twentieth of the time, and not a hundredth, before it lets the heap grow.
    """
    named = [*(os.environ.get(name, "") for name in JVM_ENVIRON), conf.get(_JVM_OPTIONS, "")]
    return {} if _COLLECTOR.search(" ".join(named)) else {"spark.driver.defaultJavaOptions": _THROUGHPUT}


def _ship_packages(session: SparkSession) -> None:
    """Give executors on other machines our packages: what writes there is then of this version. Others they bring themselves."""
    context = session.sparkContext
    archive = Path(context._temp_dir, "cdf_packages.zip")
    with zipfile.ZipFile(archive, "w") as packages:
        for package in (cdf_replicator, connectors):
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*")):
                if file.is_file() and file.suffix != ".pyc":  # a sink may read a file of its package
                    packages.write(file, file.relative_to(root.parent))
    context.addPyFile(str(archive))


_DELTA_HINT: Final = (
    "The Delta jars can be supplied in three ways: in pyspark's own jars folder, in a folder named by CDF_SPARK__JARS, or "
    "fetched once from Maven Central into the user's cache folder (behind a proxy or a CA of your own, set JAVA_TOOL_OPTIONS)."
)


def delta_jars(settings: Spark) -> dict[str, str]:
    # Those in pyspark's own folder are on this machine alone.
    is_sent = settings.jars is not None and not settings.master.startswith("local")
    if not is_sent and any(_JARS.glob("delta-spark_*.jar")):
        return {}
    if settings.jars is None:
        try:
            found = jars.cached()
        except jars.JarsError as error:
            raise SparkStartError(f"{error} {_DELTA_HINT}") from error
    else:
        found = sorted(Path(settings.jars).glob("*.jar"))
        if not any(jar.name.startswith("delta-spark_") for jar in found):
            raise SparkStartError(f"no delta-spark_*.jar in CDF_SPARK__JARS={settings.jars}. {_DELTA_HINT}")
    return {"spark.jars": ",".join(map(str, found))}


@contextmanager
def _properties_file(conf: Mapping[str, str]) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(prefix="cdf-spark-", suffix=".properties")  # created with mode 0600
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(conf.items()))
        yield path
    finally:
        path.unlink()


def _escaped(text: str) -> str:
    """As ``java.util.Properties`` reads it back."""
    for plain, escape in (("\\", "\\\\"), ("\n", "\\n"), ("=", "\\="), (":", "\\:"), (" ", "\\ "), ("#", "\\#")):
        text = text.replace(plain, escape)
    return text
