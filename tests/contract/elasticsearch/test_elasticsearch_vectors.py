"""Columns that are kept as vectors: their search, the comparison, and values that no vector can hold."""

import pytest
from pydantic import ValidationError
from pyspark.sql.types import ArrayType, DoubleType, FloatType, StructField, StructType

from connectors import PermanentError
from connectors.elasticsearch import ElasticsearchSink
from connectors.testing import SCHEMA, upsert
from connectors.testing.chunk import change_frame
from connectors.testing.contract import assert_applied
from connectors.testing.verifying import read_entries, written
from tests.contract.elasticsearch_reader import route_to

VECTORS = StructType([*SCHEMA.fields, StructField("embedding", ArrayType(FloatType()))])


def route_of(vectors, index=None):
    return route_to(options=ElasticsearchSink.Options(vectors=vectors, index=index))


@pytest.mark.parametrize("metric", ["", ":cosine", ":l2", ":ip"])
@pytest.mark.parametrize("element", [FloatType(), DoubleType()], ids=str)
def test_vector_is_read_back_as_it_was_written(sink, es, write, spark, metric, element):
    schema = StructType([*SCHEMA.fields, StructField("embedding", ArrayType(element))])
    route = route_of(f"embedding:3{metric}")
    sink.prepare(schema, route)
    sink.prepare(schema, route)
    changes = [upsert(f"v{number}", 1, embedding=[number / 3, 1e-7, 3.1]) for number in range(1, 20)]
    changes.append(upsert("none", 1))
    assert_applied(write(route, *changes, schema=schema))
    held = read_entries(spark, sink, route, schema)
    sent = written(change_frame(spark, schema, changes), sink, route)
    assert held == sent


def test_vectors_that_an_index_leaves_out_of_its_source_are_read(sink, es, write, spark):
    route = route_of("embedding:3")
    field = {"type": "dense_vector", "dims": 3, "index": False}
    es("PUT", f"/{route.table}", {"mappings": {"properties": {"embedding": field}}})
    assert any("leaves vectors out of _source" in warning for warning in sink.prepare(VECTORS, route))
    assert_applied(write(route, upsert("a", 1, embedding=[0.1, 1e-7, 3.0]), schema=VECTORS))
    assert "embedding" not in es("GET", f"/{route.table}/_doc/a")["_source"]
    (row,) = [row for _, row in read_entries(spark, sink, route, VECTORS).values()]
    assert row["embedding"] == ["0.1", "1.0E-7", "3.0"]


def test_indexed_vector_is_found_by_its_neighbours(sink, es, write):
    route = route_of("embedding:3:cosine")
    sink.prepare(VECTORS, route)
    assert_applied(
        write(
            route,
            upsert("a", 1, embedding=[1.0, 0.0, 0.1]),
            upsert("b", 1, embedding=[0.0, 1.0, 0.0]),
            schema=VECTORS,
        )
    )
    es("POST", f"/{route.table}/_refresh")
    near = {"field": "embedding", "query_vector": [1, 0.1, 0], "k": 1, "num_candidates": 10}
    (hit,) = es("POST", f"/{route.table}/_search", {"knn": near})["hits"]["hits"]
    assert hit["_id"] == "a"


@pytest.mark.parametrize("vector", [[1.0, 2.0], [1.0] * 4, [1.0, None, 2.0], [1.0, float("nan"), 2.0], []])
def test_vector_that_does_not_fit_is_rejected_and_others_are_written(sink, es, write, vector):
    route = route_of("embedding:3")
    sink.prepare(VECTORS, route)
    good = [upsert(key, 1, embedding=[1.0, 2.0, 3.0]) for key in ("a", "c")]
    result = write(route, good[0], upsert("b", 1, embedding=vector), good[1], schema=VECTORS)
    assert [(row.position, row.code) for row in result.rejected] == [(1, "document_parsing")]
    assert es.search(route.table, {"match_all": {}}) == ["a", "c"]


def test_vector_of_another_dimension_is_refused(sink):
    route = route_of("embedding:3")
    sink.prepare(VECTORS, route)
    with pytest.raises(PermanentError, match=r"mapped as dense_vector\(3\), the route sends dense_vector\(4\)"):
        sink.prepare(VECTORS, route_of("embedding:4", route.table))
    with pytest.raises(PermanentError, match=r"mapped as dense_vector\(3\), the route sends array<float>"):
        sink.prepare(VECTORS, route_of("", route.table))


def test_vectors_name_an_array_of_numbers(sink):
    with pytest.raises(PermanentError, match="Name one of: embedding"):
        sink.prepare(VECTORS, route_of("name:3"))


@pytest.mark.parametrize("text", ["embedding", "embedding:0", "embedding:3:euclid", ":3", "embedding:4097"])
def test_wrong_declaration_of_vectors_is_refused(text):
    with pytest.raises(ValidationError, match="expected column:dimension"):
        route_of(text)
