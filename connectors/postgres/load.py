"""Make the primary key of a new table after its first load.

A table that the sink creates has no primary key at first: the rows of a snapshot are copied straight into it (``writer``).
Its key is made before the first watermark of the epoch, the first chunk with another change, or another start of the load,
whichever comes first. A part of the load that was written twice left its rows twice; the key is then made without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow.compute as pc

from connectors.change import CHANGE_TYPE, KEY, SNAPSHOT
from connectors.errors import PermanentError
from connectors.postgres.errors import is_row_error, reason_of
from connectors.postgres.target import take

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.change import RouteSpec
    from connectors.postgres.client import Database
    from connectors.postgres.target import Target

LONGEST_KEY: Final = 2000
"""Bytes of a key text. The index of a primary key takes 2,704 bytes, of which 32 short columns need up to 600."""
MAKE_KEY: Final = "ALTER TABLE {table} ADD PRIMARY KEY ({keys})"
IS_BY_KEY: Final = "SELECT relreplident = 'd' FROM pg_class WHERE oid = to_regclass({regclass})"
DELETE_TWINS: Final = (
    "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT place FROM (SELECT ctid AS place, row_number() OVER "
    "(PARTITION BY {keys} ORDER BY {guard} DESC NULLS LAST) AS number FROM {table}) AS numbered WHERE number > 1))"
)


def is_load(chunk: pa.RecordBatch) -> bool:
    """Return whether every row comes from a snapshot, with a key that the index of a primary key takes."""
    lengths = pc.max(pc.binary_length(chunk.column(KEY)))
    return bool(pc.all(pc.equal(chunk.column(CHANGE_TYPE), SNAPSHOT)).as_py() and lengths.as_py() <= LONGEST_KEY)


def finish(database: Database, target: Target, route: RouteSpec) -> None:
    """Make the primary key of a table that has none yet; waits for the writers that run."""
    with database.transaction(bounded=False) as cursor:
        if take(cursor, target, route):
            make_key(cursor, target)


def make_key(cursor: psycopg.Cursor[Any], target: Target) -> None:
    """Make the primary key; raises ``PermanentError`` if a row of another writer has no place in it.

    Of the rows with the same key, the one with the highest guard stays.
    """
    try:
        try:
            with cursor.connection.transaction():
                cursor.execute(target.query(MAKE_KEY))
        except psycopg.errors.UniqueViolation:
            _make_key_without_twins(cursor, target)
    except psycopg.Error as error:
        if not is_row_error(error):
            raise
        raise PermanentError(
            f"Table {target} does not take its primary key: {reason_of(error)}.",
            "Delete the rows of other writers, then run: cdf-replicator resume {route}. Or drop the table, then run: "
            "cdf-replicator resync {route}",
        ) from error


def _make_key_without_twins(cursor: psycopg.Cursor[Any], target: Target) -> None:
    """Delete the rows that were loaded twice, and make the primary key.

    A published table takes a delete only with a replica identity, which is the primary key unless another was set.
    """
    by_key = cursor.execute(target.query(IS_BY_KEY)).fetchone() == (True,)
    if by_key:
        cursor.execute(target.query("ALTER TABLE {table} REPLICA IDENTITY FULL"))
    cursor.execute(target.query(DELETE_TWINS))
    cursor.execute(target.query(MAKE_KEY))
    if by_key:
        cursor.execute(target.query("ALTER TABLE {table} REPLICA IDENTITY DEFAULT"))
