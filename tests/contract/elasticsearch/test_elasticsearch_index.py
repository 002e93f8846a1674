"""The index of a route: created, brought by its owner, evolved, claimed, gone."""

from contextlib import closing
from dataclasses import replace

import pytest
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors import Claim, EntryCount, PermanentError, RetryableError, Watermark
from connectors.testing import SCHEMA, deletion, render_chunk, upsert
from tests.contract.elasticsearch_reader import route_to
from tests.support.index_marks import record_as_a_day_old

LONG = {"type": "long"}


def with_column(name, kind):
    return StructType([*SCHEMA.fields, StructField(name, kind)])


def test_created_index_keeps_deletes_for_the_configured_time(elasticsearch, sink, es, route, sink_to):
    assert sink.prepare(SCHEMA, route) == []
    assert es("GET", f"/{route.table}/_settings")[route.table]["settings"]["index"]["gc_deletes"] == "1h"
    with closing(sink_to(elasticsearch.url, gc_deletes="2h")) as longer:
        assert longer.prepare(SCHEMA, route) == []
    assert es("GET", f"/{route.table}/_settings")[route.table]["settings"]["index"]["gc_deletes"] == "2h"


def test_the_option_index_names_the_target(sink, es, route):
    route = replace(route, options=sink.Options(index=f"{route.table}-v2"))
    assert sink.target(route) == f"index {route.table}-v2"
    sink.prepare(SCHEMA, route)
    assert es.mapping(f"{route.table}-v2")["_meta"]["cdf_replicator"]["route"] == "orders_search"


def test_preparing_an_unchanged_schema_changes_nothing(sink, es, route):
    sink.prepare(SCHEMA, route)
    before = es("GET", f"/{route.table}")
    sink.prepare(SCHEMA, route)
    assert es("GET", f"/{route.table}") == before


def test_a_new_column_is_mapped(sink, es, route, write):
    sink.prepare(SCHEMA, route)
    wider = with_column("at", TimestampType())
    sink.prepare(wider, route)
    assert es.mapping(route.table)["properties"]["at"] == {"type": "date", "ignore_malformed": True}
    assert not write(route, upsert("a", 1), schema=wider).rejected


def test_a_new_field_in_a_struct_is_mapped(sink, es, route):
    sink.prepare(with_column("home", StructType([StructField("zip", IntegerType())])), route)
    sink.prepare(
        with_column("home", StructType([StructField("zip", IntegerType()), StructField("no", LongType())])), route
    )
    assert es.mapping(route.table)["properties"]["home"]["properties"] == {"zip": LONG, "no": LONG}


def test_widened_column_keeps_its_field(sink, es, route, write):
    sink.prepare(with_column("n", IntegerType()), route)
    wider = with_column("n", LongType())
    assert sink.prepare(wider, route) == []
    assert not write(route, upsert("a", 1, n=2**40), schema=wider).rejected
    assert es.search(route.table, {"term": {"n": 2**40}}) == ["a"]


def test_column_of_another_kind_halts_with_the_resync_command(sink, route):
    sink.prepare(with_column("n", LongType()), route)
    with pytest.raises(PermanentError) as caught:
        sink.prepare(with_column("n", StringType()), route)
    assert "'n' is mapped as long, the route sends string" in caught.value.reason
    assert "cdf-replicator resync orders_search" in caught.value.hint


def test_existing_index_is_used_unchanged(sink, es, route, write):
    index = {
        "settings": {"index": {"gc_deletes": "30m", "refresh_interval": "7s"}},
        "mappings": {
            "dynamic": "false",
            "_meta": {"team": "search"},
            "properties": {"id": {"type": "keyword"}, "extra": {"type": "ip"}},
        },
    }
    es("PUT", f"/{route.table}", index)
    before = es("GET", f"/{route.table}/_settings")
    assert sink.prepare(SCHEMA, route) == []
    assert not write(route, upsert("a", 1, "one")).rejected
    mapping = es.mapping(route.table)
    assert mapping["properties"] == index["mappings"]["properties"]
    assert mapping["_meta"]["team"] == "search"
    assert es("GET", f"/{route.table}/_settings") == before
    assert sink.read_claim(route) == Claim("us", 1, route=route.name)
    assert es.search(route.table, {"term": {"id": "a"}}) == ["a"]


def test_index_without_mapping_gets_the_mapping_of_the_route(sink, es, route):
    es("PUT", f"/{route.table}", {"settings": {"index": {"gc_deletes": "1h"}}})
    sink.prepare(with_column("at", TimestampType()), route)
    assert es.mapping(route.table)["properties"]["at"] == {"type": "date", "ignore_malformed": True}


def test_dynamic_templates_choose_the_types(sink, es, route, write):
    rule = {"strings": {"match_mapping_type": "string", "mapping": {"type": "keyword"}}}
    es("PUT", f"/{route.table}", {"mappings": {"dynamic_templates": [rule]}})
    sink.prepare(SCHEMA, route)
    assert not write(route, upsert("a", 1, "one")).rejected
    assert es.mapping(route.table)["properties"]["name"] == {"type": "keyword"}


def test_nested_field_gains_a_field(sink, es, route, write):
    homes = {"type": "nested", "properties": {"zip": {"type": "integer"}}}
    es("PUT", f"/{route.table}", {"mappings": {"properties": {"home": homes}}})
    schema = with_column("home", StructType([StructField("zip", IntegerType()), StructField("no", LongType())]))
    sink.prepare(schema, route)
    assert es.mapping(route.table)["properties"]["home"]["properties"]["no"] == LONG
    assert not write(route, upsert("a", 1, home=(1, 2)), schema=schema).rejected


def test_index_with_short_delete_retention_is_warned_about_and_unchanged(sink, es, route):
    es("PUT", f"/{route.table}", {"settings": {"index": {"gc_deletes": "5m"}}})
    (warning,) = sink.prepare(SCHEMA, route)
    assert "forgets deletes after 5m" in warning
    assert es("GET", f"/{route.table}/_settings")[route.table]["settings"]["index"]["gc_deletes"] == "5m"


def test_asynchronous_translog_of_existing_index_is_warned_about(sink, es, route):
    es("PUT", f"/{route.table}", {"settings": {"index": {"gc_deletes": "1h", "translog.durability": "ASYNC"}}})
    (warning,) = sink.prepare(SCHEMA, route)
    assert "loses acknowledged writes if a node crashes" in warning


def test_created_index_keeps_acknowledged_writes_despite_a_template(sink, es, route):
    template = {"settings": {"index.translog.durability": "async"}}
    es("PUT", f"/_index_template/{route.table}", {"index_patterns": [route.table], "template": template})
    try:
        assert sink.prepare(SCHEMA, route) == []
    finally:
        es("DELETE", f"/_index_template/{route.table}")
    settings = es("GET", f"/{route.table}/_settings")[route.table]["settings"]["index"]
    assert settings["translog"]["durability"] == "request"


@pytest.mark.parametrize("kind", ["long", "date", "object", "boolean"])
def test_incompatible_mapping_is_reported_for_each_field(sink, es, route, kind):
    es("PUT", f"/{route.table}", {"mappings": {"properties": {"price": {"type": kind}}}})
    with pytest.raises(PermanentError) as caught:
        sink.prepare(with_column("price", DoubleType()), route)
    assert f"'price' is mapped as {kind}, the route sends double" in caught.value.reason
    assert "CDF_ROUTES__ORDERS_SEARCH__INDEX" in caught.value.hint
    assert sink.read_claim(route) is None


def test_strict_index_without_a_column_is_refused(sink, es, route):
    es("PUT", f"/{route.table}", {"mappings": {"dynamic": "strict", "properties": {"id": {"type": "keyword"}}}})
    with pytest.raises(PermanentError, match="is strict and does not map name"):
        sink.prepare(SCHEMA, route)


def test_row_refused_by_the_mapping_is_rejected_and_other_rows_are_written(sink, es, route, write):
    es("PUT", f"/{route.table}", {"mappings": {"properties": {"name": {"type": "ip"}}}})
    sink.prepare(SCHEMA, route)
    result = write(route, upsert("a", 1, "10.0.0.1"), upsert("b", 1, "Bob"), deletion("c", 1))
    assert [(row.position, row.code) for row in result.rejected] == [(1, "document_parsing")]
    assert list(result.noop) == [2]
    assert es.document(route.table, "a")
    assert es.document(route.table, "b") is None


def test_an_alias_with_a_write_index_is_written_through(sink, es, route, write):
    old, new = f"{route.table}-1", f"{route.table}-2"
    es("PUT", f"/{old}", {"aliases": {route.table: {"is_write_index": False}}})
    es("PUT", f"/{new}", {"aliases": {route.table: {"is_write_index": True}}})
    warnings = sink.prepare(SCHEMA, route)
    assert any(f"also covers {old}" in warning for warning in warnings)
    assert sink.read_claim(route) == Claim("us", 1, route=route.name)
    write(route, upsert("a", 1, "one"), upsert("b", 1, "two"))
    assert es.document(new, "a")
    assert es.document(old, "a") is None
    assert sorted(es("GET", f"/{new}/_alias")[new]["aliases"]) == [route.table]
    assert sink.delete_orphans(route, 2**45) == 2
    assert es.document(new, "a") is None


def test_an_alias_without_a_write_index_is_refused(sink, es, route):
    for number in (1, 2):
        es("PUT", f"/{route.table}-{number}", {"aliases": {route.table: {}}})
    with pytest.raises(PermanentError, match="no write index"):
        sink.prepare(SCHEMA, route)


def test_deleted_index_halts_the_route_and_is_not_created(sink, es, route, write):
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"))
    es("DELETE", f"/{route.table}")
    with pytest.raises(PermanentError) as caught:
        write(route, upsert("a", 2, "two"))
    assert "gone" in caught.value.reason
    assert "cdf-replicator resync orders_search" in caught.value.hint
    assert es.missing(f"/{route.table}")
    assert sink.read_claim(route) is None


def test_blocked_index_is_retried(sink, es, route, write):
    sink.prepare(SCHEMA, route)
    es("PUT", f"/{route.table}/_settings", {"index.blocks.read_only_allow_delete": True})
    with pytest.raises(RetryableError, match="disk usage exceeded") as caught:
        write(route, upsert("a", 1))
    assert caught.value.reason == "read_only"
    es("PUT", f"/{route.table}/_settings", {"index.blocks.read_only_allow_delete": None})
    es("POST", f"/{route.table}/_close")
    with pytest.raises(RetryableError, match="read_only"):
        write(route, upsert("a", 1))
    es("POST", f"/{route.table}/_open")
    assert not write(route, upsert("a", 1)).retry


def test_answers_keep_their_positions(sink, route, write):
    sink.prepare(SCHEMA, route)
    write(route, upsert("newer", 9))
    changes = [
        upsert("a", 1),
        deletion("x", 1),
        upsert("newer", 1),
        upsert("b", 1),
        deletion("y", 1),
        deletion("newer", 1),
    ]
    result = write(route, *changes)
    assert (list(result.noop), list(result.stale)) == ([1, 4], [2, 5])
    assert result.sent_bytes > 0


def test_sweep_reads_every_page(spark, sink, es, route):
    sink.prepare(SCHEMA, route)
    sink.open(route)
    changes = [upsert(f"k{number}", 1) for number in range(6000)]
    sink.write(render_chunk(spark, sink, route, SCHEMA, changes))
    sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("k7", 1, epoch=2)]))
    assert sink.delete_orphans(route, 2 * 2**44) == 5999
    assert es.search(route.table, {"match_all": {}}) == ["k7"]


def test_sweep_deletes_foreign_documents(spark, sink, es, route):
    """Remove documents without an external version, also with a routing; count a higher version, but keep it."""
    sink.prepare(SCHEMA, route)
    sink.open(route)
    changes = [upsert(key, 3, "x", epoch=2 if key == "ours" else 1) for key in ("ours", "changed")]
    sink.write(render_chunk(spark, sink, route, SCHEMA, changes))
    es("PUT", f"/{route.table}/_doc/changed", {"name": "theirs"})
    es("PUT", f"/{route.table}/_doc/new", {"name": "theirs"})
    es("PUT", f"/{route.table}/_doc/routed?routing=elsewhere", {"name": "theirs"})
    es("PUT", f"/{route.table}/_doc/high?version={9 * 2**44}&version_type=external", {"name": "theirs"})
    assert sink.count_entries(route, 2 * 2**44) == EntryCount(total=5, orphans=3, highest=9 * 2**44)
    assert sink.delete_orphans(route, 2 * 2**44) == 3
    assert es.search(route.table, {"match_all": {}}) == ["high", "ours"]


def test_sweep_with_a_refused_delete_halts_with_the_reason(sink, es, route, write):
    """The alias has another routing value than when the documents were written."""
    alias = {"index": f"{route.table}-1", "alias": route.table}
    es("PUT", f"/{route.table}-1", {"aliases": {route.table: {"index_routing": "former"}}})
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"))
    es("POST", "/_aliases", {"actions": [{"add": {**alias, "index_routing": "other"}}]})
    with pytest.raises(PermanentError, match=r"refuses 1 of 1 deletes .* has index routing associated") as caught:
        sink.delete_orphans(route, 2 * 2**44)
    assert f"cdf-replicator resume {route.name}" in caught.value.hint
    es("POST", "/_aliases", {"actions": [{"remove": alias}, {"add": alias}]})
    assert sink.delete_orphans(route, 2 * 2**44) == 1


@pytest.fixture
def snapshots(es):
    """A repository for snapshots, in the server's own folder."""
    es("PUT", "/_snapshot/copies", {"type": "fs", "settings": {"location": "copies"}})
    yield "/_snapshot/copies"
    es("DELETE", "/_snapshot/copies/*")
    es("DELETE", "/_snapshot/copies")


@pytest.mark.parametrize("over_itself", [False, True])
def test_index_restored_from_a_snapshot_is_detected_with_its_watermark(
    elasticsearch, sink, es, route, write, snapshots, over_itself, sink_to
):
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"))
    early, late, latest = Watermark(0, 4, 4), Watermark(0, 9, 9), Watermark(0, 12, 12)
    sink.save_watermark(route, early)
    record_as_a_day_old(elasticsearch.url, route.table)
    with closing(sink_to(elasticsearch.url)) as later:
        later.save_watermark(route, late)
    es("PUT", f"{snapshots}/before?wait_for_completion=true", {"indices": route.table, "include_global_state": False})
    with closing(sink_to(elasticsearch.url)) as later:
        later.save_watermark(route, latest)
        assert later.read_claim(route) == Claim("us", 1, watermark=latest, txn_version=12, route=route.name)
    assert not sink.lost_acknowledged_writes()
    es("POST", f"/{route.table}/_close") if over_itself else es("DELETE", f"/{route.table}")
    es("POST", f"{snapshots}/before/_restore?wait_for_completion=true", {"indices": route.table})
    assert sink.lost_acknowledged_writes()
    with pytest.raises(RetryableError, match="was replaced by another index"):
        sink.prepare(SCHEMA, route)
    assert sink.read_claim(route) == Claim("us", 1, watermark=early, restored=True, txn_version=4, route=route.name)
    with (
        closing(sink_to(elasticsearch.url)) as later,
        pytest.raises(RetryableError, match="restored from a copy") as raised,
    ):
        later.save_watermark(route, late)
    assert raised.value.reason == "lost"
    sink.prepare(SCHEMA, route)
    assert sink.read_claim(route) == Claim("us", 1, watermark=early, txn_version=4, route=route.name)


def test_copy_of_a_claim_younger_than_a_day_has_no_watermark(sink, es, route, snapshots):
    """A snapshot holds the documents of its start and the watermark of its end, and the time of its start is unknown."""
    sink.prepare(SCHEMA, route)
    sink.save_watermark(route, Watermark(0, 4, 4))
    es("PUT", f"{snapshots}/young?wait_for_completion=true", {"indices": route.table, "include_global_state": False})
    es("DELETE", f"/{route.table}")
    es("POST", f"{snapshots}/young/_restore?wait_for_completion=true", {"indices": route.table})
    assert sink.read_claim(route) == Claim("us", 1, restored=True, route=route.name)


def test_watermark_is_written_periodically_and_first_of_generation_at_once(sink, route):
    sink.prepare(SCHEMA, route)
    for number in (4, 5):
        sink.save_watermark(route, Watermark(0, number, number))
    assert sink.read_claim(route).watermark == Watermark(0, 4, 4)
    sink.save_watermark(route, Watermark(1, 0, 2))
    assert sink.read_claim(route).watermark == Watermark(1, 0, 2)


def test_watermark_restores_the_epoch_that_a_paused_writer_has_put_back(elasticsearch, sink, es, route, sink_to):
    sink.prepare(SCHEMA, route)
    former = {"_meta": es.mapping(route.table)["_meta"]}
    later = replace(route, fence=route.fence + 1, epoch=2)
    with closing(sink_to(elasticsearch.url)) as successor:
        successor.prepare(SCHEMA, later)
        es("PUT", f"/{route.table}/_mapping", former)  # by the writer that has read it before
        successor.save_watermark(later, Watermark(0, 4, 4))
        assert successor.read_claim(later).epoch == 2


def test_watermark_of_earlier_version_is_read(sink, es, route):
    sink.prepare(SCHEMA, route)
    meta = es("GET", f"/{route.table}/_mapping")[route.table]["mappings"]["_meta"]
    meta["cdf_replicator"]["mark"] = 7
    es("PUT", f"/{route.table}/_mapping", {"_meta": meta})
    assert sink.read_claim(replace(route, watermark=Watermark(2, 5, 7))) == Claim(
        "us", 1, watermark=Watermark(-1, 0, 7), route=route.name
    )


def test_watermark_of_a_deleted_index_reports_the_missing_index(sink, es, route):
    sink.prepare(SCHEMA, route)
    es("DELETE", f"/{route.table}")
    assert sink.lost_acknowledged_writes()
    with pytest.raises(PermanentError, match="is gone"):
        sink.save_watermark(route, Watermark(0, 4, 4))


def test_index_replaced_by_an_alias_of_its_name_has_lost_writes(sink, es, route, write):
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"))
    es("PUT", f"/{route.table}-v2", {"mappings": es.mapping(route.table)})
    swap = [{"remove_index": {"index": route.table}}, {"add": {"index": f"{route.table}-v2", "alias": route.table}}]
    es("POST", "/_aliases", {"actions": swap})
    assert sink.lost_acknowledged_writes()


def test_alias_that_moves_has_lost_writes_until_it_is_back(sink, es, route, write):
    """The former index still exists, and the next watermark may be written after the alias is back."""
    former, other = ({"index": f"{route.table}-{number}", "alias": route.table} for number in (1, 2))
    for each in (former, other):
        es("PUT", f"/{each['index']}")
    es("POST", "/_aliases", {"actions": [{"add": former}]})
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"))
    assert not sink.lost_acknowledged_writes()
    es("POST", "/_aliases", {"actions": [{"remove": former}, {"add": other}]})
    assert sink.lost_acknowledged_writes()
    es("POST", "/_aliases", {"actions": [{"remove": other}, {"add": former}]})
    assert not sink.lost_acknowledged_writes()


def test_other_state_path_takes_over_with_any_lease_number(sink, elasticsearch, spark, sink_to):
    """Fence numbers of two state paths are not comparable: the new state path may have the lower number."""
    before = route_to(owner="lost", fence=9)
    after = replace(before, owner="ours", epoch=2, fence=3)
    with closing(sink_to(elasticsearch.url)) as leftover:
        leftover.prepare(SCHEMA, before)
        leftover.open(before)
        sink.prepare(SCHEMA, after)
        sink.open(after)
        chunk = render_chunk(spark, sink, after, SCHEMA, [upsert("a", 1)])
        assert not sink.write(chunk).stale
        with pytest.raises(PermanentError, match="another instance has taken over"):
            leftover.write(chunk)
