"""Decide which type changes are widenings, which Delta applies without a rewrite of files (protocol: Type Widening)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from connectors.names import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType, StructType

WHOLE: Final = ("byte", "short", "integer", "long")
"""Integer types in the order in which Delta widens them. A number has the same text in each type."""

_DIGITS: Final = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""Digits before the decimal point that a decimal needs to hold every value of the type."""
_OTHERS: Final = {("float", "double"), ("byte", "double"), ("short", "double"), ("integer", "double")}
_DATES: Final = ("date", "timestamp_ntz")


def widens(old: str, new: str) -> bool:
    """Return whether ``new`` is wider than ``old``. Both are type names of Delta's log: ``integer``, ``decimal(10,2)``."""
    if old in WHOLE and new in WHOLE:
        return WHOLE.index(old) < WHOLE.index(new)
    to = _decimal(new)
    if to and old in _DIGITS:
        return to[0] - to[1] >= _DIGITS[old]
    was = _decimal(old)
    if to and was:
        return to != was and to[1] >= was[1] and to[0] - to[1] >= was[0] - was[1]
    return (old, new) in _OTHERS or (old, new) == _DATES


def widened(held: StructType, wanted: StructType) -> Iterator[tuple[str, DataType]]:
    """Yield the SQL path and the wanted type of every column and field that is too narrow in ``held``."""
    names = {field.name.lower(): field for field in held}
    for field in wanted:
        known = names.get(field.name.lower())
        if known is not None:
            yield from _widened(known.dataType, field.dataType, quote_identifier(known.name))


def _widened(held: DataType, wanted: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(held, StructType) and isinstance(wanted, StructType):
        for inner, data_type in widened(held, wanted):
            yield f"{path}.{inner}", data_type
    elif isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        yield from _widened(held.elementType, wanted.elementType, f"{path}.element")
    elif isinstance(held, MapType) and isinstance(wanted, MapType):
        yield from _widened(held.keyType, wanted.keyType, f"{path}.key")
        yield from _widened(held.valueType, wanted.valueType, f"{path}.value")
    elif widens(str(held.jsonValue()), str(wanted.jsonValue())):
        yield path, wanted


def _decimal(name: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"decimal\((\d+),(-?\d+)\)", name)
    return (int(match[1]), int(match[2])) if match else None
