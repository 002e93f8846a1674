"""Spark expressions that turn a row into text in the JVM: the key text and the JSON form of a row.

JSON form: timestamps in UTC with microseconds, binary as base64, nulls kept, decimals exact in every reader: a number
up to 15 digits of precision (what a double holds exactly), text above. NaN and infinities, for which JSON has no number,
are the text ``to_json`` gives them. Keys of a map are texts as ``text_of`` gives them.
docs/types.md has it type by type. ``to_json`` by itself cuts microseconds, uses the session zone, and writes a map's key as
what Spark holds inside: 19723 for a date, an object's address for a binary.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from connectors.change import ROW

EXACT_DIGITS: Final = 15
NESTED: Final = (ArrayType, MapType, StructType, VariantType)
KEYLESS: Final = (*NESTED, NullType)
"""Types no key column may have: nothing tells two values of them apart for ever, or there is none."""
UNESCAPED: Final = (IntegralType, BooleanType, DateType)
"""Their text never holds a character that a key text escapes."""
PLAIN_KEYS: Final = (StringType, IntegralType, BooleanType, FloatType, DoubleType)
"""Keys of a map that ``to_json`` writes as ``text_of`` would."""
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
    told = _with_text_keys(data_type)
    safe = _exact(told)
    column = _text_keys(column, data_type)
    return F.to_json(column.cast(safe) if safe != told else column, JSON_OPTIONS)


def content_of(row: Column, schema: StructType) -> Column:
    """JSON text of a row to tell rows apart by, not to be shown.

    Nulls are left out, and decimals are numbers of any length: a column added later, or a decimal of more digits, changes
    no row's text.
    """
    return F.to_json(_text_keys(row, schema), {**JSON_OPTIONS, "ignoreNullFields": "true"})


def key_text(values: list[tuple[Column, DataType]]) -> Column:
    """Key columns as one injective text: each value as text, ``%`` and ``:`` percent-encoded, joined by ``:``.

    Null as soon as one value is null. A string that is no UTF-8, which Delta may hold and no sink shows, is ``%!`` and its
    bytes in hexadecimal. Types must not be ``KEYLESS``.
    """
    parts = [_key_part(column, data_type) for column, data_type in values]
    return reduce(lambda left, right: F.concat(left, F.lit(":"), right), parts)


def _key_part(column: Column, data_type: DataType) -> Column:
    if isinstance(data_type, UNESCAPED):
        return text_of(column, data_type)
    text = escaped(text_of(column, data_type), "%:")
    if isinstance(data_type, StringType):
        return F.when(F.is_valid_utf8(column), text).otherwise(F.concat(F.lit("%!"), F.hex(column)))
    return text


def text_of(column: Column, data_type: DataType) -> Column:
    """One value as text. The session's time zone must be UTC, which the service sees to."""
    if isinstance(data_type, NESTED):
        return json_of(column, data_type)
    if isinstance(data_type, TimestampType):
        return F.date_format(column, TIMESTAMP_FORMAT)
    if isinstance(data_type, TimestampNTZType):
        return F.date_format(column, TIMESTAMP_NTZ_FORMAT)
    if isinstance(data_type, BinaryType):
        return F.replace(F.base64(column), F.lit("\r\n"), F.lit(""))  # Spark breaks the line every 76 characters
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


def _with_text_keys(data_type: DataType) -> DataType:
    """The type after ``_text_keys``."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_with_text_keys(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, MapType):
        key = data_type.keyType if isinstance(data_type.keyType, PLAIN_KEYS) else StringType()
        return MapType(key, _with_text_keys(data_type.valueType), data_type.valueContainsNull)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _with_text_keys(f.dataType), f.nullable) for f in data_type.fields])
    return data_type


def _text_keys(column: Column, data_type: DataType) -> Column:
    """Turn keys of maps into text, at any depth, and leave all else as it is."""
    if _with_text_keys(data_type) == data_type:
        return column
    if isinstance(data_type, ArrayType):
        return F.transform(column, lambda element: _text_keys(element, data_type.elementType))
    if isinstance(data_type, MapType):
        if _with_text_keys(data_type.valueType) != data_type.valueType:
            column = F.transform_values(column, lambda _, value: _text_keys(value, data_type.valueType))
        if isinstance(data_type.keyType, PLAIN_KEYS):
            return column
        return F.transform_keys(column, lambda key, _: text_of(key, data_type.keyType))
    assert isinstance(data_type, StructType)
    fields = [_text_keys(column.getField(f.name), f.dataType).alias(f.name) for f in data_type.fields]
    return F.when(column.isNotNull(), F.struct(*fields))
