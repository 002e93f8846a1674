"""An index that two routes are led to, and how many fields an index of ours may have."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connectors import PermanentError, Watermark
from connectors.testing import SCHEMA, render_chunk, upsert
from tests.contract.elasticsearch_reader import route_to


@pytest.fixture
def sinks(elasticsearch, sink_to):
    """Yield the sinks of two routes."""
    with closing(sink_to(elasticsearch.url)) as one, closing(sink_to(elasticsearch.url, chunk_rows=7)) as other:
        yield one, other


@pytest.fixture
def sink(sinks):
    return sinks[0]


def wide(strings, *more):
    return StructType([*SCHEMA.fields, *(StructField(f"c{n}", StringType()) for n in range(strings)), *more])


def limit(es, index):
    return int(es("GET", f"/{index}/_settings")[index]["settings"]["index"]["mapping"]["total_fields"]["limit"])


def through_alias(es, route, name):
    es("POST", "/_aliases", {"actions": [{"add": {"index": route.table, "alias": f"{route.table}-alias"}}]})
    return replace(route, name=name, options=type(route.options)(index=f"{route.table}-alias"))


@pytest.mark.parametrize("alias", [False, True])
def test_index_of_another_route_is_refused_until_a_later_epoch(spark, sinks, es, alias):
    sink, other_sink = sinks
    route = route_to()
    sink.prepare(SCHEMA, route)
    sink.open(route)
    other = through_alias(es, route, "orders_copy") if alias else replace(route, name="orders_copy")
    claim = other_sink.read_claim(other)
    assert claim.route == "orders_search"
    assert claim.other(other) == "route orders_search"
    assert claim.other(replace(other, owner="them")) == "route orders_search of another state path"
    assert claim.other(route) is None
    with pytest.raises(PermanentError, match="is filled by route orders_search") as refused:
        other_sink.prepare(SCHEMA, other)
    assert "resync {route}" in refused.value.hint
    assert not sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("a", 1, "one")])).rejected
    other_sink.prepare(SCHEMA, replace(other, epoch=2))
    assert sink.read_claim(route).other(route) == "route orders_copy"
    with pytest.raises(PermanentError, match="has taken over"):
        sink.save_watermark(route, Watermark(0, 1, 1))


def test_one_of_two_routes_creating_the_same_index_is_refused(sinks):
    for _ in range(5):
        route = route_to()
        routes = (route, replace(route, name="orders_copy", owner="them"))
        assert [sink.read_claim(each) for sink, each in zip(sinks, routes, strict=True)] == [None, None]
        together = Barrier(2)

        def prepared(sink, route, together=together):
            together.wait()
            try:
                sink.prepare(SCHEMA, route)
            except PermanentError as error:
                return error.reason
            return route.name

        with ThreadPoolExecutor(2) as pool:
            outcomes = sorted(pool.map(prepared, sinks, routes))
        holder = sinks[0].read_claim(route).route
        refused = next(outcome for outcome in outcomes if outcome != holder)
        assert f"is filled by route {holder} of another state path" in refused


@pytest.mark.parametrize("first", [300, 400, 520])
def test_field_limit_grows_with_the_mapping_and_is_never_lowered(sink, es, first):
    route = route_to()
    sink.prepare(wide(first), route)
    sink.prepare(wide(700), route)
    assert limit(es, route.table) == 1404
    es("PUT", f"/{route.table}/_settings", {"index.mapping.total_fields.limit": 5000})
    sink.prepare(wide(710), route)
    assert limit(es, route.table) == 5000


def test_fields_are_counted_as_the_server_counts_them(sink, es, runtime):
    """Objects, sub-fields, aliases and runtime fields; the server refuses a mapping that has more than the limit by one."""
    deep = LongType()
    for _ in range(5):
        deep = StructType([StructField("x", deep)])
    route = route_to()
    sink.prepare(SCHEMA, route)
    more = {"properties": {"other": {"type": "alias", "path": "id"}}, **runtime}
    es("PUT", f"/{route.table}/_mapping", more)
    sink.prepare(wide(0, *(StructField(f"d{n}", deep) for n in range(180))), route)
    assert limit(es, route.table) == 4 + 1 + len(runtime) + 180 * 6
    with pytest.raises(AssertionError, match="Limit of total fields"):
        es("PUT", f"/{route.table}/_mapping", {"properties": {"further": {"type": "long"}}})


def test_a_template_s_field_limit_is_not_lowered(sink, es):
    route = route_to()
    template = {"settings": {"index.mapping.total_fields.limit": 3000}}
    es(
        "PUT",
        f"/_index_template/{route.table}",
        {"index_patterns": [route.table], "priority": 900, "template": template},
    )
    sink.prepare(wide(600), route)
    assert limit(es, route.table) == 3000


def test_existing_index_keeps_its_field_limit_and_error_names_the_setting(sink, es):
    route = route_to()
    es("PUT", f"/{route.table}", {"settings": {"index.mapping.total_fields.limit": 20}})
    with pytest.raises(
        PermanentError, match="takes 20 fields, objects and sub-fields included, and would have 24"
    ) as full:
        sink.prepare(wide(10), route)
    assert "index.mapping.total_fields.limit of the index to 24" in full.value.hint
    assert limit(es, route.table) == 20
    assert sink.read_claim(route) is None
