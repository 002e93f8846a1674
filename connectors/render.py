"""Spark expressions that turn a row into text in the JVM: the key text and the JSON form of a row.

JSON form: timestamps in UTC with microseconds, binary as base64, nulls kept, decimals exact in every reader: a number
up to 15 digits of precision (what a double holds exactly), text above.
Facts: shared rules are in the README under "Types"; ``to_json`` defaults cut microseconds and use the session zone.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from connectors.change import ROW

EXACT_DIGITS: Final = 15
TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
TIMESTAMP_NTZ_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"

JSON_OPTIONS: Final = {
    "timeZone": "UTC",
    "timestampFormat": TIMESTAMP_FORMAT,
    "timestampNTZFormat": TIMESTAMP_NTZ_FORMAT,
    "ignoreNullFields": "false",
}


def json_row(schema: StructType) -> Column:
    """JSON text of ``row``, whose schema is given."""
    return json_of(F.col(ROW), schema)


def json_of(column: Column, data_type: DataType) -> Column:
    """JSON text of a struct, array, map or variant."""
    safe = _exact(data_type)
    return F.to_json(column.cast(safe) if safe != data_type else column, JSON_OPTIONS)


def key_text(values: list[tuple[Column, DataType]]) -> Column:
    """Key columns as one injective text: each value as text, ``%`` and ``:`` percent-encoded, joined by ``:``.

    Null as soon as one value is null.
    """
    parts = [escaped(text_of(column, data_type), "%:") for column, data_type in values]
    return reduce(lambda left, right: F.concat(left, F.lit(":"), right), parts)


def text_of(column: Column, data_type: DataType) -> Column:
    """One value as text. The session's time zone must be UTC, which the service sees to."""
    if isinstance(data_type, TimestampType):
        return F.date_format(column, TIMESTAMP_FORMAT)
    if isinstance(data_type, TimestampNTZType):
        return F.date_format(column, TIMESTAMP_NTZ_FORMAT)
    if isinstance(data_type, BinaryType):
        return F.base64(column)
    return column.cast("string")


def escaped(text: Column, characters: str) -> Column:
    """Percent-encode the given ASCII characters (``%`` first, so that it stays injective)."""
    return reduce(lambda c, char: F.replace(c, F.lit(char), F.lit(f"%{ord(char):02X}")), characters, text)


def _exact(data_type: DataType) -> DataType:
    """The type to cast to so that no JSON reader rounds: long decimals become text, at any depth."""
    if isinstance(data_type, DecimalType) and data_type.precision > EXACT_DIGITS:
        return StringType()
    if isinstance(data_type, ArrayType):
        return ArrayType(_exact(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, MapType):
        return MapType(_exact(data_type.keyType), _exact(data_type.valueType), data_type.valueContainsNull)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _exact(f.dataType), f.nullable) for f in data_type.fields])
    return data_type
