"""Read, count and delete the rows of a table in ranges of its blocks."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from psycopg.sql import SQL, Identifier, Literal

from connectors.errors import target_missing
from connectors.postgres.client import Database
from connectors.postgres.errors import delete_ignored
from connectors.postgres.table import held_columns
from connectors.postgres.target import GUARD_COLUMN, columns, hold
from connectors.result import EntryCount
from connectors.view import BODY, FIRST_PAGE, IDENTITY, ScannedView, entry_batch, next_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import psycopg
    import pyarrow as pa
    from psycopg.sql import Composable
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.change import RouteSpec
    from connectors.postgres.settings import PostgresSettings
    from connectors.postgres.target import Target

PARTS: Final = 4
PAGE: Final = 2000
BLOCKS_SWEPT: Final = 1000

COUNT: Final = "SELECT count(*), count(*) FILTER (WHERE coalesce({held}, 0) < {below}), greatest(max({held}), {deleted}, 0) FROM {table}"
DELETED: Final = "(SELECT max({guard}) FROM {tombstones})"
NO_GUARD: Final = SQL("NULL::bigint")
SWEEP: Final = (
    "WITH gone AS (DELETE FROM {table} t WHERE {blocks} AND coalesce({guard}, 0) < {below} RETURNING {keys}) "
    "INSERT INTO {tombstones} AS d ({keys}, {guard}) SELECT *, {below} - 1 FROM gone "
    "ON CONFLICT ({keys}) DO UPDATE SET {guard} = greatest(d.{guard}, excluded.{guard}), deleted_at = now()"
)
LEFT: Final = "SELECT ctid FROM {table} t WHERE {blocks} AND coalesce({guard}, 0) < {below} LIMIT 1"
IS_OLD: Final = SQL("deleted_at < now() - make_interval(secs => {})")
FORGET: Final = "DELETE FROM {tombstones} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {tombstones} WHERE {is_old} LIMIT 10000)) AND {is_old}"
"""A writer may renew a tombstone while this statement waits for it. Older minor releases then check the last condition alone."""


@dataclass(frozen=True, slots=True)
class TableView(ScannedView):
    """The rows of a table at one moment: ``snapshot``, which a transaction of the driver keeps.

    Args:
        settings: The settings of the sink, by which a worker connects.
        target: The table.
        snapshot: The id of the exported snapshot.
        held: The type of each column.
        blocks: The number of blocks of the table.
        parts: The number of ranges of blocks.
    """

    consistent: ClassVar[bool] = True
    settings: PostgresSettings
    target: Target
    snapshot: str
    held: dict[str, str]
    blocks: int
    parts: int = PARTS

    def scan(self, part: int) -> Iterator[pa.RecordBatch]:
        names = [name for name in self.held if name != GUARD_COLUMN]
        query = self.target.query(
            "SELECT to_json(ARRAY[{key_texts}])::text, {guard}, row_to_json(r.*)::text FROM (SELECT {texts}, {guard} FROM {table} t "
            "WHERE {blocks}) r",
            key_texts=columns(self.target.keys),
            texts=SQL(", ").join(_text(name, self.held[name]) for name in names),
            blocks=block_range(part * self._step, None if part == self.parts - 1 else (part + 1) * self._step),
        )
        with closing(Database(self.settings)) as database, database.transaction(bounded=False, snapshot=True) as cursor:
            cursor.execute(SQL("SET TRANSACTION SNAPSHOT {}").format(Literal(self.snapshot)))
            yield from batches(cursor, query)

    def kept(self, schema: StructType) -> StructType:
        """Return the types; pgvector keeps floats of four bytes, so that an array of doubles has elements of that type."""
        from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

        vectors = {name for name, kind in self.held.items() if "vector(" in kind}
        floats = ArrayType(FloatType())
        return StructType([StructField(f.name, floats) if f.name in vectors else f for f in schema.fields])

    def read(self, schema: StructType) -> Column:
        """Return the row, from the JSON object of the texts of its columns."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import TimeType

        from connectors.postgres.types import value_of
        from connectors.rendering import json_type

        texts = F.from_json(F.col(BODY), "map<string, string>")
        values = ((f.name, value_of(texts.getItem(f.name), f.dataType), json_type(f.dataType)) for f in schema.fields)
        # Spark has no cast to a time of day.
        return F.struct(
            *((value if isinstance(kind, TimeType) else value.cast(kind)).alias(name) for name, value, kind in values)
        )

    def entries(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Return the rows, each with its key text in place of the texts of its key columns."""
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.postgres.types import value_of
        from connectors.rendering import key_text

        texts, types = F.from_json(F.col(IDENTITY), "array<string>"), [schema[key].dataType for key in self.target.keys]
        values = [(value_of(texts.getItem(at), kind), kind) for at, kind in enumerate(types)]
        return ScannedView.entries(self, spark, schema).withColumn(IDENTITY, key_text(values))

    @property
    def _step(self) -> int:
        return self.blocks // self.parts + 1


@contextmanager
def opened(database: Database, target: Target) -> Iterator[TableView]:
    """Export a snapshot of the table, and keep it until the end."""
    with closing(Database(database.settings)) as own, own.transaction(bounded=False, snapshot=True) as cursor:
        held = held_columns(cursor, target)
        if held is None:
            raise target_missing(f"table {target} is absent")
        cursor.execute("SELECT pg_export_snapshot()")
        (snapshot,) = cursor.fetchone() or ("",)
        types = {name: column.type for name, column in held.items()}
        yield TableView(own.settings, target, snapshot, types, block_count(cursor, target))


def count(database: Database, target: Target, below_guard: int) -> EntryCount:
    """Count rows and orphans, and find the highest guard, tombstones included.

    A table of a user has neither guards nor tombstones before the first start of the route.
    """
    with database.transaction(bounded=False) as cursor:
        held = held_columns(cursor, target)
        if held is None:
            return EntryCount()
        guard = Identifier(GUARD_COLUMN) if GUARD_COLUMN in held else NO_GUARD
        deleted = target.query(DELETED) if held_columns(cursor, target, target.tombstones) else NO_GUARD
        cursor.execute(target.query(COUNT, below=Literal(below_guard), held=guard, deleted=deleted))
        return EntryCount(*(cursor.fetchone() or ()))


def sweep(database: Database, target: Target, route: RouteSpec, below_guard: int) -> int:
    """Delete every row with a lower guard, in one transaction for each range of blocks, and return their number.

    A deleted row leaves a tombstone with the guard just below. It loses to every change of the new epoch, and beats every
    change of an older epoch.
    """
    with database.transaction() as cursor:
        blocks = block_count(cursor, target)
    swept = 0
    for start in range(0, blocks + 1, BLOCKS_SWEPT):
        end = None if start + BLOCKS_SWEPT > blocks else start + BLOCKS_SWEPT
        with database.transaction(bounded=False) as cursor:
            hold(cursor, target, route)
            parts = {"below": Literal(below_guard), "blocks": block_range(start, end)}
            swept += _sweep_blocks(cursor, target, parts)
    return swept


def _sweep_blocks(cursor: psycopg.Cursor[Any], target: Target, parts: Mapping[str, Composable]) -> int:
    """Return the number of deleted rows. Rows that another application inserts meanwhile are swept, too."""
    swept = cursor.execute(target.query(SWEEP, **parts)).rowcount
    seen: set[Any] = set()
    while left := cursor.execute(target.query(LEFT, **parts)).fetchone():
        if left in seen:
            raise delete_ignored(str(target))
        seen.add(left)
        swept += cursor.execute(target.query(SWEEP, **parts)).rowcount
    return swept


def forget(database: Database, target: Target, seconds: int) -> int:
    """Delete the tombstones that are older than this, and return their number."""
    deleted, query = 0, target.query(FORGET, is_old=IS_OLD.format(Literal(seconds)))
    while True:
        with database.transaction() as cursor:
            removed = cursor.execute(query).rowcount
        deleted += removed
        if not removed:
            return deleted


def block_count(cursor: psycopg.Cursor[Any], target: Target) -> int:
    cursor.execute(target.query("SELECT pg_relation_size({regclass}) / current_setting('block_size')::int"))
    (blocks,) = cursor.fetchone() or (0,)
    return int(blocks)


def block_range(start: int, end: int | None) -> Composable:
    """Return the condition that a row of ``t`` is in the blocks from ``start`` to before ``end``; None for the last block."""
    lower = SQL("t.ctid >= {}::tid").format(Literal(f"({start},0)"))
    return lower if end is None else SQL("{} AND t.ctid < {}::tid").format(lower, Literal(f"({end},0)"))


def batches(cursor: psycopg.Cursor[Any], query: Composable) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a query in pages, by a cursor of the server."""
    cursor.execute(SQL("DECLARE cdf_rows NO SCROLL CURSOR FOR {}").format(query))
    rows = FIRST_PAGE
    while page := cursor.execute(SQL("FETCH {} FROM cdf_rows").format(Literal(rows))).fetchall():
        batch = entry_batch(*([row[at] for row in page] for at in range(3)))
        yield batch
        rows = next_page(batch.num_rows, batch.nbytes, PAGE)


def _text(name: str, kind: str) -> Composable:
    text = SQL("to_json(t.{0}::text[])::text AS {0}") if kind.endswith("[]") else SQL("t.{0}::text AS {0}")
    return text.format(Identifier(name))
