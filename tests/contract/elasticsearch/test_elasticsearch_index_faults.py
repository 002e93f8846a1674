"""A fault of an index rejects no row, and a silent host of two delays only one start, by seconds."""

import socket
import time
from contextlib import closing

import pytest

from connectors import PermanentError, RetryableError
from connectors.elasticsearch.client import cluster_of
from connectors.testing import SCHEMA, deletion, render_chunk, upsert


@pytest.mark.parametrize("setting", ["index.default_pipeline", "index.final_pipeline"])
def test_missing_pipeline_halts_and_rejects_no_row(sink, es, route, write, setting):
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"), upsert("b", 1, "two"))
    es("PUT", f"/{route.table}/_settings", {setting: "enrich"})
    with pytest.raises(PermanentError, match=r"pipeline with id \[enrich\] does not exist") as caught:
        write(route, upsert("a", 2, "three"), deletion("b", 2))
    assert "Create that ingest pipeline" in caught.value.hint
    assert es.document(route.table, "a") == {"id": "a", "name": "one"}


@pytest.mark.parametrize("setting", ["index.default_pipeline", "index.final_pipeline"])
def test_ingest_pipeline_of_an_index_is_a_warning(sink, es, route, setting):
    sink.prepare(SCHEMA, route)
    es("PUT", f"/{route.table}/_settings", {setting: "enrich"})
    (warning,) = sink.prepare(SCHEMA, route)
    assert "has an ingest pipeline (enrich)" in warning
    es("PUT", f"/{route.table}/_settings", {setting: "_none"})
    assert sink.prepare(SCHEMA, route) == []


def test_index_that_requires_routing_halts_and_rejects_no_row(sink, es, route, write):
    template = {"index_patterns": [route.table], "template": {"mappings": {"_routing": {"required": True}}}}
    es("PUT", f"/_index_template/{route.table}", template)
    try:
        sink.prepare(SCHEMA, route)
        for change in (upsert("a", 1, "one"), deletion("a", 2)):
            with pytest.raises(PermanentError, match="routing is required") as caught:
                write(route, change)
            assert "cdf-replicator resync" in caught.value.hint
    finally:
        es("DELETE", f"/_index_template/{route.table}")


def test_refused_empty_document_blames_the_index_instead_of_the_rows(sink, es, route, write):
    settings = {"index.mode": "logsdb", "index.mapping.source.mode": "stored"}  # which demands a @timestamp
    es("PUT", f"/{route.table}", {"settings": settings, "mappings": {"properties": {"name": {"type": "keyword"}}}})
    sink.prepare(SCHEMA, route)
    with pytest.raises(PermanentError, match=r"even an empty document: .*@timestamp") as caught:
        write(route, upsert("a", 3, "one"), deletion("c", 3))
    assert "No document was deleted" in caught.value.hint


def test_faulty_rows_are_rejected_even_if_all_rows_are_faulty(sink, es, route, write):
    es("PUT", f"/{route.table}", {"mappings": {"properties": {"name": {"type": "ip"}}}})
    sink.prepare(SCHEMA, route)
    result = write(route, upsert("a", 2, "Ann"), upsert("b", 2, "Bob"))
    assert [(row.position, row.code) for row in result.rejected] == [(0, "document_parsing"), (1, "document_parsing")]
    assert es.search(route.table, {"match_all": {}}) == [], "the empty document is not kept"


def test_resync_retries_on_a_closed_index(sink, es, route, write):
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"))
    es("POST", f"/{route.table}/_close")
    for call in (lambda: sink.count_entries(route, 2**45), lambda: sink.delete_orphans(route, 2**45)):
        with pytest.raises(RetryableError, match="closed") as caught:
            call()
        assert caught.value.reason == "read_only"
    es("POST", f"/{route.table}/_open")
    assert sink.count_entries(route, 2**45).total == 1


def test_unresponsive_host_delays_one_start_and_next_run_avoids_it(elasticsearch, spark, sink, route, sink_to):
    chunk = render_chunk(spark, sink, route, SCHEMA, [upsert("a", 1, "one")])
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never says a word
        hosts = f"http://127.0.0.1:{silent.getsockname()[1]},{elasticsearch.url}"
        began = time.monotonic()
        for _ in range(2):  # runs of a route
            with closing(sink_to(hosts, request_timeout=60)) as used:
                used.check()
                used.read_claim(route)
                used.prepare(SCHEMA, route)
                used.open(route)
                assert not used.write(chunk).rejected
        assert time.monotonic() - began < 60, "less than one request's time"
        silent.settimeout(0)
        tried = 0
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
            tried += 1
        assert 1 <= tried <= 5, "by few of the fourteen requests"
        assert cluster_of(used.settings) is cluster_of(sink_to(hosts, request_timeout=60).settings)


def test_deletes_create_no_index_in_place_of_a_removed_alias(sink, es, route, write):
    es("PUT", f"/{route.table}-1", {"aliases": {route.table: {}}})
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1, "one"), upsert("b", 1, "two"))
    result = write(route, deletion("a", 2), deletion("c", 2))
    assert list(result.noop) == [1]
    assert [*result.stale, *result.rejected, *result.retry] == []
    es("DELETE", f"/{route.table}-1/_alias/{route.table}")
    with pytest.raises(PermanentError, match="the index is gone"):
        write(route, deletion("b", 2), deletion("c", 3))
    assert es.missing(f"/{route.table}")
    assert es.document(f"{route.table}-1", "b") == {"id": "b", "name": "two"}
