"""Read and describe the Delta table at a path: its name in SQL, rows, properties, commits and folder."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from connectors.delta.tables.errors import line
from connectors.delta.tables.session import session
from connectors.delta.tables.snapshot import Snapshot
from connectors.errors import STORAGE_UNAVAILABLE, PermanentError, RetryableError
from connectors.names import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


def identifier(path: str) -> str:
    """Return the table's name in SQL."""
    return f"delta.{quote_identifier(path)}"


def exists(path: str) -> bool:
    from delta.tables import DeltaTable

    return bool(DeltaTable.isDeltaTable(session(), path))


def schema_of(path: str) -> StructType:
    return session().read.format("delta").load(path).schema


def at(path: str, version: int) -> DataFrame:
    """Read the rows of an older version."""
    return session().read.format("delta").option("versionAsOf", version).load(path)


def latest_version(spark: SparkSession, name: str) -> int:
    """Return the newest version of a table; ``name`` is its name in SQL."""
    newest = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").first()
    assert newest is not None
    return int(newest["version"])


def set_properties(path: str, given: Mapping[str, str]) -> None:
    """Set the properties that differ, in one commit."""
    held = Snapshot(path).properties if given else {}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in given.items() if held.get(name) != value)
    if listed:
        session().sql(f"ALTER TABLE {identifier(path)} SET TBLPROPERTIES ({listed})")


def commit_text(path: str, version: int) -> str | None:
    """Return the actions of a commit from the log, a JSON object per line; None if log cleanup has removed the commit."""
    file, system = file_system(f"{path.rstrip('/')}/_delta_log/{version:020d}.json")
    if not system.exists(file):
        return None
    stream = system.open(file)
    try:
        return str(getattr(session()._jvm, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
    finally:
        stream.close()


def file_system(path: str) -> tuple[Any, Any]:
    """Return a path and its file system, as Hadoop's objects in the JVM."""
    spark = session()
    jvm: Any = spark._jvm
    folder = getattr(jvm, "org.apache.hadoop.fs.Path")(path)
    return folder, folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def check_access(path: str, what: str) -> None:
    """Check that Spark can write to a folder, by a file that is removed again; raise ``SinkError`` if it can't."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        folder, files = file_system(path)
        path_of = getattr(session()._jvm, "org.apache.hadoop.fs.Path")
        _write_probe(files, folder, path_of(folder, f".cdf-probe-{uuid.uuid4().hex}"))
    except (Py4JJavaError, PySparkException) as error:  # Java's answers; a missing JVM is no fault of the path
        if any(name in str(error) for name in STORAGE_UNAVAILABLE):
            raise RetryableError("unreachable", f"the {what} path {path}: {line(error)}") from error
        raise PermanentError(
            f"the {what} path {path} can't be reached or written: {line(error)}.",
            "Correct the sink's PATH or its permissions, or add the file system's jars and credentials by CDF_SPARK__CONF.",
        ) from error


def _write_probe(files: Any, folder: Any, probe: Any) -> None:
    """Write an empty file, then remove it and the folders that Hadoop created for it."""
    from py4j.protocol import Py4JJavaError

    made, at = [], folder
    while at is not None and not files.exists(at):
        made.append(at)
        at = at.getParent()
    files.create(probe, False).close()
    files.delete(probe, False)
    for each in made:
        with suppress(Py4JJavaError):  # another writer has put a file into the folder in the meantime
            files.delete(each, False)


def non_constant(value: object, beside: str) -> Column:
    """Return a column with a text that differs from micro-batch to micro-batch.

    Spark writes a literal number, or a literal text cast to a number, into its generated code. It would then compile that
    code again for each micro-batch.

    Args:
        value: The value, which becomes text.
        beside: A text column that is never null. The result contains nothing of it, but keeps Spark from folding the text.

    """
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat(F.lit(str(value)), F.substring(beside, 1, 0))
