"""A Delta table at a path: what it remembers (properties, transactions), how its schema grows.

Facts of Delta 4.4: a MERGE honours ``txnAppId`` and ``txnVersion`` of its session, and is dropped without a word where
the table has recorded that version; an append of no rows records them too.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.errors import classified, line, unfit
from connectors.errors import STORAGE_AWAY, PermanentError, RetryableError
from connectors.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from connectors.change import RouteSpec

_NEED_MAPPING: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Parquet does not take in a column's name: Delta then needs column mapping."""
_FEATURES: Final = re.compile(r"DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT.*?feature\(s\): ([\w, -]+)\.", re.DOTALL)
_CONCURRENT_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"
_SMALL_BYTES: Final = 64 * 2**20
_NO_TABLES: Final = ("DELTA_MISSING_DELTA_TABLE", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")


def session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def identifier(path: str) -> str:
    """The table in SQL."""
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
    """Set those that differ, in one commit."""
    held = properties(path) if given else {}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in given.items() if held.get(name) != value)
    if listed:
        session().sql(f"ALTER TABLE {identifier(path)} SET TBLPROPERTIES ({listed})")


def file_system(path: str) -> tuple[Any, Any]:
    """A path, and the file system that it is of, as Hadoop has them in the JVM."""
    spark = session()
    jvm: Any = spark._jvm
    folder = getattr(jvm, "org.apache.hadoop.fs.Path")(path)
    return folder, folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def reach(path: str, what: str) -> None:
    """See that a folder can be written, by a file that is removed again; raises ``SinkError``."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        folder, files = file_system(path)
        path_of = getattr(session()._jvm, "org.apache.hadoop.fs.Path")
        _write_probe(files, folder, path_of(folder, f".cdf-probe-{uuid.uuid4().hex}"))
    except (Py4JJavaError, PySparkException) as error:  # what Java said; that there is no Java is none of the path's
        if any(name in str(error) for name in STORAGE_AWAY):
            raise RetryableError("unreachable", f"the {what} path {path}: {line(error)}") from error
        raise PermanentError(
            f"the {what} path {path} can't be reached or written: {line(error)}.",
            "Correct the sink's PATH or its permissions, or add the file system's jars and credentials by CDF_SPARK__CONF.",
        ) from error


def _write_probe(files: Any, folder: Any, probe: Any) -> None:
    """Write an empty file and remove it, with the folders that were made for it."""
    from py4j.protocol import Py4JJavaError

    made, at = [], folder
    while at is not None and not files.exists(at):
        made.append(at)
        at = at.getParent()
    files.create(probe, False).close()
    files.delete(probe, False)
    for each in made:
        with suppress(Py4JJavaError):  # somebody has put something there meanwhile
            files.delete(each, False)


# Transactions


def application(route: RouteSpec, path: str, request: str = "") -> str:
    """Who writes, as Delta's ``txnAppId``.

    A generation's number is in the version, so that a leftover writer of an older one loses. Generations are counted
    by the state path, the owner: another one that takes the target over begins again. A request has a sequence of its own.
    """
    asked = f":{request}" if request else ""
    return f"cdf-replicator:{route.owner}:{route.name}:{path}{asked}"


def recorded(path: str, app: str) -> int:
    """The last ``txnVersion`` the table holds for an application; -1 if none.

    Delta drops such a write by itself, but silently, and then nobody could count its rows.
    """
    version = _snapshot(path).transactions().get(app)
    return int(version.get()) if version.isDefined() else -1


def observed(counted: Observation, seconds: float) -> dict[str, Any] | None:
    """Return what Spark counted during a write that has ended; None if Delta dropped the write, which then read no row.

    A thread of Spark's hands the counts on, perhaps after the write has ended; those of a dropped write never come.

    Args:
        counted: Observes the frame that was written.
        seconds: How long to wait for the counts.

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
    """Whether it has no file: told by the checksum of the last commit, if it has one, else by all of the log."""
    snapshot = _snapshot(path)
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()) == 0


def small_files(path: str) -> int:
    """Of the table's files, those that compacting would do away with: small ones, less one for each partition."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812

    files = DataFrame(_snapshot(path).allFiles().toDF(), session()).where(F.col("size") < _SMALL_BYTES)
    partitions = files.groupBy(F.to_json("partitionValues")).agg((F.count("*") - 1).alias("surplus"))
    told = partitions.agg(F.sum("surplus")).first()
    return int((told and told[0]) or 0)


def _snapshot(path: str) -> Any:
    """The newest, as Delta has it in the JVM.

    Delta reads the log with the active session of its caller's thread where a checkpoint is of format v2, or where a kill took
    the checksum of the last commit. A thread of ours has none before Spark has planned something in it.
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
    """The newest version of a table as SQL names it."""
    newest = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").first()
    assert newest is not None
    return int(newest["version"])


def private_session(spark: SparkSession) -> SparkSession:
    """A copy of a session whose settings and views nobody else sees: a bootstrap's frame is of the one all share."""
    return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())


def transaction(spark: SparkSession, app: str, version: int) -> SparkSession:
    """A session for one MERGE, DELETE or UPDATE, which the table then records."""
    private = private_session(spark)
    private.conf.set("spark.databricks.delta.write.txnAppId", app)
    private.conf.set("spark.databricks.delta.write.txnVersion", str(version))
    return private


@contextmanager
def unsorted(spark: SparkSession) -> Iterator[None]:
    """Have a task write rows of up to two partitions as they come, and sort only what is of others."""
    before = spark.conf.get(_CONCURRENT_WRITERS) or "0"
    spark.conf.set(_CONCURRENT_WRITERS, "2")
    try:
        yield
    finally:
        spark.conf.set(_CONCURRENT_WRITERS, before)


def newest_version(path: str) -> int:
    return int(_snapshot(path).version())


def commit_text(path: str, version: int) -> str | None:
    """The actions of one commit as the log has them, a JSON object each line; None where log cleanup has removed it."""
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


def record(path: str, app: str, version: int) -> None:
    """Commit the transaction alone."""
    _append(empty(schema_of(path)), path, {"txnAppId": app, "txnVersion": version})


# Schema


def varying(value: object, beside: str) -> Column:
    """A text that is another one in each micro-batch, as a column.

    A number would stand in the code that Spark generates, which then were compiled anew each time; so would a literal text
    that is cast to one. ``beside``: a column of text, never null, of which nothing is taken, but Spark can't fold what has it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat(F.lit(str(value)), F.substring(beside, 1, 0))


def empty(schema: StructType) -> DataFrame:
    """No rows, which Spark does not know while it plans."""
    spark = session()
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)


def create(path: str, schema: StructType, *, partitioned_by: str | None = None, **given: str) -> None:
    """Create the table, every column nullable; its names may be odd. Raises ``PermanentError`` in another's folder."""
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


def grow(path: str, schema: StructType) -> None:
    """Give the table the columns it lacks and the wider types it needs; raises ``PermanentError`` where it can't.

    A column of a narrower type, or a struct in another order or with fewer fields, fits: see ``shape``.
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
            # With what is there already: an append needs the partition columns.
            given = {field.name.lower(): field for field in [*schema_of(path), *lacking]}
            _append(empty(type(schema)([*given.values()]).toNullable()), path, {"mergeSchema": "true"})
    except PermanentError:
        raise
    except Exception as error:
        raise classified(error, path) from error


def _lacking(path: str, schema: StructType) -> list[StructField]:
    """Columns as they have to be where the table lacks them, or fields within them; raises ``PermanentError``."""
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
    """Empty the table and give it this schema."""
    _map_names(path, schema)
    app = "cdf-replicator:replace"
    writer = empty(schema.toNullable()).write.format("delta").mode("overwrite").option("txnAppId", app)
    writer.option("txnVersion", recorded(path, app) + 1).option("overwriteSchema", "true").save(path)


def _map_names(path: str, fields: Iterable[StructField]) -> None:
    """Switch column mapping on where a column's name needs it."""
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
    """Of the columns, and of the fields inside them."""
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
