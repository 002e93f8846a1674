"""Find pgvector in the database, and make the indexes of vectors."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from psycopg.sql import SQL, Identifier

from connectors.errors import PermanentError
from connectors.postgres.settings import LONGEST_NAME, OPERATORS

if TYPE_CHECKING:
    import psycopg

    from connectors.postgres.target import Target

INDEXES: Final = (
    "SELECT c.relname, o.opcname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam "
    "JOIN pg_opclass o ON o.oid = i.indclass[0] JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
    "WHERE i.indrelid = to_regclass(%s) AND a.attname = %s AND m.amname = 'hnsw' AND i.indisvalid AND i.indpred IS NULL"
)


def schema_of(cursor: psycopg.Cursor[Any], target: Target) -> str:
    """Return the prefix of pgvector's names; raises ``PermanentError`` if the extension is missing."""
    cursor.execute(
        "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
    )
    found = cursor.fetchone()
    if found is None:
        raise PermanentError(
            f"Table {target} needs the extension vector (pgvector), which the database does not have.",
            "Install pgvector on the server, then run as an administrator: CREATE EXTENSION vector. Or remove VECTORS.",
        )
    return f"{found[0]}."


def make_index(cursor: psycopg.Cursor[Any], target: Target, column: str, schema: str, metric: str | None) -> list[str]:
    """Make the index of a vector with a metric unless the column has it; returns a warning for each index of a former metric.

    PostgreSQL names the index if its name is taken: an index keeps its name when its table is renamed.
    """
    cursor.execute(INDEXES, [Identifier(target.schema, target.table).as_string(), column])
    held = dict(cursor.fetchall())
    wanted = None if metric is None else OPERATORS[metric]
    if metric is not None and wanted not in held.values():
        name = _index_name(target, column, metric)
        full_name = Identifier(target.schema, name).as_string()
        taken = cursor.execute("SELECT WHERE to_regclass(%s) IS NOT NULL", [full_name]).rowcount
        cursor.execute(
            target.query(
                "CREATE INDEX {name} ON {table} USING hnsw ({column} {operators})",
                name=SQL("") if taken else Identifier(name),
                column=Identifier(column),
                operators=SQL(f"{schema}{OPERATORS[metric]}"),
            )
        )
    own = {_first_index_name(target, column), *(_index_name(target, column, other) for other in OPERATORS)}
    former = sorted(name for name in own & held.keys() if held[name] != wanted)
    return [
        f"Index {name} of column {column} has a former metric, and each write maintains it. Unless a query needs it, "
        f"run in the database: DROP INDEX {Identifier(target.schema, name).as_string()}"
        for name in former
    ]


def _index_name(target: Target, column: str, metric: str) -> str:
    name = f"{target.table}__cdf_{column}__{metric}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    return _cut(name, LONGEST_NAME - 9) + "_" + sha256(name.encode()).hexdigest()[:8]


def _first_index_name(target: Target, column: str) -> str:
    """Return the name of an index of the first releases, in which an index of another column or metric may have it."""
    return _cut(f"{target.table}__cdf_{column}", LONGEST_NAME)


def _cut(name: str, size: int) -> str:
    return name.encode()[:size].decode(errors="ignore")
