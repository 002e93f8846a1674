"""``OpenSearchSink`` held to the contract and to the tests of Elasticsearch's indices, against a real server.

Elasticsearch alone has runtime fields and index modes. The test server has no ingest node.
"""

import threading
from contextlib import closing

import pytest
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.delivery.back_pressure import BackPressure
from cdf_replicator.delivery.worker import write_partition
from connectors import PermanentError, RetryableError, load
from connectors.elasticsearch import OpenSearchSink
from connectors.testing import SCHEMA, render_chunk, upsert
from tests.contract.elasticsearch.test_elasticsearch import DocumentContract
from tests.contract.elasticsearch.test_elasticsearch_index import *  # noqa: F403
from tests.contract.elasticsearch.test_elasticsearch_index_faults import *  # noqa: F403
from tests.contract.elasticsearch.test_elasticsearch_shared import *  # noqa: F403
from tests.contract.elasticsearch.test_elasticsearch_types import *  # noqa: F403
from tests.contract.elasticsearch_reader import opensearch_to, route_to, sink_to
from tests.contract.type_cases import DEEP_ARRAYS, REFUSED_BY_OPENSEARCH
from tests.support.tiers import nightly

del test_missing_pipeline_halts_and_rejects_no_row  # noqa: F821
del test_refused_empty_document_blames_the_index_instead_of_the_rows  # noqa: F821
del test_date_refused_by_existing_index_is_rejected_and_other_rows_written  # noqa: F821 - it takes every year


class TestOpenSearchSink(DocumentContract):
    refused = frozenset({DEEP_ARRAYS})


def test_the_type_opensearch_is_this_sink():
    assert load("opensearch") is OpenSearchSink


def test_other_product_is_named_with_its_type(opensearch, elasticsearch_process):
    for sink, product, other in (
        (sink_to(opensearch.url), "OpenSearch/3.8.0 (opensearch)", "opensearch"),
        (opensearch_to(elasticsearch_process.url), "Elasticsearch", "elasticsearch"),
    ):
        with closing(sink), pytest.raises(PermanentError) as caught:
            sink.check()
        assert caught.value.reason == f"this is {product}, and the sink has TYPE={sink.settings.type}."
        assert caught.value.hint == f"Set TYPE={other} of the sink."


@pytest.mark.parametrize("vectors", ["embedding:3", "embedding:3:cosine"])
def test_missing_vector_plugin_is_named(sink, es, vectors):
    route = route_to(options=OpenSearchSink.Options(vectors=vectors))
    schema = StructType([*SCHEMA.fields, StructField("embedding", ArrayType(FloatType()))])
    with pytest.raises(PermanentError, match="OpenSearch can't keep vectors: ") as caught:
        sink.prepare(schema, route)
    assert "opensearch-knn" in caught.value.hint
    assert es.missing(f"/{route.table}")


@pytest.mark.parametrize("refusal", REFUSED_BY_OPENSEARCH, ids=lambda refusal: refusal.shown)
def test_refused_value_has_the_documented_code(spark, sink, es, route, refusal):
    frame = spark.sql(f"""
        SELECT id AS key, 17592186044419L AS guard, 'insert' AS change_type, named_struct('id', id, 'body', body) AS row
        FROM VALUES ('refused', {refusal.sql}), ('null', CAST(NULL AS {refusal.type})) AS t(id, body)""")
    result = delivered(sink, route, frame)
    assert [(row.position, row.code) for row in result.rejected] == [(0, refusal.code)]
    assert es.search(route.table, {"match_all": {}}) == ["null"]


@pytest.fixture
def one_point_in_time(es):
    """Let a node hold a single point in time, of one shard."""
    es("PUT", "/_cluster/settings", {"persistent": {"search.max_open_pit_context": 1}})
    yield
    es("PUT", "/_cluster/settings", {"persistent": {"search.max_open_pit_context": None}})


def test_view_of_a_part_of_the_shards_is_refused(sink, es, route, write, one_point_in_time):
    es("PUT", f"/{route.table}", {"settings": {"number_of_shards": 2}})
    sink.prepare(SCHEMA, route)
    write(route, *(upsert(str(number), 1) for number in range(20)))
    for call in (sink.count_entries, sink.delete_orphans):
        with pytest.raises(RetryableError) as caught:
            call(route, 2 * 2**44)
        assert caught.value.reason in {"unavailable", "overloaded"}
    with pytest.raises(RetryableError), sink.view(route):
        pass
    es("POST", f"/{route.table}/_refresh")
    assert es("GET", f"/{route.table}/_count")["count"] == 20


def test_years_after_9999_are_found(spark, sink, es, route):
    frame = spark.sql("""
        SELECT 'late' AS key, 17592186044419L AS guard, 'insert' AS change_type,
               named_struct('id', 'late', 'day', DATE'+12024-01-01') AS row""")
    assert not delivered(sink, route, frame).rejected
    assert es.search(route.table, {"range": {"day": {"gt": "9999-12-31"}}}) == ["late"]


def delivered(sink, route, frame):
    schema = frame.schema["row"].dataType
    sink.prepare(schema, route)
    sink.open(route)
    table = frame.select("key", "guard", "change_type", *sink.render(schema, route)).toArrow().combine_chunks()
    return sink.write(table.to_batches()[0])


def test_too_large_request_is_halved_and_too_large_row_is_rejected(es, sink, spark, route):
    sink.prepare(SCHEMA, route)
    sink.open(route)
    changes = [upsert(f"k{number}", 1, "x" * 1_300_000) for number in range(4)]
    changes[2] = upsert("huge", 1, "y" * 4_300_000)
    result = sink.write(render_chunk(spark, sink, route, SCHEMA, changes))
    assert [(row.position, row.code) for row in result.rejected] == [(2, "too_large")]
    assert es.search(route.table, {"match_all": {}}) == ["k0", "k1", "k3"]


@pytest.mark.parametrize("down", ["kill", nightly("pause")])
def test_server_that_is_away_during_delivery_loses_no_row(opensearch, spark, sink, es, down):
    route = route_to()
    sink.prepare(SCHEMA, route)
    with closing(opensearch_to(opensearch.url, request_timeout=1 if down == "pause" else 15)) as used:
        chunks = [
            render_chunk(spark, sink, route, SCHEMA, [upsert(f"{at}-{n}", 1, "x") for n in range(50)])
            for at in range(4)
        ]

        def interrupted():
            yield chunks[0]
            getattr(opensearch, down)()
            with pytest.raises(RetryableError, match="timeout" if down == "pause" else "unreachable"):
                used.check()
            back = threading.Timer(1.5, opensearch.resume if down == "pause" else opensearch.restart)
            back.start()
            yield from chunks[1:]
            back.join()

        policy = RetryPolicy(budget_seconds=180)
        outcome = write_partition(used, BackPressure(used.settings), route, policy, interrupted())
        assert (outcome.failure, outcome.applied) == (None, {"update_postimage": 200})
        assert outcome.retries
        es("POST", f"/{route.table}/_refresh")
        assert es("GET", f"/{route.table}/_count")["count"] == 200
