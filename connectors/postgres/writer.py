"""Write a chunk in one transaction: COPY into a temporary table, then merge by guard.

The rows of the first load of a new table are copied into the table itself (``load``). Each other chunk is merged:

    1. The rows of deletes are placeholders: the key and the guard alone. They are inserted like the others, and wait for
       a concurrent writer of the same key at the unique index.
    2. The placeholders that are now in the table become tombstones.
    3. Rows that a newer tombstone has overtaken are deleted. This statement sees the tombstones of writers for which
       statement 1 waited, since each statement of a transaction (READ COMMITTED) sees what was committed before it.

An even guard is a delete (``connectors.change.guard_of``). A row in the table never keeps an even guard: if the server leaves
the row of a placeholder, the chunk is not written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composed, Identifier

from connectors.change import CHANGE_TYPE, DELETES
from connectors.errors import target_missing
from connectors.postgres.errors import code_of, delete_ignored, is_key_error, is_row_error, line_of, reason_of
from connectors.postgres.load import finish, is_load
from connectors.postgres.table import held_columns
from connectors.postgres.target import columns, hold
from connectors.postgres.types import ESCAPES, NULL, RAW
from connectors.result import Rejected, WriteResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import LiteralString

    from connectors.change import RouteSpec
    from connectors.postgres.client import Database
    from connectors.postgres.target import Target

STAGE: Final = (
    "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; "
    "CREATE TEMP TABLE IF NOT EXISTS {stage} ({declared}, cdf_position bigint GENERATED ALWAYS AS IDENTITY (CACHE 10000)) ON COMMIT DELETE ROWS"
)
"""A chunk is small beside its table, so its rows are found by the index of the key. Other joins would read the whole table.
The places of the rows in the temporary table do not have the order of COPY, which fills the pages of a former transaction in any order.
A cache saves three quarters of the time of the numbers."""
INTO_STAGE: Final = "COPY {stage} ({columns}) FROM STDIN"
INTO_TABLE: Final = "COPY {table} ({columns}) FROM STDIN"
MERGE: Final = (
    "INSERT INTO {table} AS t ({columns}) SELECT {columns} FROM {stage} ORDER BY {keys} ON CONFLICT ({keys}) DO UPDATE SET {updates} "
    "WHERE coalesce(t.{guard}, 0) <= excluded.{guard}"
)
LEAVE_TOMBSTONES: Final = (
    "WITH gone AS (DELETE FROM {table} t USING {stage} s WHERE s.{guard} % 2 = 0 AND {same} AND t.{guard} = s.{guard} "
    "RETURNING {key_of_row}, t.{guard}) INSERT INTO {tombstones} AS d ({keys}, {guard}) SELECT * FROM gone "
    "ON CONFLICT ({keys}) DO UPDATE SET {guard} = greatest(d.{guard}, excluded.{guard}), deleted_at = now()"
)
IGNORED: Final = (
    "SELECT FROM {stage} s WHERE s.{guard} % 2 = 0 AND NOT EXISTS (SELECT FROM {tombstones} d WHERE {same_tombstone} AND d.{guard} >= s.{guard}) "
    "AND NOT EXISTS (SELECT FROM {table} t WHERE {same} AND t.{guard} > s.{guard}) LIMIT 1"
)
"""Deletes with neither a tombstone nor a newer row."""
OVERTAKEN: Final = (
    "WITH late AS MATERIALIZED (SELECT d.* FROM {stage} s JOIN {tombstones} d ON {same_tombstone} WHERE s.{guard} < d.{guard}) "
    "DELETE FROM {table} t USING late s WHERE {same} AND t.{guard} < s.{guard}"
)
POSITION: Final = SQL("s.cdf_position - (SELECT min(cdf_position) FROM {stage})")
STALE: Final = (
    "SELECT {position} FROM {stage} s LEFT JOIN {table} t ON {same} "
    "WHERE CASE WHEN s.{guard} % 2 = 0 THEN t.{guard} IS NOT NULL ELSE t.{guard} IS DISTINCT FROM s.{guard} END"
)
ABSENT: Final = (
    "SELECT {position} FROM {stage} s WHERE s.{guard} % 2 = 0 AND NOT EXISTS (SELECT FROM {table} t WHERE {same})"
)


@dataclass(slots=True)
class Outcome:
    """The positions of a chunk that were not applied, as its parts are written."""

    stale: list[int] = field(default_factory=list)
    noop: list[int] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the chunks of a route. ``held``, the declared type of each column, makes a part of the name of the temporary table."""

    database: Database
    target: Target
    route: RouteSpec
    held: Mapping[str, str]
    _queries: dict[tuple[str, ...], bytes] = field(default_factory=dict, init=False, repr=False)
    """The statements of this writer: psycopg composes one in a millisecond."""

    @classmethod
    def opened(cls, database: Database, target: Target, route: RouteSpec) -> Writer:
        with database.transaction() as cursor:
            held = held_columns(cursor, target)
        if held is None:
            raise target_missing(f"table {target} was dropped")
        return cls(database, target, route, {name: column.declared for name, column in held.items()})

    def write(self, chunk: pa.RecordBatch, names: list[str]) -> WriteResult:
        """Write a chunk, whose lines of COPY have the columns ``names``.

        A row that the server refuses ends its transaction. The others are then written in parts without it: up to the
        line that COPY names, and in halves.
        """
        outcome, sent, pending = Outcome(), 0, [(0, chunk)]
        while pending:
            offset, part = pending.pop()
            body = body_of(part)
            sent += len(body)
            try:
                self._write(part, body, offset, names, outcome)
            except psycopg.Error as error:
                if not is_row_error(error):
                    raise
                if part.num_rows > 1:
                    pending += [
                        (offset + start, part.slice(start, rows)) for start, rows in _split(part.num_rows, error)
                    ]
                elif part.column(CHANGE_TYPE)[0].as_py() in DELETES and is_key_error(error):
                    outcome.noop.append(offset)  # no row has a key that the table can't hold
                else:
                    outcome.rejected.append(Rejected(offset, code_of(error), reason_of(error)))
        return WriteResult(stale=outcome.stale, noop=outcome.noop, rejected=outcome.rejected, sent_bytes=sent)

    def _write(self, part: pa.RecordBatch, body: memoryview, offset: int, names: list[str], outcome: Outcome) -> None:
        load, stale, absent = is_load(part), set[int](), set[int]()
        with self.database.transaction(rows=True) as cursor:
            loading = hold(cursor, self.target, self.route, self._query(STAGE, names))
            if load or not loading:
                into = INTO_TABLE if loading else INTO_STAGE
                with cursor.copy(self._query(into, names)) as copy:
                    copy.write(body)
                if not loading:
                    stale, absent = self._merge(cursor, part, names)
        if loading and not load:
            finish(self.database, self.target, self.route)
            self._write(part, body, offset, names, outcome)
        outcome.stale += [offset + at for at in sorted(stale)]
        outcome.noop += [offset + at for at in sorted(absent - stale)]

    def _merge(self, cursor: psycopg.Cursor[Any], part: pa.RecordBatch, names: list[str]) -> tuple[set[int], set[int]]:
        """Merge the rows of the stage; return the positions of those that lost, and of deletes whose key had no row."""
        deletes = pc.sum(pc.is_in(part.column(CHANGE_TYPE), value_set=pa.array(DELETES))).as_py()
        absent = self._positions(cursor, ABSENT, names) if deletes else set()
        written = cursor.execute(self._query(MERGE, names)).rowcount
        if deletes and cursor.execute(self._query(LEAVE_TOMBSTONES, names)).rowcount < deletes:
            self._check_deleted(cursor, names)  # newer rows are left, too
        overtaken = cursor.execute(self._query(OVERTAKEN, names)).rowcount
        lost = written != part.num_rows or overtaken
        return self._positions(cursor, STALE, names) if lost else set(), absent

    def _check_deleted(self, cursor: psycopg.Cursor[Any], names: list[str]) -> None:
        if cursor.execute(self._query(IGNORED, names)).rowcount:
            raise delete_ignored(str(self.target))

    def _positions(self, cursor: psycopg.Cursor[Any], text: LiteralString, names: list[str]) -> set[int]:
        return {at for (at,) in cursor.execute(self._query(text, names)).fetchall()}

    def _query(self, text: LiteralString, names: list[str]) -> bytes:
        known = (text, *names)
        if known not in self._queries:
            self._queries[known] = self._composed(text, names).as_bytes(None)
        return self._queries[known]

    def _composed(self, text: LiteralString, names: list[str]) -> Composed:
        updates = (SQL("{0} = excluded.{0}").format(Identifier(name)) for name in names if name not in self.target.keys)
        declared = (SQL("{} {}").format(Identifier(name), SQL(self.held[name])) for name in names if name in self.held)
        definition = sha256(repr((str(self.target), self.held, names)).encode()).hexdigest()
        stage = Identifier("pg_temp", f"cdf_stage_{definition[:16]}")
        return self.target.query(
            text,
            stage=stage,
            position=POSITION.format(stage=stage),
            declared=SQL(", ").join(declared),
            columns=columns(names),
            updates=SQL(", ").join(updates),
            same=self.target.same_keys("t", "s"),
            same_tombstone=self.target.same_keys("d", "s"),
            key_of_row=columns(self.target.keys, "t"),
        )


def body_of(chunk: pa.RecordBatch) -> memoryview:
    """Return the lines of COPY: the raw texts of each row, then the rest of its line, which is the last column."""
    raw = [column for name, column in zip(chunk.schema.names, chunk.columns, strict=True) if name.startswith(RAW)]
    ends = chunk.columns[-1].cast(pa.binary())
    if not raw:
        return _content(ends)
    texts = [_escaped(column.cast(pa.binary())) for column in raw]
    lines = pc.binary_join_element_wise(*texts, ends, b"\t", null_handling="replace", null_replacement=NULL)
    return _content(lines)


def _escaped(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return the texts as COPY reads them; bytes that are no UTF-8 become the replacement character."""
    if not _is_utf8(texts):
        valid = [None if text is None else text.decode(errors="replace").encode() for text in texts.to_pylist()]
        texts = pa.array(valid, pa.binary())
    content = bytes(_content(texts))
    for character, escape in ESCAPES.items():
        if character.encode() in content:
            texts = pc.replace_substring(texts, character.encode(), escape.encode())
    return texts


def _is_utf8(texts: pa.BinaryArray) -> bool:
    try:
        texts.cast(pa.string())  # checks each value, since two parts of a character may meet in the memory
    except pa.ArrowInvalid:
        return False
    return True


def _content(texts: pa.BinaryArray) -> memoryview:
    """Return the bytes of all values, one after the other, without a copy."""
    _, offsets, data = texts.buffers()
    if data is None:
        return memoryview(b"")
    places = memoryview(offsets).cast("i")[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[places[0] : places[-1]]


def _split(rows: int, error: psycopg.Error) -> list[tuple[int, int]]:
    """Return the start and the length of each part to write, the last part first.

    The rows after the line that COPY names are two parts: if every row is bad, each is sent some log(rows) times.
    """
    line = line_of(error)
    bounds = [0, rows // 2, rows] if line is None or line > rows else [0, line - 1, line, (line + rows) // 2, rows]
    return [(start, end - start) for start, end in reversed(list(pairwise(bounds))) if start < end]
