"""Run every kind of operation on a real Delta table. Each keeps keys unique, as a route requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.oracle.growth import add_column, add_nested_column, map_columns, widen_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tests.oracle.history import Act
    from tests.oracle.table import Table

KEYS = 24
TEXTS = ("", None, "ü 🚀", "it''s", 'q"\\\\')


def picked(act: Act, ids: Iterable[int]) -> list[int]:
    """Some of the ids: about a half, a third or a quarter."""
    return [n for n in ids if (n * 5 + act.a) % (2 + act.b % 3) == 0]


def listed(ids: Collection[int]) -> str:
    return ", ".join(map(str, ids)) or "NULL"


def region_of(table: Table, act: Act) -> str:
    return table.regions[act.b % len(table.regions)]


def append(table: Table, act: Act) -> None:
    table.write(table.fresh(act, picked(act, table.absent)), files=1 + act.b % 3, mode="append")


def append_twins(table: Table, act: Act) -> None:
    """Each row several times, in several files, where the table's rows have no key."""
    ids, copies = (range(KEYS), 2 + act.b % 3) if table.shape.twins else (table.absent, 1)
    rows = table.fresh(act, ids[act.a % 8 :: 8])
    table.write(rows * copies, files=max(2, copies), mode="append")


def insert(table: Table, act: Act) -> None:
    table.view("fresh", table.fresh(act, picked(act, table.absent)))
    table.sql(f"INSERT INTO {{t}} ({table.columns_text}) SELECT {table.columns_text} FROM fresh")


def update(table: Table, act: Act) -> None:
    where = f"id IN ({listed(picked(act, table.ids))})"
    table.sql(f"UPDATE {{t}} SET name = concat('updated {table.version} ', id), amount = amount + 1 WHERE {where}")


def update_to_same(table: Table, act: Act) -> None:
    table.sql(f"UPDATE {{t}} SET name = name WHERE id IN ({listed(picked(act, table.ids))})")


def swap_keys(table: Table, act: Act) -> None:
    """Two keys change places; where only one of them exists, its row moves to the other."""
    one, other = act.a, act.b
    table.sql(f"UPDATE {{t}} SET id = CASE id WHEN {one} THEN {other} ELSE {one} END WHERE id IN ({one}, {other})")


def rotate_keys(table: Table, act: Act) -> None:
    table.sql(f"UPDATE {{t}} SET id = (id + {1 + act.a}) % {KEYS}")


def move_partition(table: Table, act: Act) -> None:
    table.sql(f"UPDATE {{t}} SET region = '{region_of(table, act)}' WHERE id IN ({listed(picked(act, table.ids))})")


def delete_rows(table: Table, act: Act) -> None:
    table.sql(f"DELETE FROM {{t}} WHERE id IN ({listed(picked(act, table.ids))})")


def delete_partition(table: Table, act: Act) -> None:
    table.sql(f"DELETE FROM {{t}} WHERE region = '{region_of(table, act)}'")


def delete_all(table: Table, act: Act) -> None:
    table.sql("DELETE FROM {t}")


def truncate(table: Table, act: Act) -> None:
    table.sql("TRUNCATE TABLE {t}")


def merge(table: Table, act: Act) -> None:
    """Every clause there is."""
    table.view("fresh", table.fresh(act, picked(act, range(KEYS))))
    table.sql(
        "MERGE INTO {t} t USING fresh s ON t.id = s.id "
        f"WHEN MATCHED AND t.id % 3 = {act.b % 3} THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = s.name, amount = s.amount "
        f"WHEN NOT MATCHED THEN INSERT ({table.columns_text}) VALUES ({table.columns_of('s')}) "
        f"WHEN NOT MATCHED BY SOURCE AND t.id % 5 = {act.a % 5} THEN DELETE "
        f"WHEN NOT MATCHED BY SOURCE AND t.id % 5 = {act.b % 5} THEN UPDATE SET name = concat('left ', t.id)"
    )


def merge_same_key(table: Table, act: Act) -> None:
    """A key is deleted and inserted in one version."""
    both = picked(act, table.ids)
    table.view("fresh", table.fresh(act, both))
    table.sql(
        "MERGE INTO {t} t USING fresh s ON t.id = s.id AND t.id < 0 "
        f"WHEN NOT MATCHED THEN INSERT ({table.columns_text}) VALUES ({table.columns_of('s')}) "
        f"WHEN NOT MATCHED BY SOURCE AND t.id IN ({listed(both)}) THEN DELETE"
    )


def merge_inserts(table: Table, act: Act) -> None:
    table.view("fresh", table.fresh(act, picked(act, range(KEYS))))
    table.sql(
        "MERGE INTO {t} t USING fresh s ON t.id = s.id "
        f"WHEN NOT MATCHED THEN INSERT ({table.columns_text}) VALUES ({table.columns_of('s')})"
    )


def merge_nothing(table: Table, act: Act) -> None:
    table.view("fresh", table.fresh(act, picked(act, range(KEYS))))
    table.sql("MERGE INTO {t} t USING fresh s ON t.id = s.id AND t.id < 0 WHEN MATCHED THEN DELETE")


def overwrite(table: Table, act: Act) -> None:
    """Overwrite the table with new rows and some unchanged rows."""
    kept = [row for number, row in sorted(table.rows.items()) if number % 3 == act.b % 3]
    new = table.fresh(act, [n for n in picked(act, range(KEYS)) if n % 3 != act.b % 3])
    table.write([*kept, *new], files=1 + act.a % 3, mode="overwrite")


def insert_overwrite(table: Table, act: Act) -> None:
    table.view("fresh", table.fresh(act, picked(act, range(KEYS))))
    table.sql(f"INSERT OVERWRITE {{t}} ({table.columns_text}) SELECT {table.columns_text} FROM fresh")


def replace_where_partition(table: Table, act: Act) -> None:
    region = region_of(table, act)
    free = [n for n in range(KEYS) if n not in table.rows or table.rows[n]["region"] == region]
    rows = [{**row, "region": region} for row in table.fresh(act, picked(act, free))]
    table.write(rows, files=1 + act.a % 2, mode="overwrite", replaceWhere=f"region = '{region}'")


def replace_where_data(table: Table, act: Act) -> None:
    def beyond(row: dict) -> bool:
        return row["amount"] is not None and row["amount"] >= 50

    free = [n for n in range(KEYS) if n not in table.rows or beyond(table.rows[n])]
    rows = [row for row in table.fresh(act, picked(act, free)) if beyond(row)]
    table.write(rows, files=1, mode="overwrite", replaceWhere="amount >= 50")


def dynamic_overwrite(table: Table, act: Act) -> None:
    region = region_of(table, act)
    if table.shape.layout == "region":
        free = [n for n in range(KEYS) if n not in table.rows or table.rows[n]["region"] == region]
    else:  # a bucket's partition holds all the keys it may hold
        free = list(range(KEYS))
    rows = [{**row, "region": region} for row in table.fresh(act, picked(act, free))]
    if rows:
        table.write(rows, files=1 + act.a % 2, mode="overwrite", partitionOverwriteMode="dynamic")


def restore(table: Table, act: Act) -> None:
    if table.version > table.restorable_from:
        back = table.restorable_from + act.a % (table.version - table.restorable_from)
        table.sql(f"RESTORE {{t}} TO VERSION AS OF {back}")


def optimize(table: Table, act: Act) -> None:
    table.sql("OPTIMIZE {t}")


def zorder(table: Table, act: Act) -> None:
    table.sql("OPTIMIZE {t}" if table.shape.layout == "clustered" else "OPTIMIZE {t} ZORDER BY (name)")


def purge(table: Table, act: Act) -> None:
    table.sql("REORG TABLE {t} APPLY (PURGE)")


def toggle_deletion_vectors(table: Table, act: Act) -> None:
    table.vectors |= bool(act.a % 2)
    table.set_properties(**{"delta.enableDeletionVectors": "true" if act.a % 2 else "false"})


def set_property(table: Table, act: Act) -> None:
    table.set_properties(**{"delta.logRetentionDuration": f"interval {30 + act.a} days", "team": f"number {act.b}"})


def in_commit_timestamps(table: Table, act: Act) -> None:
    table.set_properties(**{"delta.enableInCommitTimestamps": "true"})


def add_constraint(table: Table, act: Act) -> None:
    table.sql(f"ALTER TABLE {{t}} ADD CONSTRAINT positive_{table.version} CHECK (id >= 0)")


def append_with_new_column(table: Table, act: Act) -> None:
    rows = table.fresh(act, picked(act, table.absent))
    if rows:
        name = f"extra_{len(table.columns)}"
        table.columns.append(name)
        table.write([{**row, name: f"new {row['id']}"} for row in rows], files=1, mode="append", mergeSchema="true")
        table.schema_changed()


def vacuum(table: Table, act: Act) -> None:
    table.vacuum()


OPERATIONS: dict[str, Callable[[Table, Act], None]] = {
    function.__name__: function
    for function in (
        append,
        append_twins,
        insert,
        update,
        update_to_same,
        swap_keys,
        rotate_keys,
        move_partition,
        delete_rows,
        delete_partition,
        delete_all,
        truncate,
        merge,
        merge_same_key,
        merge_inserts,
        merge_nothing,
        overwrite,
        insert_overwrite,
        replace_where_partition,
        replace_where_data,
        dynamic_overwrite,
        restore,
        optimize,
        zorder,
        purge,
        toggle_deletion_vectors,
        set_property,
        in_commit_timestamps,
        add_constraint,
        add_column,
        add_nested_column,
        append_with_new_column,
        widen_type,
        map_columns,
        vacuum,
    )
}
