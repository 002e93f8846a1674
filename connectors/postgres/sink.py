"""Keep one row per key in a table of PostgreSQL, which readers read by plain SQL.

Spark renders the lines of COPY in the JVM (``types``), and a worker copies and merges them (``writer``). The key columns are
the primary key. The text of every key holds the values of its columns, so that a delete needs no row.

Functions import the modules that need Spark, Arrow or psycopg, so that a configuration is validated without them.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, ClassVar, Final

from connectors.change import GUARD, KEY, ROW, is_delete
from connectors.errors import PermanentError, lost
from connectors.postgres.settings import LONGEST_NAME, TOMBSTONES, PostgresOptions, PostgresSettings
from connectors.protocols import Addressed, Capabilities, Maintained, Repairable, Resyncable, Watermarked
from connectors.result import WriteResult
from connectors.sink import ArrowSink
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.change import Claim, RouteSpec, Watermark
    from connectors.postgres.client import Database
    from connectors.postgres.target import Target
    from connectors.postgres.writer import Writer
    from connectors.result import EntryCount
    from connectors.sink import Mode
    from connectors.view import View

MAINTENANCE_SECONDS: Final = 600.0


class PostgresSink(ArrowSink, Resyncable, Watermarked, Maintained, Addressed, Repairable):
    """A sink that keeps one row per key."""

    Settings = PostgresSettings
    Options = PostgresOptions
    mode: ClassVar[Mode] = "upsert"
    capabilities = Capabilities(
        rejection_codes=("constraint", "invalid", "invalid_text", "out_of_range", "too_large"),
        deleted_rows=False,
        fencing=True,
    )
    settings: PostgresSettings

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self._database: Database | None = None
        self._writer: Writer | None = None
        self._server: tuple[str, ...] | None = None
        self._maintained_at = 0.0

    def __reduce__(self) -> tuple[type[PostgresSink], tuple[PostgresSettings]]:
        """Pickle the settings only: a copy is not open, since connections stay in their process."""
        return type(self), (self.settings,)

    @property
    def endpoint(self) -> str:
        return self.settings.endpoint

    def target(self, route: RouteSpec) -> str:
        return f"table {self.settings.schema_name}.{_table(route)}"

    def places(self, route: RouteSpec) -> frozenset[str]:
        table = f"{self.settings.schema_name}.{_table(route)}"
        return frozenset(f"postgres {server} {table}" for server in self.settings.servers)

    def check(self) -> None:
        self._connected().check()

    def read_claim(self, route: RouteSpec) -> Claim | None:
        from connectors.postgres import target
        from connectors.postgres.client import identity_of

        with self._connected().transaction() as cursor:
            self._server = identity_of(cursor)
            return target.read(cursor, self._target(route), route)

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        from connectors.postgres import target
        from connectors.postgres.load import make_key
        from connectors.postgres.table import align, wanted_types

        named, vectors = self._target(route), _options(route).parsed_vectors
        _check_keys(schema, route)
        types = wanted_types(schema, named, vectors)
        with self._connected().transaction() as cursor:
            target.create_claims(cursor, named)
        with self._connected().transaction(bounded=False) as cursor:
            if target.take(cursor, named, route):
                make_key(cursor, named)  # an interrupted load starts again, and merges
            warnings = align(cursor, named, types, vectors)
            target.record(cursor, named, route)
        return warnings

    def lost_acknowledged_writes(self) -> bool:
        """Return whether the server has another timeline than at the acknowledged writes, or restarted without them."""
        from connectors.postgres.client import identity_of

        with self._connected().transaction() as cursor:
            former, self._server = self._server, identity_of(cursor)
        return None not in {former, self._server} and former != self._server

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        """Return the parts of the lines of COPY: the texts that a worker escapes, then the rest of each line.

        The name of the last column is the JSON list of the columns that the lines have.
        """
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.postgres.target import GUARD_COLUMN
        from connectors.postgres.types import RAW, copy_line, copy_text, is_raw, key_value, one_zero, vector_text

        vectors = _options(route).parsed_vectors
        fields = [field for field in schema.fields if field.name not in route.keys]
        raw = [field.name for field in fields if is_raw(field.dataType)]
        others = [field for field in fields if field.name not in raw]
        names = [*route.keys, GUARD_COLUMN, *(field.name for field in others)]
        row, guard = F.col(ROW), F.col(GUARD).cast("string")
        types = [schema[key].dataType for key in route.keys]
        keys = [one_zero(copy_text(row.getField(key), kind), kind) for key, kind in zip(route.keys, types, strict=True)]
        values = [
            vector_text(row.getField(field.name))
            if field.name in vectors
            else copy_text(row.getField(field.name), field.dataType)
            for field in others
        ]
        gone = [one_zero(key_value(F.col(KEY), at, kind), kind) for at, kind in enumerate(types)]
        upsert, delete = copy_line([*keys, guard, *values], len(names)), copy_line([*gone, guard], len(names))
        texts = [F.when(~is_delete(), row.getField(name)).alias(RAW + name) for name in raw]
        return [*texts, F.when(is_delete(), delete).otherwise(upsert).alias(json.dumps([*raw, *names]))]

    def open(self, route: RouteSpec) -> None:
        from connectors.postgres.writer import Writer

        self._writer = Writer.opened(self._connected(), self._target(route), route)

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        if chunk.num_rows == 0:
            return WriteResult()
        assert self._writer is not None
        return self._writer.write(chunk, json.loads(chunk.schema.names[-1]))

    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        from connectors.postgres import load, target
        from connectors.postgres.client import identity_of

        if route.watermark is None:
            load.finish(self._connected(), self._target(route), route)
        with self._connected().transaction() as cursor:  # a pooler may lead the next one to another server
            if self._server is not None and identity_of(cursor) != self._server:
                raise lost(f"PostgreSQL at {self.endpoint} was restarted, or failed over")
            target.save_mark(cursor, self._target(route), route, watermark)

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        from connectors.postgres import view

        return view.count(self._connected(), self._target(route), below_guard)

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        from connectors.postgres import view

        return view.sweep(self._connected(), self._target(route), route, below_guard)

    def next_maintenance_at(self, route: RouteSpec) -> float | None:  # noqa: ARG002 - each target has the same period
        return self._maintained_at + MAINTENANCE_SECONDS

    def run_maintenance(self, route: RouteSpec) -> str:
        from connectors.postgres import view

        self._maintained_at = time.time()
        removed = view.forget(self._connected(), self._target(route), self.settings.tombstone_seconds)
        return f"{removed} tombstones removed" if removed else ""

    def identity(self, route: RouteSpec) -> Column:  # noqa: ARG002 - a table has the key columns
        from pyspark.sql import functions as F  # noqa: N812

        return F.col(KEY)

    def key(self, route: RouteSpec) -> Column:  # noqa: ARG002
        from pyspark.sql import functions as F  # noqa: N812

        return F.col(IDENTITY)

    def view(self, route: RouteSpec) -> AbstractContextManager[View]:
        from connectors.postgres import view

        return view.opened(self._connected(), self._target(route))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._writer = None

    def _connected(self) -> Database:
        from connectors.postgres.client import Database

        if self._database is None:
            self._database = Database(self.settings)
        return self._database

    def _target(self, route: RouteSpec) -> Target:
        from connectors.postgres.target import Target

        return Target(self.settings.schema_name, _table(route), route.keys)


def _options(route: RouteSpec) -> PostgresOptions:
    assert isinstance(route.options, PostgresOptions)
    return route.options


def _table(route: RouteSpec) -> str:
    name = _options(route).target_table or route.table
    if len(name) > LONGEST_NAME - len(TOMBSTONES):
        raise PermanentError(
            f"The name {name} is too long for a table of PostgreSQL.", "Name a shorter one in TARGET_TABLE."
        )
    return name


def _check_keys(schema: StructType, route: RouteSpec) -> None:
    """Raise ``PermanentError`` if the row lacks a key column under its own name: the primary key has the source's columns."""
    missing = [key for key in route.keys if key not in schema.names or key in route.derived_columns]
    if missing:
        raise PermanentError(
            f"Route {route.name} renames or leaves out key column {', '.join(missing)}, which the primary key needs.",
            "Name it in COLUMNS, and not in RENAME or COMPUTED.",
        )
