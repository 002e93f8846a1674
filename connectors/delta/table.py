"""Read and change the Delta table at a path: its properties, its transactions, its schema.

In Delta 4.4 a MERGE takes ``txnAppId`` and ``txnVersion`` from its session. Delta drops it without an error if the table
has recorded that version. An append without rows records the transaction too.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.errors import classified, line, unfit
from connectors.errors import STORAGE_UNAVAILABLE, PermanentError, RetryableError
from connectors.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from connectors.change import RouteSpec

_NEED_MAPPING: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Parquet refuses in a column's name; Delta then needs column mapping."""
_FEATURES: Final = re.compile(r"DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT.*?feature\(s\): ([\w, -]+)\.", re.DOTALL)
_CONCURRENT_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"
_SMALL_BYTES: Final = 64 * 2**20
_NO_TABLES: Final = ("DELTA_MISSING_DELTA_TABLE", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")


def session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


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


def properties(path: str) -> dict[str, str]:
    held: dict[str, str] = json.loads(_snapshot(path).metadata().json())["metaData"]["configuration"]
    return held


def set_properties(path: str, given: Mapping[str, str]) -> None:
    """Set the properties that differ, in one commit."""
    held = properties(path) if given else {}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in given.items() if held.get(name) != value)
    if listed:
        session().sql(f"ALTER TABLE {identifier(path)} SET TBLPROPERTIES ({listed})")


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


# Transactions


def application(route: RouteSpec, path: str, request: str = "") -> str:
    """Return the ``txnAppId`` of a route's writes to a table.

    ``txnVersion`` contains the generation, so that Delta drops a write of an older generation. Each state path (the owner)
    counts its own generations, and each request its own batches. The identifier therefore contains the owner and the request.
    """
    asked = f":{request}" if request else ""
    return f"cdf-replicator:{route.owner}:{route.name}:{path}{asked}"


def last_txn_version(path: str, app: str) -> int:
    """Return the last ``txnVersion`` that the table holds for an application; -1 without any.

    The sinks compare it before a write. Delta drops a repeated write without an error, and then reports no row counts.
    """
    version = _snapshot(path).transactions().get(app)
    return int(version.get()) if version.isDefined() else -1


def observed(counted: Observation, seconds: float) -> dict[str, Any] | None:
    """Return the counts of a write that has ended; None if Delta dropped the write, which then read no row.

    A listener thread of Spark delivers the counts, sometimes after the end of the write. It delivers none for a dropped write.

    Args:
        counted: The observation of the frame that was written.
        seconds: The longest wait for the counts.

    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = session()._jvm
    handed_on = counted._jo.future()  # type: ignore[union-attr]
    try:
        jvm.scala.concurrent.Await.ready(handed_on, jvm.scala.concurrent.duration.Duration.create(f"{seconds} seconds"))
    except Py4JJavaError:
        if not handed_on.isCompleted():
            return None
        raise
    return counted.get


def is_empty(path: str) -> bool:
    """Return whether the table has no file, by the checksum of the last commit; without a checksum by the whole log."""
    snapshot = _snapshot(path)
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()) == 0


def small_files(path: str) -> int:
    """Return the number of files that compaction would remove: the small files, less one file per partition."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812

    files = DataFrame(_snapshot(path).allFiles().toDF(), session()).where(F.col("size") < _SMALL_BYTES)
    partitions = files.groupBy(F.to_json("partitionValues")).agg((F.count("*") - 1).alias("surplus"))
    told = partitions.agg(F.sum("surplus")).first()
    return int((told and told[0]) or 0)


def _snapshot(path: str) -> Any:
    """Return the newest snapshot, as Delta's object in the JVM.

    Delta reads the log with the active session of the calling thread if a checkpoint has format v2, or if a kill prevented
    the checksum of the last commit. A Python thread has no active session until Spark has planned a query in it.
    """
    spark = session()
    jvm: Any = spark._jvm
    active = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    if not active.getActiveSession().isDefined():
        active.setActiveSession(spark._jsparkSession)
    none = getattr(jvm, "scala.Option").empty()
    log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)
    return log.update(False, none, none)


def latest_version(spark: SparkSession, name: str) -> int:
    """Return the newest version of a table; ``name`` is its name in SQL."""
    newest = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").first()
    assert newest is not None
    return int(newest["version"])


def private_session(spark: SparkSession) -> SparkSession:
    """Return a copy of a session with separate settings and views, since a bootstrap's frame belongs to the shared session."""
    return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())


def txn_session(spark: SparkSession, app: str, version: int) -> SparkSession:
    """Return a session for one MERGE, DELETE or UPDATE, which the table records as this transaction."""
    private = private_session(spark)
    private.conf.set("spark.databricks.delta.write.txnAppId", app)
    private.conf.set("spark.databricks.delta.write.txnVersion", str(version))
    return private


@contextmanager
def parallel_writers(spark: SparkSession) -> Iterator[None]:
    """Let each task write to two partitions at once, so that Spark sorts only the rows of further partitions."""
    before = spark.conf.get(_CONCURRENT_WRITERS) or "0"
    spark.conf.set(_CONCURRENT_WRITERS, "2")
    try:
        yield
    finally:
        spark.conf.set(_CONCURRENT_WRITERS, before)


def newest_version(path: str) -> int:
    return int(_snapshot(path).version())


def commit_text(path: str, version: int) -> str | None:
    """Return the actions of a commit from the log, a JSON object per line; None if log cleanup has removed the commit."""
    spark = session()
    jvm: Any = spark._jvm
    file = getattr(jvm, "org.apache.hadoop.fs.Path")(f"{path.rstrip('/')}/_delta_log/{version:020d}.json")
    system = file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(file):
        return None
    stream = system.open(file)
    try:
        return str(getattr(jvm, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
    finally:
        stream.close()


def record_txn(path: str, app: str, version: int) -> None:
    """Commit a transaction without rows."""
    _append(empty(schema_of(path)), path, {"txnAppId": app, "txnVersion": version})


# Schema


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


def empty(schema: StructType) -> DataFrame:
    """Return a frame without rows, of an RDD whose size Spark does not know while it plans."""
    spark = session()
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)


def create(path: str, schema: StructType, *, partitioned_by: str | None = None, **given: str) -> None:
    """Create the table with every column nullable, and with column mapping if a name needs it.

    Raises:
        PermanentError: The folder holds other files than a Delta table's.

    """
    from delta.tables import DeltaTable

    if any(_NEED_MAPPING.search(name) for name in _names(schema)):
        given["delta.columnMapping.mode"] = "name"
    builder = DeltaTable.createIfNotExists(session()).location(path).addColumns(schema.toNullable())
    if partitioned_by is not None:
        builder = builder.partitionedBy(partitioned_by)
    for name, value in given.items():
        builder = builder.property(name, value)
    try:
        builder.execute()
    except Exception as error:
        if not any(name in str(error) for name in _NO_TABLES):
            raise
        raise PermanentError(
            f"the folder {path} is no Delta table, and not empty.", "Name another PATH for the sink, or empty it."
        ) from error


def evolve_schema(path: str, schema: StructType) -> None:
    """Add the columns that the table lacks and widen types; raise ``PermanentError`` if a type does not fit.

    A column of a narrower type needs no change; nor does a struct with fewer fields or another order. See ``shape``.
    """
    from connectors.type_widening import widened

    wider = list(widened(schema_of(path), schema))
    try:
        if wider:
            set_properties(path, {"delta.enableTypeWidening": "true"})
        for column, data_type in wider:
            session().sql(f"ALTER TABLE {identifier(path)} ALTER COLUMN {column} TYPE {data_type.simpleString()}")
        lacking = _lacking(path, schema)
        _map_names(path, lacking)
        if lacking:
            # The frame has all columns of the table, since an append needs the partition columns.
            given = {field.name.lower(): field for field in [*schema_of(path), *lacking]}
            _append(empty(type(schema)([*given.values()]).toNullable()), path, {"mergeSchema": "true"})
    except PermanentError:
        raise
    except Exception as error:
        raise classified(error, path) from error


def _lacking(path: str, schema: StructType) -> list[StructField]:
    """Return the columns to append because the table lacks them or fields within them.

    Raises:
        PermanentError: The type of a column can't become the new type.

    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    from connectors.delta import shape

    columns = schema_of(path)
    held = {field.name.lower(): field.dataType for field in columns}
    wanted = shape.fitted(schema, columns)
    lacking = [field for field in wanted if not _is(held.get(field.name.lower()), field.dataType)]
    for field in lacking:
        known = held.get(field.name.lower())
        if known is not None and not isinstance(field.dataType, StructType | ArrayType | MapType):
            raise unfit(path, f"{field.name} is {known.simpleString()} there, {field.dataType.simpleString()} now")
    return lacking


def replace(path: str, schema: StructType) -> None:
    """Empty the table and replace its schema."""
    _map_names(path, schema)
    app = "cdf-replicator:replace"
    writer = empty(schema.toNullable()).write.format("delta").mode("overwrite").option("txnAppId", app)
    writer.option("txnVersion", last_txn_version(path, app) + 1).option("overwriteSchema", "true").save(path)


def _map_names(path: str, fields: Iterable[StructField]) -> None:
    """Enable column mapping if a column's name needs it."""
    if any(_NEED_MAPPING.search(name) for name in _names(fields)):
        set_properties(path, {"delta.columnMapping.mode": "name"})


def _append(rows: DataFrame, path: str, options: Mapping[str, Any]) -> None:
    try:
        rows.write.format("delta").mode("append").options(**options).save(path)
    except Exception as error:
        needed = _FEATURES.search(str(error))
        if needed is None:
            raise
        features = {f"delta.feature.{name.strip()}": "supported" for name in needed[1].split(",")}
        set_properties(path, features)
        rows.write.format("delta").mode("append").options(**options).save(path)


def _names(fields: Iterable[StructField]) -> Iterable[str]:
    """Yield the names of the columns and of the fields within them, at any depth."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    for field in fields:
        yield field.name
        inner: list[DataType] = [field.dataType]
        while inner:
            data_type = inner.pop()
            if isinstance(data_type, StructType):
                yield from _names(data_type)
            elif isinstance(data_type, ArrayType):
                inner.append(data_type.elementType)
            elif isinstance(data_type, MapType):
                inner += [data_type.keyType, data_type.valueType]


def _is(held: DataType | None, wanted: DataType) -> bool:
    return held is not None and held.simpleString() == wanted.simpleString()
