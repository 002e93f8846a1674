"""PostgreSQL as most of its tests need it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from connectors.testing import SCHEMA, render_chunk
from tests.contract.postgres_reader import Reader, route_to, sink_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connectors import RouteSpec, WriteResult
    from connectors.postgres import PostgresSink
    from deploy.local.servers import Postgres


@pytest.fixture
def db(postgres_server: Postgres) -> Iterator[Reader]:
    reader = Reader(postgres_server.url)
    with closing(reader.connection):
        yield reader


@pytest.fixture
def sink(postgres_server: Postgres) -> Iterator[PostgresSink]:
    with closing(sink_to(postgres_server.url)) as sink:
        yield sink


@pytest.fixture
def route() -> RouteSpec:
    return route_to()


@pytest.fixture
def publication(db: Reader) -> Iterator[None]:
    """Publish every table: a delete then needs a replica identity."""
    db("CREATE PUBLICATION everything FOR ALL TABLES")
    yield
    db("DROP PUBLICATION everything")


@pytest.fixture
def deliver(spark, sink) -> Callable[..., WriteResult]:
    """Write changes as one chunk, to a table that is prepared."""

    def deliver(route, *changes, schema=SCHEMA):
        sink.open(route)
        return sink.write(render_chunk(spark, sink, route, schema, changes))

    return deliver


@pytest.fixture
def written(spark) -> Callable[..., Callable[..., WriteResult]]:
    """Prepare a sink and return a function that writes changes."""

    def written(sink, route, schema=SCHEMA):
        sink.prepare(schema, route)
        sink.open(route)
        return lambda *changes: sink.write(render_chunk(spark, sink, route, schema, changes))

    return written
