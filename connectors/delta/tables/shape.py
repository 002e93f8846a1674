"""Convert rows to another schema: reorder the fields of structs at any depth, and cast values to the wider type."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from connectors.delta.tables.errors import unfit
from connectors.names import quote_identifier
from connectors.type_widening import widens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    Fields = Callable[[StructType, StructType], Iterable[tuple[str, DataType | None, DataType | None]]]

Type = TypeVar("Type", bound=DataType)


def merged(held: DataType, given: DataType) -> DataType:
    """Return the type of a column that holds both: fields in the order of ``held``, then those that only ``given`` has.

    A value has the type of ``held`` if that type is wider, else the type of ``given``.
    """
    return _together(held, given, _all_fields)


def compared(held: Type, given: Type) -> Type:
    """Return the type in which values of both are compared: the fields of ``given`` by name, each in the wider type."""
    return _together(held, given, _given_fields)  # type: ignore[return-value]  # two structs make a struct


def fitted(given: StructType, held: StructType) -> StructType:
    """Return the columns of ``given``, each with the type that the column of that name in ``held`` takes."""
    known = _by_name(held)
    fields = ((field, known.get(field.name.lower(), field)) for field in given)
    return StructType([StructField(field.name, merged(own.dataType, field.dataType)) for field, own in fields])


def fit(rows: DataFrame, held: StructType) -> DataFrame:
    """Cast the columns of rows to the types that a table holds."""
    wanted = fitted(rows.schema, held)
    columns = (
        shaped(F.col(quote_identifier(one.name)), one.dataType, other.dataType)
        for one, other in zip(rows.schema, wanted, strict=True)
    )
    return rows.select(*(column.alias(name) for column, name in zip(columns, rows.columns, strict=True)))


def check_fit(given: StructType, held: StructType, path: str) -> None:
    """Raise ``PermanentError`` for a column that a table lacks or holds in another type.

    Spark's writer compares the types, and a transaction of ``transactions`` only the names.
    """
    known = _by_name(held)
    for field in given:
        own = known.get(field.name.lower())
        if own is None or own.dataType.simpleString().lower() != field.dataType.simpleString().lower():
            there = "absent" if own is None else own.dataType.simpleString()
            raise unfit(path, f"{field.name} is {there} there, {field.dataType.simpleString()} now")


def left_over(held: DataType, given: DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of ``held`` that ``given`` lacks, at any depth, in the notation of ALTER TABLE."""
    within = f"{path}." if path else ""
    if isinstance(held, StructType) and isinstance(given, StructType):
        known = _by_name(given)
        for field in held:
            other = known.get(field.name.lower())
            if other is None:
                yield within + field.name
            else:
                yield from left_over(field.dataType, other.dataType, within + field.name)
    elif isinstance(held, ArrayType) and isinstance(given, ArrayType):
        yield from left_over(held.elementType, given.elementType, f"{within}element")
    elif isinstance(held, MapType) and isinstance(given, MapType):
        yield from left_over(held.keyType, given.keyType, f"{within}key")
        yield from left_over(held.valueType, given.valueType, f"{within}value")


def without(struct: StructType, names: Collection[str]) -> StructType:
    return StructType([field for field in struct if field.name not in names])


def shaped(column: Column, given: DataType, wanted: DataType) -> Column:
    """Convert a value to another type: structs field by field, numbers by a cast. A field that ``given`` lacks is null.

    A value whose conversion could lose data keeps its type. Delta then refuses it with the name of its column.
    """
    if given.simpleString() == wanted.simpleString():
        return column
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        known = _by_name(given)
        fields = [_field(column, known.get(field.name.lower()), field) for field in wanted]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return F.transform(column, lambda item: shaped(item, given.elementType, wanted.elementType))
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        if given.keyType.simpleString() != wanted.keyType.simpleString():
            column = F.transform_keys(column, lambda key, _: shaped(key, given.keyType, wanted.keyType))
        return F.transform_values(column, lambda _, value: shaped(value, given.valueType, wanted.valueType))
    return column.cast(wanted) if widens(str(given.jsonValue()), str(wanted.jsonValue())) else column


def _field(struct: Column, given: StructField | None, wanted: StructField) -> Column:
    if given is None:
        return F.lit(None).cast(wanted.dataType).alias(wanted.name)
    return shaped(struct.getField(given.name), given.dataType, wanted.dataType).alias(wanted.name)


def _together(held: DataType | None, given: DataType | None, fields: Fields) -> DataType:
    """Merge two types, of which at most one is None.

    Args:
        held: The type in the table.
        given: The type of the rows.
        fields: Returns the name and both types of each field of two structs.

    """
    if held is None or given is None:
        one = given if held is None else held
        assert one is not None
        return one
    if isinstance(held, StructType) and isinstance(given, StructType):
        joined = ((name, _together(one, other, fields)) for name, one, other in fields(held, given))
        return StructType([StructField(name, data_type) for name, data_type in joined])
    if isinstance(held, ArrayType) and isinstance(given, ArrayType):
        return ArrayType(_together(held.elementType, given.elementType, fields))
    if isinstance(held, MapType) and isinstance(given, MapType):
        key = _together(held.keyType, given.keyType, fields)
        return MapType(key, _together(held.valueType, given.valueType, fields))
    return held if widens(str(given.jsonValue()), str(held.jsonValue())) else given


def _all_fields(held: StructType, given: StructType) -> Iterable[tuple[str, DataType | None, DataType | None]]:
    further = _by_name(given)
    for field in held:
        other = further.pop(field.name.lower(), None)
        yield field.name, field.dataType, other and other.dataType
    for field in further.values():
        yield field.name, None, field.dataType


def _given_fields(held: StructType, given: StructType) -> Iterable[tuple[str, DataType | None, DataType | None]]:
    known = _by_name(held)
    for name, field in sorted(_by_name(given).items()):
        other = known.get(name)
        yield field.name, other and other.dataType, field.dataType


def _by_name(struct: StructType) -> dict[str, StructField]:
    """Return the fields by lower-case name, since Spark and Delta ignore the case of a name."""
    return {field.name.lower(): field for field in struct}
