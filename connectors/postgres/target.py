"""Name the tables of a route, and hold its claim: the record of who fills the table, and up to which watermark.

    orders                the rows, with the guard of each in _cdf_guard
    orders__cdf_deleted   the tombstones: key columns, guard, time
    cdf_claim             one row for each table that a route of this service fills in the schema

A writer takes a shared advisory lock for its transaction and reads the claim. A take-over takes the same lock alone. It
therefore waits for running writers, and every later writer finds the new claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from connectors.change import Claim, Watermark
from connectors.errors import RetryableError, claimed, fenced_off, lost, target_missing
from connectors.postgres.settings import TOMBSTONES

if TYPE_CHECKING:
    from typing_extensions import LiteralString

    from connectors.change import RouteSpec

GUARD_COLUMN: Final = "_cdf_guard"
POSITION_COLUMN: Final = "cdf_position"
"""A column of the temporary table of a writer."""
TIME_COLUMN: Final = "deleted_at"
"""A column of the tombstones, beside the key columns."""
CLAIMS: Final = "cdf_claim"
CREATE_LOCK: Final = 0x6364665F636C6D
"""Advisory lock of the creation of a claim table, since two sessions can't create it at once."""


@dataclass(frozen=True, slots=True)
class Target:
    """The tables of a route. ``keys`` are its key columns."""

    schema: str
    table: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def tombstones(self) -> str:
        return self.table + TOMBSTONES

    def query(self, text: LiteralString, **more: Any) -> Composed:
        """Return a statement with the names of the tables and the key columns in its braces."""
        return SQL(text).format(
            table=Identifier(self.schema, self.table),
            tombstones=Identifier(self.schema, self.tombstones),
            claims=Identifier(self.schema, CLAIMS),
            target=Literal(str(self)),
            regclass=Literal(Identifier(self.schema, self.table).as_string()),
            lock=Literal(int.from_bytes(sha256(str(self).encode()).digest()[:8], "big", signed=True)),
            keys=columns(self.keys),
            guard=Identifier(GUARD_COLUMN),
            **more,
        )

    def same_keys(self, left: str, right: str) -> Composed:
        """Return the condition that two tables have the same key."""
        pairs = (SQL("{} = {}").format(Identifier(left, key), Identifier(right, key)) for key in self.keys)
        return SQL(" AND ").join(pairs)


def columns(names: tuple[str, ...] | list[str], of: str | None = None) -> Composed:
    return SQL(", ").join(Identifier(name) if of is None else Identifier(of, name) for name in names)


HELD: Final = (
    "SELECT owner, route, epoch, fence, mark, mark IS NULL AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = relation AND "
    "indisunique) FROM {claims} WHERE target = {target} AND relation = to_regclass({regclass})"
)
"""The last column is true while the first load of a new table runs, which has no primary key yet."""


def hold(cursor: psycopg.Cursor[Any], target: Target, route: RouteSpec, then: bytes = b"") -> bool:
    """Keep the claim until the transaction ends; raises ``SinkError`` if the route does not have it.

    Returns whether the table has no primary key yet (``load``). ``then`` is a further statement of the same round trip.
    """
    cursor.execute(_held(target) + then)
    cursor.nextset()
    held = cursor.fetchone()
    if held is None:
        raise target_missing(f"table {target} was dropped, or has lost its claim")
    owner, name, _, fence, mark, loading = held
    if (owner, name) != (route.owner, route.name) or fence > route.fence:
        raise fenced_off(f"table {target}")
    if is_older(mark, route):
        raise lost(f"table {target} was restored from a copy")
    return bool(loading)


@lru_cache(maxsize=64)
def _held(target: Target) -> bytes:
    """Return the statements that lock and read the claim."""
    texts = target.query("SELECT pg_advisory_xact_lock_shared({lock})"), target.query(HELD)
    return b"".join(text.as_bytes(None) + b"; " for text in texts)


def read(cursor: psycopg.Cursor[Any], target: Target, route: RouteSpec) -> Claim | None:
    """Return the claim; None if the table, or its claim, is absent. A new table of the same name has no claim."""
    cursor.execute(
        target.query("SELECT to_regclass({name})", name=Literal(Identifier(target.schema, CLAIMS).as_string()))
    )
    if cursor.fetchone() == (None,):
        return None
    cursor.execute(target.query(HELD))
    held = cursor.fetchone()
    if held is None:
        return None
    owner, name, epoch, _, mark, _ = held
    reached = None if mark is None else Watermark.parse(mark)
    claim = Claim(owner, epoch, reached, is_older(mark, route), route=name)
    known = -1 if reached is None or not claim.is_of(route) else reached.txn_version
    return Claim(owner, epoch, reached, claim.restored, known, name)


HOLDERS: Final = (
    "SELECT string_agg(pid::text, ', ') FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid::bigint << 32 "
    "| objid::bigint = {lock} AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def create_claims(cursor: psycopg.Cursor[Any], target: Target) -> None:
    """Create the schema and its table of claims if they are missing."""
    cursor.execute("SELECT to_regnamespace(%s)", [Identifier(target.schema).as_string()])
    missing = cursor.fetchone() == (None,)
    cursor.execute(SQL("SELECT pg_advisory_xact_lock({})").format(Literal(CREATE_LOCK)))
    if missing:
        cursor.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(target.schema)))
    cursor.execute(
        target.query(
            "CREATE TABLE IF NOT EXISTS {claims} (target text PRIMARY KEY, relation oid NOT NULL, owner text NOT NULL, "
            "route text NOT NULL, epoch bigint NOT NULL, fence bigint NOT NULL, mark text)"
        )
    )


def take(cursor: psycopg.Cursor[Any], target: Target, route: RouteSpec) -> bool:
    """Wait for running writers, and check that the route may take the table; raises ``PermanentError``.

    Returns whether the table has no primary key yet (``load``).
    """
    _wait_for_writers(cursor, target)
    cursor.execute(target.query(HELD))
    held = cursor.fetchone()
    if held is None:
        return False
    claim = Claim(held[0], held[2], route=held[1])
    if claim.is_of(route) and held[3] > route.fence:
        raise fenced_off(f"table {target}")
    if (other := claim.other(route)) is not None:
        raise claimed(f"table {target}", other, "TARGET_TABLE")
    return bool(held[5])


def _wait_for_writers(cursor: psycopg.Cursor[Any], target: Target) -> None:
    """Take the lock alone; raises ``RetryableError`` with the server processes that keep it for longer than a transaction lasts."""
    try:
        with cursor.connection.transaction():
            cursor.execute(target.query("SELECT pg_advisory_xact_lock({lock})"))
    except psycopg.errors.LockNotAvailable as error:
        (holders,) = cursor.execute(target.query(HOLDERS)).fetchone() or (None,)
        raise RetryableError(
            "timeout",
            f"table {target} has a writer that does not end: process {holders} of the server. If its instance is gone or "
            "suspended, run in the database: SELECT pg_terminate_backend(PID)",
        ) from error


def record(cursor: psycopg.Cursor[Any], target: Target, route: RouteSpec) -> None:
    """Record the route's claim. The watermark belongs to the epoch, and ends with it."""
    cursor.execute(
        target.query(
            "INSERT INTO {claims} AS c SELECT {target}, to_regclass({regclass}), {owner}, {name}, {epoch}, {fence} "
            "ON CONFLICT (target) DO UPDATE SET mark = CASE WHEN (c.relation, c.owner, c.route, c.epoch) = "
            "(excluded.relation, excluded.owner, excluded.route, excluded.epoch) THEN c.mark END, relation = excluded.relation, "
            "owner = excluded.owner, route = excluded.route, epoch = excluded.epoch, fence = excluded.fence",
            owner=Literal(route.owner),
            name=Literal(route.name),
            epoch=Literal(route.epoch),
            fence=Literal(route.fence),
        )
    )


def save_mark(cursor: psycopg.Cursor[Any], target: Target, route: RouteSpec, mark: Watermark) -> None:
    hold(
        cursor,
        target,
        route,
        target.query("UPDATE {claims} SET mark = {mark} WHERE target = {target}", mark=Literal(str(mark))).as_bytes(
            None
        ),
    )


def is_older(mark: str | None, route: RouteSpec) -> bool:
    """Return whether a table with this watermark lacks something that it held at the route's watermark."""
    return route.watermark is not None and (mark is None or not Watermark.parse(mark).reaches(route.watermark))
