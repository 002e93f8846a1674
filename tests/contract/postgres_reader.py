"""PostgreSQL as its users see it, below and beside the sink under test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from connectors import RouteSpec
from connectors.postgres import PostgresOptions, PostgresSettings, PostgresSink

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reader:
    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row, prepare_threshold=None)

    def __call__(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def row(self, table: str, key: str) -> dict[str, Any] | None:
        query = SQL("SELECT * FROM {} WHERE id = %s").format(Identifier(table))
        if "\0" in key:
            return None
        return self.connection.execute(query, [key]).fetchone()

    def types(self, table: str) -> dict[str, str]:
        query = (
            "SELECT attname, format_type(atttypid, atttypmod) AS kind FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return {row["attname"]: row["kind"] for row in self(query, table)}


def text_of_key(key: str) -> str:
    return key.replace("%3A", ":").replace("%25", "%")


def route_to(table: str | None = None, **more: Any) -> RouteSpec:
    """Return a route to the named table, or to an unused table."""
    options = PostgresOptions(target_table=table, **more.pop("options", {}))
    known = {"name": "orders_db", "table": f"orders_{uuid4().hex[:12]}", "keys": ("id",), "owner": "us", "epoch": 1}
    return RouteSpec(**{**known, "options": options, **more})


def sink_to(url: str, **more: Any) -> PostgresSink:
    return PostgresSink(PostgresSettings(type="postgres", url=url, **more))


@contextmanager
def impatient(sink: PostgresSink, seconds: float = 1) -> Iterator[None]:
    """Give a sink a short timeout for what is expected to time out; a busy server may need longer for the other requests."""
    settings = sink.settings.model_copy(update={"timeout_seconds": seconds})
    with patch.object(sink._connected(), "settings", settings):
        yield
