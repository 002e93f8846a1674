"""Operations that change a table's columns. RESTORE never returns to a version before one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.oracle.history import Act
    from tests.oracle.table import Table


def add_column(table: Table, act: Act) -> None:
    name = f"extra_{len(table.columns)}"
    table.sql(f"ALTER TABLE {{t}} ADD COLUMNS ({name} STRING)")
    table.schema_changed(name)


def add_nested_column(table: Table, act: Act) -> None:
    """First, last, or after any field of the struct; the first time the struct itself."""
    table.capture()
    if not table.fields:
        table.sql("ALTER TABLE {t} ADD COLUMNS (detail STRUCT<a: STRING, z: STRING>)")
        table.fields += ["a", "z"]
        table.schema_changed("detail")
        return
    place, name = act.a % (len(table.fields) + 1), f"n{len(table.fields)}"
    where = f"AFTER {table.fields[place - 1]}" if place else "FIRST"
    table.sql(f"ALTER TABLE {{t}} ADD COLUMNS (detail.{name} STRING {where})")
    table.fields.insert(place, name)
    table.schema_changed()


def widen_type(table: Table, act: Act) -> None:
    if not table.widened:
        if not table.shape.type_widening:
            table.set_properties(**{"delta.enableTypeWidening": "true"})
        table.capture()  # a batch of the feed can't reach over it
        table.sql("ALTER TABLE {t} ALTER COLUMN amount TYPE BIGINT")
        table.widened = True
        table.schema_changed()


def map_columns(table: Table, act: Act) -> None:
    if not table.mapped:
        table.capture()
        table.set_properties(**{"delta.columnMapping.mode": "name"})
        table.mapped = True
        table.schema_changed()
        table.replayable_from = table.version  # a stream can't reach over it
