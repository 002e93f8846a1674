"""Columns that pgvector keeps: their type and index, the search, and vectors that it can't hold."""

import pytest
from pydantic import ValidationError
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from connectors import PermanentError
from connectors.postgres import PostgresOptions
from connectors.testing import SCHEMA, upsert
from connectors.testing.contract import assert_applied
from connectors.testing.verifying import read_entries
from tests.contract.postgres_reader import route_to

VECTORS = StructType([*SCHEMA.fields, StructField("embedding", ArrayType(FloatType()))])


@pytest.fixture
def extended(db):
    db("CREATE EXTENSION IF NOT EXISTS vector")
    yield
    db("DROP EXTENSION IF EXISTS vector CASCADE")


@pytest.fixture
def route():
    return route_to(options={"vectors": "embedding:3:cosine"})


@pytest.mark.usefixtures("extended")
def test_vector_is_searched_by_its_index(sink, deliver, db, route, spark):
    sink.prepare(VECTORS, route)
    sink.prepare(VECTORS, route)
    assert db.types(route.table)["embedding"] == "vector(3)"
    assert_applied(
        deliver(
            route, upsert("a", 1, embedding=[1.0, 0.0, 1e-7]), upsert("b", 1, embedding=[0.0, 1.0, 0.0]), schema=VECTORS
        )
    )
    assert_applied(deliver(route, upsert("none", 1), schema=VECTORS))
    query = f"SELECT id FROM \"{route.table}\" WHERE embedding IS NOT NULL ORDER BY embedding <=> '[1,0.1,0]' LIMIT 1"
    assert db(query) == [{"id": "a"}]
    with db.connection.transaction():
        db("SET LOCAL enable_seqscan = off")
        plan = str(db("EXPLAIN " + query))
    assert f"{route.table}__cdf_embedding" in plan
    assert read_entries(spark, sink, route, VECTORS)["a"][1]["embedding"] == ["1.0", "0.0", "1.0E-7"]


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("vector", [[1.0, 2.0], [1.0] * 4, [1.0, None, 2.0], [1.0, float("nan"), 2.0], []])
def test_vector_that_does_not_fit_is_rejected_and_others_are_written(sink, deliver, db, route, vector):
    sink.prepare(VECTORS, route)
    good = [upsert(key, 1, embedding=[1.0, 2.0, 3.0]) for key in ("a", "c")]
    result = deliver(route, good[0], upsert("b", 1, embedding=vector), good[1], schema=VECTORS)
    assert [(entry.position, entry.code) for entry in result.rejected] == [(1, "invalid")]
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}" ORDER BY id')] == ["a", "c"]


def test_missing_extension_is_named_with_its_statement(sink, route):
    with pytest.raises(PermanentError, match="needs the extension vector") as caught:
        sink.prepare(VECTORS, route)
    assert "CREATE EXTENSION vector" in caught.value.hint


@pytest.mark.usefixtures("extended")
def test_extension_of_another_schema_is_found(sink, deliver, db, route):
    db("CREATE SCHEMA IF NOT EXISTS extensions; ALTER EXTENSION vector SET SCHEMA extensions")
    sink.prepare(VECTORS, route)
    sink.prepare(VECTORS, route)
    assert db.types(route.table)["embedding"] == "extensions.vector(3)"
    assert_applied(deliver(route, upsert("a", 1, embedding=[1.0, 0.0, 0.5]), schema=VECTORS))


@pytest.mark.usefixtures("extended")
def test_vector_of_another_dimension_is_refused(sink, route):
    sink.prepare(VECTORS, route)
    longer = route_to(route.table, options={"vectors": "embedding:4"})
    with pytest.raises(PermanentError, match=r"column embedding is vector\(3\), the route sends vector\(4\)"):
        sink.prepare(VECTORS, longer)


def test_vectors_name_an_array_of_numbers(sink):
    with pytest.raises(PermanentError, match="Name one of: embedding"):
        sink.prepare(VECTORS, route_to(options={"vectors": "name:3"}))


@pytest.mark.parametrize("text", ["embedding", "embedding:0", "embedding:3:euclid", ":3", "embedding:99999"])
def test_wrong_declaration_of_vectors_is_refused(text):
    with pytest.raises(ValidationError, match="expected column:dimension"):
        PostgresOptions(vectors=text)
