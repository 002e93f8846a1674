"""Create the tables of a route, or check that an existing table accepts its rows and add what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.sql import SQL, Identifier

from connectors.errors import RECONFIGURE, PermanentError
from connectors.postgres.load import make_key
from connectors.postgres.settings import LONGEST_NAME
from connectors.postgres.target import GUARD_COLUMN, POSITION_COLUMN, TIME_COLUMN, Target
from connectors.postgres.types import accepts, is_widening, postgres_type
from connectors.postgres.vectors import make_index, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg
    from pyspark.sql.types import StructType

    from connectors.settings import Vectors

ORDINARY: Final = "r"
UNLOGGED: Final = "u"
LOST_VALUES: Final = (
    "If the values of a column have no place in the other type, drop the column, then run: cdf-replicator resync {route} (after a "
    "resume it would be null in each row of before). "
)
VECTOR_TYPES: Final = ("real[]", "double precision[]")


@dataclass(frozen=True, slots=True)
class Held:
    """A column of an existing table."""

    type: str
    required: bool
    default: bool
    generated: bool
    deterministic: bool
    """True unless its collation may take different texts as equal."""
    collation: str
    """Empty unless it differs from that of the type. A comparison of other collations can't use the index of a key."""

    @property
    def declared(self) -> str:
        return f"{self.type} COLLATE {self.collation}" if self.collation else self.type


def wanted_types(schema: StructType, target: Target, vectors: Vectors) -> dict[str, str]:
    """Return the type of each column of the row, in their order; raises ``PermanentError`` for a name that can't be a column."""
    reserved = (GUARD_COLUMN, POSITION_COLUMN)
    wrong = [name for name in schema.names if len(name.encode()) > LONGEST_NAME or name in reserved]
    wrong += [name for name in target.keys if name == TIME_COLUMN]  # of the tombstones
    if wrong:
        raise PermanentError(
            f"Column {', '.join(wrong)} can't be a column of table {target}: its name is longer than {LONGEST_NAME} bytes, "
            "or reserved.",
            "Give it another name in RENAME, or leave it out in COLUMNS.",
        )
    types = {field.name: postgres_type(field.dataType) for field in schema.fields}
    for name, (dimension, _) in vectors.items():
        if types.get(name) not in VECTOR_TYPES:
            raise PermanentError(
                f"VECTORS names {name}, which is no column of type array<float> or array<double> of the route.",
                f"Name one of: {', '.join(n for n, t in types.items() if t in VECTOR_TYPES) or 'none'}.",
            )
        types[name] = f"vector({dimension})"
    return types


def align(cursor: psycopg.Cursor[Any], target: Target, types: Mapping[str, str], vectors: Vectors) -> list[str]:
    """Make the table accept rows of these types, and return warnings; raises ``PermanentError`` if an existing table can't."""
    extension = schema_of(cursor, target) if vectors else ""
    types = {name: f"{extension}{kind}" if kind.startswith("vector(") else kind for name, kind in types.items()}
    held = held_columns(cursor, target)
    if held is None:
        declared = [SQL("{} {}").format(Identifier(name), _type(kind)) for name, kind in types.items()]
        cursor.execute(
            target.query(
                "CREATE TABLE {table} ({columns}, {guard} bigint)",
                columns=SQL(", ").join(declared),
            )
        )
    else:
        _check(cursor, target, held, types)
        for name, kind in {**types, GUARD_COLUMN: "bigint"}.items():
            if name not in held:
                _alter(cursor, target, "ALTER TABLE {table} ADD COLUMN {name} {kind}", name, kind)
            elif not accepts(held[name].type, _plain(kind)):
                _alter(cursor, target, "ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind}", name, kind)
    _align_tombstones(cursor, target, types)
    if held is None and cursor.execute(target.query("SELECT FROM {tombstones} LIMIT 1")).rowcount:
        make_key(cursor, target)  # a former table left tombstones, with which a merge compares each row
    generated = [
        f"Column {name} is NOT NULL and generated: if it is null in a row of the key alone, each delete becomes a dead letter"
        for name, column in (held or {}).items()
        if column.required and column.generated and not column.default
    ]
    indexes = (make_index(cursor, target, name, extension, metric) for name, (_, metric) in vectors.items())
    return generated + [warning for warnings in indexes for warning in warnings]


def held_columns(cursor: psycopg.Cursor[Any], target: Target, table: str | None = None) -> dict[str, Held] | None:
    """Return the columns of a table by name; None if the table is absent.

    Raises ``PermanentError`` if it is no ordinary table, or UNLOGGED: the claim is in another table, which a crash does not empty.
    """
    cursor.execute(
        "SELECT c.relkind, c.relpersistence, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "a.atthasdef AND a.attgenerated = '' OR a.attidentity <> '', "
        "a.attgenerated <> '' OR a.attidentity = 'a', coalesce(l.collisdeterministic, true), CASE WHEN a.attcollation <> y.typcollation "
        "THEN l.collnamespace::regnamespace::text || '.' || quote_ident(l.collname) ELSE '' END "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "LEFT JOIN pg_type y ON y.oid = a.atttypid LEFT JOIN pg_collation l ON l.oid = a.attcollation "
        "WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum",
        [target.schema, table or target.table],
    )
    found = cursor.fetchall()
    if not found:
        return None
    kind, persistence = found[0][:2]
    if kind != ORDINARY:
        raise PermanentError(
            f"{target} is not an ordinary table.",
            "Name another table in TARGET_TABLE: a view or a partitioned table can't be one.",
        )
    if persistence == UNLOGGED:
        name = Identifier(target.schema, table or target.table).as_string()
        raise PermanentError(
            f"Table {name} is UNLOGGED: a crash of the server empties it.",
            f"Run in the database: ALTER TABLE {name} SET LOGGED. Then run: cdf-replicator resume {{route}}. If the server has "
            "crashed since the table was filled, run instead: cdf-replicator resync {route}",
        )
    return {name: Held(*rest) for _, _, name, *rest in found if name is not None}


def _check(cursor: psycopg.Cursor[Any], target: Target, held: Mapping[str, Held], types: Mapping[str, str]) -> None:
    """Raise ``PermanentError`` with every reason for which the table can't take the route."""
    wrong, step = [], ""
    for name, kind in {**types, GUARD_COLUMN: "bigint"}.items():
        column, wanted = held.get(name), _plain(kind)
        if column is None:
            if name in target.keys:
                wrong.append(f"it has no key column {name}")
        elif not accepts(column.type, wanted) and not is_widening(column.type, wanted):
            wrong.append(f"column {name} is {column.type}, the route sends {wanted}")
            step = LOST_VALUES
        elif column.generated:
            wrong.append(f"column {name} is generated")
        elif column.required and name not in target.keys:
            wrong.append(f"column {name} is NOT NULL, and a delete writes the key alone before it removes the row")
        elif name in target.keys and column.type.startswith("character varying("):
            wrong.append(
                f"key column {name} is {column.type}, which cuts spaces at the end, so that two keys may be equal (use text)"
            )
        elif name in target.keys and not column.deterministic:
            wrong.append(f"key column {name} has a nondeterministic collation, in which two keys may be equal")
    wrong += [
        f"column {name} is NOT NULL without a default, and the route does not send it"
        for name, column in held.items()
        if name not in types and name != GUARD_COLUMN and column.required and not (column.default or column.generated)
    ]
    wrong += _wrong_indexes(cursor, target)
    if wrong:
        raise PermanentError(
            f"Table {target} does not take the route: {'; '.join(wrong)}.",
            f"Alter the table, then run: cdf-replicator resume {{route}}. {step}Or name another table in TARGET_TABLE, then {RECONFIGURE} (the "
            "sink creates a table that is missing)",
        )


def _wrong_indexes(cursor: psycopg.Cursor[Any], target: Target) -> list[str]:
    """Return why the unique indexes do not fit: rows arrive in any order, so that only the key may be unique."""
    cursor.execute(
        "SELECT c.relname, i.indimmediate AND i.indisvalid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL, "
        "array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = to_regclass(%s) AND (i.indisunique OR i.indisexclusion)",
        [Identifier(target.schema, target.table).as_string()],
    )
    key, wrong = False, []
    for name, plain, names in cursor.fetchall():
        if plain and set(names) == set(target.keys):
            key = True
        else:
            wrong.append(f"index {name} makes other columns than the key unique, or only some rows")
    return wrong if key else [*wrong, f"it has no primary key ({', '.join(target.keys)})"]


def _align_tombstones(cursor: psycopg.Cursor[Any], target: Target, types: Mapping[str, str]) -> None:
    """Create the table of tombstones, or give its key columns the types and the collations of the table.

    The tombstones of another key are dropped: a change of the key starts an epoch, whose guards are higher than theirs.
    """
    table = held_columns(cursor, target) or {}
    held = held_columns(cursor, target, target.tombstones)
    if held is not None and not _have_the_key(cursor, target, held, types):
        cursor.execute(target.query("DROP TABLE {tombstones}"))
        held = None
    if held is None:
        declared = (SQL("{} {}").format(Identifier(key), _type(table[key].declared)) for key in target.keys)
        cursor.execute(
            target.query(
                "CREATE TABLE {tombstones} ({columns}, {guard} bigint NOT NULL, "
                "deleted_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY ({keys}))",
                columns=SQL(", ").join(declared),
            )
        )
        return
    for key in target.keys:
        wanted, own = table[key], held[key]
        # a wider column holds every key
        if wanted.declared != own.declared and not is_widening(wanted.type, own.type):
            _alter(cursor, target, "ALTER TABLE {tombstones} ALTER COLUMN {name} TYPE {kind}", key, wanted.declared)


def _have_the_key(
    cursor: psycopg.Cursor[Any], target: Target, held: Mapping[str, Held], types: Mapping[str, str]
) -> bool:
    """Return whether the tombstones have the key columns, with types that hold the route's values or may be widened to do so."""
    if _wrong_indexes(cursor, Target(target.schema, target.tombstones, target.keys)):
        return False
    return all(accepts(held[key].type, types[key]) or is_widening(held[key].type, types[key]) for key in target.keys)


def _alter(cursor: psycopg.Cursor[Any], target: Target, text: Any, name: str, kind: str) -> None:
    cursor.execute(target.query(text, name=Identifier(name), kind=_type(kind)))


def _plain(kind: str) -> str:
    return kind.rpartition(".")[2] if kind.endswith(")") and ".vector(" in kind else kind


def _type(kind: str) -> SQL:
    """Return a type that ``postgres_type`` or the server's ``format_type`` wrote; the server has quoted the name of its collation."""
    return SQL(kind)
