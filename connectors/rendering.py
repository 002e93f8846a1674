"""Build Spark expressions that render a row as text in the JVM: the key text and the JSON form.

The JSON form has timestamps in UTC with microseconds, binary as base64, and nulls. A decimal of up to 15 digits is a number,
since a double holds it exactly; a longer one is text. NaN and infinities are the text of Spark's ``to_json``, since JSON has
no number for them. Keys of a map are texts of ``text_of``. docs/types.md lists every type. Spark's ``to_json`` alone truncates
microseconds, uses the session's time zone, and writes the internal value of a map's key: 19723 for a date.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from collections.abc import Callable

EXACT_DIGITS: Final = 15
NESTED: Final = (ArrayType, MapType, StructType, VariantType)
KEYLESS: Final = (*NESTED, NullType)
"""Types that a key column may not have, since two of their values have no stable difference."""
UNESCAPED: Final = (IntegralType, BooleanType, DateType)
"""Types whose text never holds a character that a key text escapes."""
PLAIN_KEYS: Final = (StringType, IntegralType, BooleanType, FloatType, DoubleType)
"""Types of a map's keys for which ``to_json`` writes the same text as ``text_of``."""
TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
TIMESTAMP_NTZ_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"

JSON_OPTIONS: Final = {
    "timeZone": "UTC",
    "timestampFormat": TIMESTAMP_FORMAT,
    "timestampNTZFormat": TIMESTAMP_NTZ_FORMAT,
    "ignoreNullFields": "false",
}
_CONTENT_OPTIONS: Final = {**JSON_OPTIONS, "ignoreNullFields": "true"}
# The text of a date may remain from before its column became a timestamp.
_PARSE_OPTIONS: Final = {
    "timeZone": "UTC",
    "timestampFormat": TIMESTAMP_FORMAT,
    "timestampNTZFormat": "yyyy-MM-dd['T'HH:mm:ss.SSSSSS]",
}


def json_row(schema: StructType) -> Column:
    """Return the JSON text of the column ``row``. ``schema`` is its type."""
    return json_of(F.col(ROW), schema)


def json_of(column: Column, data_type: DataType) -> Column:
    """Return the JSON text of a struct, array, map or variant."""
    keyed = _with_text_keys(data_type)
    written, column = _mapped(keyed, _exact, lambda key: key), _text_keys(column, data_type)
    if isinstance(written, ArrayType | MapType | StructType) and written != keyed:
        column = column.cast(written.toNullable())  # else Spark refuses a variant that can't be null
    return F.to_json(column, JSON_OPTIONS)


def json_type(data_type: DataType) -> DataType:
    """Return the type of a value that is parsed from its JSON form: keys of maps are text, and everything is nullable."""
    parsed = _mapped(data_type, lambda leaf: leaf, lambda _: StringType())
    return parsed.toNullable() if isinstance(parsed, ArrayType | MapType | StructType) else parsed


def in_json_type(column: Column, data_type: DataType) -> Column:
    """Return a value in its ``json_type``, so that it compares with a value of ``parsed_row``."""
    kind = json_type(data_type)
    if kind.simpleString() == data_type.simpleString() and not has_variant(data_type):
        return column
    if isinstance(data_type, StructType):  # by field: casts of whole rows name every column for each column
        fields = [in_json_type(column.getField(f.name), f.dataType).alias(f.name) for f in data_type.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    column = _text_keys(_with_variants(column, data_type, _parsed_again), data_type)
    return column if _with_text_keys(data_type).simpleString() == kind.simpleString() else column.cast(kind)


def parsed_row(body: str, schema: StructType) -> Column:
    """Return the row of a JSON text, in its ``json_type``: the inverse of ``json_row``. Null if the text is no JSON object.

    A value of another JSON type than its column is null, except that a text column takes any value as text.
    """
    return _parsed(F.col(body), schema)


def parsed_text(text: Column, data_type: DataType) -> Column:
    """Return the value of a text, in its ``json_type``: the inverse of ``text_of``. Null if it is no text of the type."""
    if isinstance(data_type, NESTED):
        return _parsed(text, data_type)
    if isinstance(data_type, NullType):
        return F.lit(None)
    if isinstance(data_type, TimestampType):
        return F.try_to_timestamp(text, F.lit(TIMESTAMP_FORMAT))
    if isinstance(data_type, BinaryType):
        return F.try_to_binary(text, F.lit("base64"))
    return text.try_cast(json_type(data_type))


def _parsed(text: Column, data_type: DataType) -> Column:
    parsed = json_type(data_type)
    value = F.from_json(text, parsed.json(), _PARSE_OPTIONS)
    if not has_variant(parsed):
        return value
    # The variable of a lambda is a value. Without it Spark would parse the text again for each field.
    return F.transform(F.array(value), lambda each: _with_variants(each, parsed, lambda variant: variant)).getItem(0)


def has_variant(data_type: DataType) -> bool:
    """Return whether a type contains a variant at any depth."""
    return '"variant"' in data_type.json()


def _parsed_again(variant: Column) -> Column:
    """Return the variant that has the types of parsed JSON: a double 5.0 has the text of a decimal."""
    return F.try_parse_json(F.to_json(variant))


def _with_variants(column: Column, data_type: DataType, convert: Callable[[Column], Column]) -> Column:
    """Convert each variant at any depth. A JSON null becomes null, since both have the same JSON."""
    if isinstance(data_type, VariantType):
        return F.when(~F.is_variant_null(column), convert(column))
    if not has_variant(data_type):
        return column
    if isinstance(data_type, ArrayType):
        return F.transform(column, lambda element: _with_variants(element, data_type.elementType, convert))
    if isinstance(data_type, MapType):
        return F.transform_values(column, lambda _, value: _with_variants(value, data_type.valueType, convert))
    assert isinstance(data_type, StructType)
    fields = [_with_variants(column.getField(f.name), f.dataType, convert).alias(f.name) for f in data_type.fields]
    return F.when(column.isNotNull(), F.struct(*fields))


def content_of(row: Column, schema: StructType) -> Column:
    """Return a JSON text that identifies the content of a row. It is compared and never displayed.

    It leaves out nulls, writes decimals as numbers of any length, and sorts the entries of maps. A column added later, a
    decimal of more digits, or a target that orders the entries of a map itself, therefore changes no row's text.
    """
    return F.to_json(_sorted_maps(row, schema), _CONTENT_OPTIONS)


def _sorted_maps(column: Column, data_type: DataType) -> Column:
    """Replace each map, at any depth, by the sorted texts of its entries."""
    if '"map"' not in data_type.json():
        return column
    if isinstance(data_type, ArrayType):
        return F.transform(column, lambda element: _sorted_maps(element, data_type.elementType))
    if isinstance(data_type, MapType):
        entry = StructType().add("key", data_type.keyType).add("value", data_type.valueType)
        texts = F.transform(F.map_entries(column), lambda each: F.to_json(_sorted_maps(each, entry), _CONTENT_OPTIONS))
        return F.array_sort(texts)
    assert isinstance(data_type, StructType)
    fields = [_sorted_maps(column.getField(f.name), f.dataType).alias(f.name) for f in data_type.fields]
    return F.when(column.isNotNull(), F.struct(*fields))


def key_text(values: list[tuple[Column, DataType]]) -> Column:
    """Return the key text: each value as text, ``%`` and ``:`` percent-encoded, joined by ``:``. It is injective.

    It is null if a value is null. A string that is not UTF-8 becomes ``%!`` and its bytes in hexadecimal.
    Types must not be ``KEYLESS``.
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
    """Return a value as text. The session's time zone must be UTC; the service sets it."""
    if isinstance(data_type, NESTED):
        return json_of(column, data_type)
    if isinstance(data_type, TimestampType):
        return F.date_format(column, TIMESTAMP_FORMAT)
    if isinstance(data_type, TimestampNTZType):
        return F.date_format(column, TIMESTAMP_NTZ_FORMAT)
    if isinstance(data_type, BinaryType):  # Spark inserts a line break after every 76 characters
        return F.replace(F.base64(column), F.lit("\r\n"), F.lit(""))
    return column.cast("string")


def escaped(text: Column, characters: str) -> Column:
    """Percent-encode the given ASCII characters (``%`` first, so that it stays injective)."""
    return reduce(lambda c, char: F.replace(c, F.lit(char), F.lit(f"%{ord(char):02X}")), characters, text)


def _mapped(data_type: DataType, leaf: Callable[[DataType], DataType], key: Callable[[DataType], DataType]) -> DataType:
    """Return the type with each type that holds no other replaced by ``leaf``, and each type of a map's keys by ``key``."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_mapped(data_type.elementType, leaf, key), data_type.containsNull)
    if isinstance(data_type, MapType):
        return MapType(key(data_type.keyType), _mapped(data_type.valueType, leaf, key), data_type.valueContainsNull)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _mapped(f.dataType, leaf, key), f.nullable) for f in data_type.fields])
    return leaf(data_type)


def _exact(data_type: DataType) -> DataType:
    """Return the type of a value with long decimals as text, so that no JSON reader rounds them."""
    return StringType() if isinstance(data_type, DecimalType) and data_type.precision > EXACT_DIGITS else data_type


def _with_text_keys(data_type: DataType) -> DataType:
    """Return the type after ``_text_keys``."""
    return _mapped(data_type, lambda leaf: leaf, lambda key: key if isinstance(key, PLAIN_KEYS) else StringType())


def _text_keys(column: Column, data_type: DataType) -> Column:
    """Convert keys of maps to text at any depth and keep everything else."""
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
