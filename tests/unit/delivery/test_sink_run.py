"""The columns that a sink renders are kept until the row or the route changes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructType

from cdf_replicator.delivery.driver import SinkRun
from connectors import RouteOptions, RouteSpec, Watermark

ROW = StructType().add("id", LongType())
ROUTE = RouteSpec("orders_cache", "orders", ("id",), RouteOptions(), owner="o", epoch=1, watermark=Watermark(0, 1, 1))


@pytest.fixture
def sink():
    made = SimpleNamespace(given=[])

    def render(row, route):
        made.given.append((row, route))
        return [len(made.given)]

    made.render = render
    return made


def test_next_micro_batch_gets_the_same_columns_without_a_watermark(sink):
    run = SinkRun()
    later = replace(ROUTE, watermark=Watermark(0, 2, 2))
    assert [run.columns(sink, ROW, route) for route in (ROUTE, later)] == [[1], [1]]
    assert sink.given == [(ROW, replace(ROUTE, watermark=None))]


@pytest.mark.parametrize(
    ("row", "route"),
    [(StructType().add("id", LongType()).add("name", LongType()), ROUTE), (ROW, replace(ROUTE, epoch=2))],
)
def test_columns_are_rendered_again_for_another_row_or_route(sink, row, route):
    run = SinkRun()
    assert run.columns(sink, ROW, ROUTE) == [1]
    assert run.columns(sink, row, route) == [2]
