"""Create a Delta table and change its schema: new columns, wider types, column mapping."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.tables import table
from connectors.delta.tables.errors import classified, unfit
from connectors.delta.tables.session import session
from connectors.delta.tables.snapshot import Snapshot
from connectors.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_NEED_MAPPING: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Parquet refuses in a column's name; Delta then needs column mapping."""
_FEATURES: Final = re.compile(r"DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT.*?feature\(s\): ([\w, -]+)\.", re.DOTALL)
_NO_TABLES: Final = ("DELTA_MISSING_DELTA_TABLE", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")


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

    wider = list(widened(table.schema_of(path), schema))
    try:
        if wider:
            table.set_properties(path, {"delta.enableTypeWidening": "true"})
        for column, data_type in wider:
            widen = f"ALTER TABLE {table.identifier(path)} ALTER COLUMN {column} TYPE {data_type.simpleString()}"
            _with_features(path, partial(session().sql, widen))
        lacking = _lacking(path, schema)
        _map_names(path, lacking)
        if lacking:
            # The frame has all columns of the table, since an append needs the partition columns.
            given = {field.name.lower(): field for field in [*table.schema_of(path), *lacking]}
            append(empty(type(schema)([*given.values()]).toNullable()), path, {"mergeSchema": "true"})
    except PermanentError:
        raise
    except Exception as error:
        raise classified(error, path) from error


def _lacking(path: str, schema: StructType) -> list[StructField]:
    """Return the columns to append because the table lacks them or fields within them.

    Raises:
        PermanentError: The type of a column can't become the new type.

    """
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    from connectors.delta.tables import shape

    columns = table.schema_of(path)
    held = {field.name.lower(): field.dataType for field in columns}
    wanted = shape.fitted(schema, columns)
    lacking = [field for field in wanted if not _is(held.get(field.name.lower()), field.dataType)]
    for field in lacking:
        known = held.get(field.name.lower())
        if known is None or isinstance(known, NullType):  # Delta lets a void column take any type
            continue
        if not isinstance(field.dataType, StructType | ArrayType | MapType):
            raise unfit(path, f"{field.name} is {known.simpleString()} there, {field.dataType.simpleString()} now")
    return lacking


def replace(path: str, schema: StructType) -> None:
    """Empty the table and replace its schema."""
    _map_names(path, schema)
    app = "cdf-replicator:replace"
    writer = empty(schema.toNullable()).write.format("delta").mode("overwrite").option("txnAppId", app)
    writer = writer.option("txnVersion", Snapshot(path).last_txn_version(app) + 1).option("overwriteSchema", "true")
    _with_features(path, partial(writer.save, path))


def _map_names(path: str, fields: Iterable[StructField]) -> None:
    """Enable column mapping if a column's name needs it."""
    if any(_NEED_MAPPING.search(name) for name in _names(fields)):
        table.set_properties(path, {"delta.columnMapping.mode": "name"})


def append(rows: DataFrame, path: str, options: Mapping[str, Any]) -> None:
    _with_features(path, lambda: rows.write.format("delta").mode("append").options(**options).save(path))


def _with_features(path: str, change: Callable[[], object]) -> None:
    """Change the table; if the new schema needs table features that the table lacks, enable them and try again."""
    try:
        change()
    except Exception as error:
        needed = _FEATURES.search(str(error))
        if needed is None:
            raise
        features = {f"delta.feature.{name.strip()}": "supported" for name in needed[1].split(",")}
        table.set_properties(path, features)
        change()


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
