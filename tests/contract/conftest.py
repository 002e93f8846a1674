"""Elasticsearch as most of its tests need it; the tests of another sink have fixtures of their own by these names."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from connectors.testing import SCHEMA, render_chunk
from tests.contract import elasticsearch_reader
from tests.contract.elasticsearch_reader import Reader, route_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from connectors import Change, RouteSpec, WriteResult
    from connectors.elasticsearch import ElasticsearchSink
    from deploy.local.servers import Elasticsearch


@pytest.fixture
def es(elasticsearch: Elasticsearch) -> Reader:
    return Reader(elasticsearch.url)


@pytest.fixture
def sink_to() -> Callable[..., ElasticsearchSink]:
    return elasticsearch_reader.sink_to


@pytest.fixture
def sink(elasticsearch: Elasticsearch, sink_to: Callable[..., ElasticsearchSink]) -> Iterator[ElasticsearchSink]:
    with closing(sink_to(elasticsearch.url)) as sink:
        yield sink


@pytest.fixture
def route() -> RouteSpec:
    return route_to()


@pytest.fixture
def runtime() -> dict[str, dict[str, dict[str, str]]]:
    """The mapping of a field that a search computes."""
    return {"runtime": {"r": {"type": "long"}}}


@pytest.fixture
def write(spark: SparkSession, sink: ElasticsearchSink) -> Callable[..., WriteResult]:
    """Write changes as one chunk, to an index that is prepared."""

    def write(route: RouteSpec, *changes: Change, schema: StructType = SCHEMA) -> WriteResult:
        sink.open(route)
        return sink.write(render_chunk(spark, sink, route, schema, changes))

    return write
