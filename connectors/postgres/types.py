r"""Map Spark types to PostgreSQL types, and build the text of values for COPY in the JVM.

COPY separates columns by tabs, and rows by line breaks. ``\N`` is null. A date is its Julian day, which PostgreSQL reads for
every year, and which Spark computes without a calendar. Arrays of simple values are arrays, every other
nested value is ``jsonb`` in the JSON form of ``connectors.rendering``.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as in connectors.rendering
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from connectors.rendering import NESTED, json_of, json_type, parsed_text
from connectors.type_widening import WHOLE, widens

NULL: Final = "\\N"
ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""Characters that COPY gives a meaning, the backslash first, and what stands for them in a value."""
NEGATIVE_ZERO: Final = "-0.0, which equals key 0.0"
"""A text that is no number. The reason of the dead letter quotes it."""
RAW: Final = "raw "
"""Prefix of the name of a column of texts that a worker escapes (``writer.body_of``)."""
JULIAN_EPOCH: Final = 2_440_588
"""The Julian day of 1970-01-01."""
DAY: Final = 86_400_000_000
"""Microseconds of a day."""
_NAMES: Final = {
    "boolean": "boolean", "byte": "smallint", "short": "smallint", "integer": "integer", "long": "bigint",
    "float": "real", "double": "double precision", "string": "text", "binary": "bytea", "date": "date",
    "timestamp": "timestamp with time zone", "timestamp_ntz": "timestamp without time zone", "void": "text",
}  # fmt: skip
_DELTA: Final = {held: delta for delta, held in _NAMES.items() if delta not in {"byte", "void"}}


def postgres_type(data_type: DataType) -> str:
    """Return the type of the column that the sink creates, as ``format_type`` of PostgreSQL writes it."""
    if isinstance(data_type, ArrayType) and not isinstance(data_type.elementType, (*NESTED, NullType)):
        return f"{postgres_type(data_type.elementType)}[]"
    if isinstance(data_type, NESTED):
        return "jsonb"
    if isinstance(data_type, DecimalType):
        return f"numeric({data_type.precision},{data_type.scale})"
    return _NAMES.get(str(data_type.jsonValue()), "text")  # char(n), varchar(n), intervals, times of day


def accepts(held: str, wanted: str) -> bool:
    """Return whether a column of type ``held`` holds every value of a column of type ``wanted``."""
    if held == wanted:
        return True
    if held.endswith("[]") and wanted.endswith("[]"):
        return accepts(held[:-2], wanted[:-2])
    if held == "numeric":
        return wanted.startswith("numeric(") or _DELTA.get(wanted) in WHOLE
    if wanted.startswith("vector("):  # another schema may hold the extension
        return held.rpartition(".")[2] == wanted
    same = {"text": held.startswith("character varying"), "jsonb": held == "json"}
    return same.get(wanted, is_widening(wanted, held))


def is_widening(held: str, wanted: str) -> bool:
    """Return whether a column of type ``held`` may become ``wanted``, since that is a widening of the source column."""
    if held.endswith("[]") and wanted.endswith("[]"):
        return is_widening(held[:-2], wanted[:-2])
    return widens(_delta_type(held), _delta_type(wanted))


def _delta_type(held: str) -> str:
    return held.replace("numeric", "decimal") if held.startswith("numeric(") else _DELTA.get(held, held)


def is_raw(data_type: DataType) -> bool:
    """Return whether a worker escapes the values of a column.

    Spark searches each text for each character, byte by byte. A worker searches all texts of a chunk at once, and mostly
    finds nothing to escape.
    """
    return isinstance(data_type, StringType)


def copy_line(columns: list[Column], names: int) -> Column:
    """Return the end of a line of COPY: the texts of ``columns``, then nulls up to ``names`` columns."""
    tab, null = F.lit("\t"), F.lit(NULL)
    parts = [part for column in columns for part in (tab, F.coalesce(column, null))]
    return F.concat(*parts[1:], F.lit(f"\t{NULL}" * (names - len(columns)) + "\n"))


def copy_text(column: Column, data_type: DataType) -> Column:
    """Return the text of a value in a line of COPY; null for null.

    A text is the value of a key column, since a worker escapes the others. A key that is no UTF-8 stays as it is, and the
    server refuses it: with replacement characters, several keys would be one.
    """
    if isinstance(data_type, NullType):
        return F.lit(None).cast("string")
    if isinstance(data_type, BinaryType):
        return F.concat(F.lit("\\\\x"), F.hex(column))
    plain = isinstance(data_type, (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType))
    text = _text(column, data_type)
    return text if plain else _escaped(text, ESCAPES)


def vector_text(column: Column) -> Column:
    """Return an array of numbers as pgvector reads it; a null element gives a text that pgvector refuses."""
    return column.cast("string")


def key_value(key: Column, position: int, data_type: DataType) -> Column:
    """Return the text for COPY of a key column, from the key text of a change: the inverse of ``rendering.key_text``."""
    part = F.split(key, ":").getItem(position)
    text = F.replace(F.replace(part, F.lit("%3A"), F.lit(":")), F.lit("%25"), F.lit("%"))
    if isinstance(data_type, StringType):  # ``%!`` marks bytes that are no UTF-8
        invalid = F.unhex(F.substring(part, 3, 2**31 - 1)).cast("string")
        return copy_text(F.when(F.startswith(part, F.lit("%!")), invalid).otherwise(text), data_type)
    return copy_text(parsed_text(text, data_type), json_type(data_type))


def one_zero(key: Column, data_type: DataType) -> Column:
    """Return the text of a key column, with a text that the server refuses for -0.0: its index takes -0.0 and 0.0 as equal."""
    if not isinstance(data_type, FractionalType):
        return key
    return F.when(key == F.lit("-0.0"), F.lit(NEGATIVE_ZERO)).otherwise(key)


def _text(column: Column, data_type: DataType) -> Column:
    if isinstance(data_type, (DateType, TimestampType, TimestampNTZType)):
        return _moment(column, data_type)
    if isinstance(data_type, ArrayType) and not isinstance(data_type.elementType, (*NESTED, NullType)):
        element = data_type.elementType
        if isinstance(element, (IntegralType, FractionalType, BooleanType)):
            return F.translate(column.cast("string"), "[]", "{}")
        quoted = F.transform(column, lambda each: F.coalesce(_quoted(each, element), F.lit("NULL")))
        return F.concat(F.lit("{"), F.array_join(quoted, ","), F.lit("}"))
    if isinstance(data_type, NESTED):
        return json_of(column, data_type)
    return column.cast("string")


def _quoted(column: Column, data_type: DataType) -> Column:
    if isinstance(data_type, BinaryType):
        return F.concat(F.lit('"\\\\x'), F.hex(column), F.lit('"'))
    text = _text(column, data_type)
    if isinstance(data_type, StringType):
        text = F.make_valid_utf8(text)
    return F.concat(F.lit('"'), _escaped(text, {"\\": "\\\\", '"': '\\"'}), F.lit('"'))


def _escaped(text: Column, characters: dict[str, str]) -> Column:
    for character, escape in characters.items():
        text = F.replace(text, F.lit(character), F.lit(escape))
    return text


def _moment(column: Column, data_type: DataType) -> Column:
    """Return a date as ``J`` and its Julian day; a timestamp also has the time of the day, as ``hhmmss.ffffff``."""
    if isinstance(data_type, DateType):
        return F.concat(F.lit("J"), (F.unix_date(column).cast("long") + JULIAN_EPOCH).cast("string"))
    micros = F.unix_micros(column.cast("timestamp"))  # the time zone of the session is UTC
    time = F.pmod(micros, F.lit(DAY))
    second = _quotient(time, 1_000_000)
    clock = _quotient(second, 3600) * 10_000 + _quotient(second, 60) % 60 * 100 + second % 60
    day = (_quotient(micros - time, DAY) + JULIAN_EPOCH).cast("string")
    return F.concat(F.lit("J"), day, F.lit(" "), _six_digits(clock), F.lit("."), _six_digits(time % 1_000_000))


def _quotient(number: Column, divisor: int) -> Column:
    return F.call_function("div", number, F.lit(divisor).cast("long"))


def _six_digits(number: Column) -> Column:
    return F.substring((number + 1_000_000).cast("string"), 2, 6)


def value_of(text: Column, data_type: DataType) -> Column:
    """Return the value of a column from the text that ``view`` selects, null if it is no text of the type."""
    if isinstance(data_type, NullType):
        return F.lit(None)
    if isinstance(data_type, ArrayType) and not isinstance(data_type.elementType, (*NESTED, NullType)):
        texts = F.from_json(text, "array<string>")
        return F.transform(texts, lambda each: value_of(each, data_type.elementType))
    if isinstance(data_type, NESTED):
        return parsed_text(text, data_type)
    if isinstance(data_type, BinaryType):
        return F.unhex(F.substring(text, 3, 2**31 - 1))
    if isinstance(data_type, (DateType, TimestampType, TimestampNTZType)):
        year = (F.regexp_extract(text, r"^(\d+)-", 1).try_cast("long") - 1).cast("string")
        before = F.concat(F.lit("-"), F.lpad(year, 4, "0"), F.regexp_extract(text, r"^\d+(-.*) BC$", 1))
        text = F.when(F.endswith(text, F.lit(" BC")), before).otherwise(text)
        long_year = F.concat(F.lit("+"), text)
        text = F.when(F.regexp_like(text, F.lit(r"^\d{5}")), long_year).otherwise(text)
    if isinstance(data_type, TimeType):  # a cast to it is no part of Spark 4.2, and a parser of JSON reads it
        value = StructType([StructField("value", data_type)])
        return F.from_json(F.to_json(F.struct(text.alias("value"))), value).getField("value")
    return text.try_cast(data_type)
