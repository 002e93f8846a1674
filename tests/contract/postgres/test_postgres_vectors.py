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


def indexes(db, route):
    """Return the column and the operators of each HNSW index, by its name."""
    query = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%hnsw%%'"
    return {row["indexname"]: row["indexdef"].partition(" hnsw ")[2] for row in db(query, route.table)}


@pytest.mark.usefixtures("extended")
def test_columns_with_long_names_have_an_index_each(sink, db):
    names = [f"embedding_{'x' * 40}_{end}" for end in ("ä", "b")]
    schema = StructType([*SCHEMA.fields, *(StructField(name, ArrayType(FloatType())) for name in names)])
    route = route_to(options={"vectors": ",".join(f"{name}:3:l2" for name in names)})
    for _ in range(2):
        assert sink.prepare(schema, route) == []
        found = indexes(db, route)
        assert sorted(found.values()) == sorted(f"({quoted(name)} vector_l2_ops)" for name in names)


def quoted(name):
    return name if name.isascii() else f'"{name}"'


@pytest.mark.usefixtures("extended")
def test_changed_metric_gets_an_index_and_a_warning_about_the_former(sink, db, route):
    assert sink.prepare(VECTORS, route) == []
    (former,) = indexes(db, route)
    other = route_to(route.table, options={"vectors": "embedding:3:l2"})
    for _ in range(2):
        (warning,) = sink.prepare(VECTORS, other)
        assert f'DROP INDEX "public"."{former}"' in warning
        assert sorted(indexes(db, route).values()) == ["(embedding vector_cosine_ops)", "(embedding vector_l2_ops)"]
    db(warning[warning.index("DROP INDEX") :])
    assert sink.prepare(VECTORS, other) == []
    assert list(indexes(db, route).values()) == ["(embedding vector_l2_ops)"]


@pytest.mark.usefixtures("extended")
def test_removed_metric_leaves_a_warning_about_its_index(sink, db, route):
    sink.prepare(VECTORS, route)
    (former,) = indexes(db, route)
    without = route_to(route.table, options={"vectors": "embedding:3"})
    (warning,) = sink.prepare(VECTORS, without)
    db(warning[warning.index("DROP INDEX") :])
    assert former in warning
    assert (sink.prepare(VECTORS, without), indexes(db, route)) == ([], {})


@pytest.mark.usefixtures("extended")
def test_index_of_a_former_release_is_not_made_twice(sink, db, route):
    sink.prepare(VECTORS, route_to(route.table, options={"vectors": "embedding:3"}))
    former = f"{route.table}__cdf_embedding"
    db(f'CREATE INDEX "{former}" ON "{route.table}" USING hnsw (embedding vector_cosine_ops)')
    assert sink.prepare(VECTORS, route) == []
    assert list(indexes(db, route)) == [former]
    (warning,) = sink.prepare(VECTORS, route_to(route.table, options={"vectors": "embedding:3:ip"}))
    assert former in warning
    assert len(indexes(db, route)) == 2


@pytest.mark.usefixtures("extended")
def test_new_table_has_an_index_after_a_rename_of_the_former(sink, deliver, db, route):
    """An index keeps its name when its table is renamed."""
    sink.prepare(VECTORS, route)
    (former,) = indexes(db, route)
    db(f'ALTER TABLE "{route.table}" RENAME TO "{route.table}_old"')
    for _ in range(2):
        assert sink.prepare(VECTORS, route) == []
        assert list(indexes(db, route).values()) == ["(embedding vector_cosine_ops)"]
        assert former not in indexes(db, route)
    assert_applied(deliver(route, upsert("a", 1, embedding=[1.0, 0.0, 0.5]), schema=VECTORS))


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
