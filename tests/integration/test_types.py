"""Every line of docs/types.md: each value goes through a Delta table, its change feed and each sink, and is read back."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import date

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructField, StructType

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.transform import change_frame
from cdf_replicator.verification import verify
from connectors.rendering import json_row, key_text
from tests.contract.elasticsearch_reader import Reader
from tests.contract.postgres_reader import Reader as Table
from tests.contract.type_cases import (
    CASES,
    KEY_TEXTS,
    KEYLESS,
    NO_DELTA_COLUMN,
    POSTGRES_TYPES,
    REFUSED_BY_ELASTICSEARCH,
    REFUSED_BY_POSTGRES,
    column_of,
    expected,
    rows,
)
from tests.integration.conftest import PATIENCE_SECONDS, World

COLUMNS = {case.column: case for case in CASES}
SQL_TYPES = {"varchar(5)": "string", "char(5)": "string"}  # what a cast may name
FIRST_REFUSED = 100
SINKS = ("search", "cache", "fields", "audit", "replica", "db")


def read_json(raw):
    """As written: numbers stay the text they are."""
    return json.loads(raw, parse_float=str, parse_int=str)


def shown(raw):
    """Return the columns of a row without the key."""
    row = read_json(raw)
    assert set(row) == {"id", *COLUMNS}
    return {name: row[name] for name in COLUMNS}


class Everything:
    """A table that holds every value, delivered to every sink."""

    def __init__(self, spark, folder, search_url, cache_url, db_url) -> None:
        self.world = world = World(spark, folder)
        world.environ = {
            "CDF_STATE_PATH": str(folder / "state"),
            "CDF_TABLES__ORDERS__PATH": world.table,
            "CDF_TABLES__ORDERS__KEYS": "id",
            "CDF_TABLES__ORDERS__STARTING_VERSION": "1",
            "CDF_TABLES__ORDERS__SINKS": ",".join(SINKS),
            "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
            "CDF_SINKS__SEARCH__HOSTS": search_url,
            "CDF_SINKS__CACHE__TYPE": "redis",
            "CDF_SINKS__CACHE__URL": f"{cache_url}/0",
            "CDF_SINKS__FIELDS__TYPE": "redis",
            "CDF_SINKS__FIELDS__URL": f"{cache_url}/1",
            "CDF_SINKS__FIELDS__LAYOUT": "hash",
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": str(folder / "audit"),
            "CDF_SINKS__REPLICA__TYPE": "delta_replica",
            "CDF_SINKS__REPLICA__PATH": str(folder / "replica"),
            "CDF_SINKS__DB__TYPE": "postgres",
            "CDF_SINKS__DB__URL": db_url,
        }
        self.reader = Reader(search_url)
        self.db = Table(db_url)
        self.json = redis.Redis.from_url(f"{cache_url}/0")
        self.hashes = redis.Redis.from_url(f"{cache_url}/1")
        self.fill()
        letters = world.letters
        runners = [world.runner(f"orders_{sink}", letters=letters) for sink in SINKS]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join(PATIENCE_SECONDS)
        self.verdicts = [runner.failure for runner in runners]
        self.letters = world.dead_letters("sink", "key", "code")

    def fill(self):
        refused = [{column_of(refusal.type): refusal.sql} for refusal in REFUSED_BY_ELASTICSEARCH]
        filled = [*enumerate(rows()), *enumerate(refused, FIRST_REFUSED)]
        columns = [case for case in CASES if case.values]
        listed = ", ".join(f"{case.column} {case.type}" for case in CASES)
        self.world.create(f"id bigint, {listed}")
        selects = []
        for number, row in filled:
            values = (f"CAST({row.get(c.column, 'NULL')} AS {SQL_TYPES.get(c.type, c.type)})" for c in columns)
            selects.append(f"SELECT {number}L, {', '.join(values)}")
        names = ", ".join(case.column for case in columns)
        self.world.sql(f"INSERT INTO {{t}} (id, {names}) {' UNION ALL '.join(selects)}")


@pytest.fixture(scope="module")
def everything(spark, tmp_path_factory, elasticsearch, redis_server, postgres_server):
    cache_url = redis_server.url.removesuffix("/0")
    everything = Everything(spark, tmp_path_factory.mktemp("types"), elasticsearch.url, cache_url, postgres_server.url)
    with closing(everything.db.connection):
        yield everything


def expected_json(number):
    return {name: None if value is None else read_json(value.json) for name, value in expected(number).items()}


def test_every_route_delivers(everything):
    assert everything.verdicts == [None] * len(SINKS)


def test_redis_shows_every_value_as_documented(everything):
    for number in range(len(rows())):
        raw = everything.json.get(f"orders:{number}").decode()
        assert shown(raw) == expected_json(number)


def test_a_redis_hash_shows_every_value_as_documented(everything):
    for number in range(len(rows())):
        fields = {name: value.field for name, value in expected(number).items() if value is not None}
        found = {name.decode(): text for name, text in everything.hashes.hgetall(f"orders:{number}").items()}
        assert found == {"id": str(number).encode(), **fields}


def test_elasticsearch_keeps_every_value_and_reports_values_it_cannot_find(everything):
    everything.reader("POST", "/orders/_refresh")
    reply = everything.reader._send("POST", "/orders/_search", {"query": {"match_all": {}}, "size": 50})
    hits = {hit["_id"]: hit for hit in read_json(reply.text)["hits"]["hits"]}
    assert len(hits) == len(rows())
    not_found = {}
    for number in range(len(rows())):
        hit = hits[str(number)]
        assert {name: hit["_source"][name] for name in COLUMNS} == expected_json(number)
        not_found[number] = sorted(name for name in hit.get("_ignored", ()) if not name.endswith(".keyword"))
    assert not_found == {
        number: sorted(name for name, value in expected(number).items() if value and not value.search)
        for number in range(len(rows()))
    }


def test_elasticsearch_maps_every_type_as_documented(everything):
    properties = everything.reader.mapping("orders")["properties"]
    assert {name: properties[name].get("type", "object") for name in COLUMNS} == {c.column: c.field for c in CASES}


def test_value_refused_by_elasticsearch_is_a_dead_letter_with_code(everything):
    numbered = [(str(number), one.code) for number, one in enumerate(REFUSED_BY_ELASTICSEARCH, FIRST_REFUSED)]
    assert everything.letters[-len(numbered) :] == [("search", key, code) for key, code in numbered]
    for key, _ in numbered:
        assert everything.json.exists(f"orders:{key}"), "Redis takes it"


def test_postgres_has_the_documented_type_of_each_column(everything):
    kinds = everything.db.types("orders")
    assert {case.type: kinds[case.column] for case in CASES} == {
        case.type: POSTGRES_TYPES.get(case.type, "jsonb") for case in CASES
    }


def test_postgres_holds_every_row_but_those_that_it_refuses(everything):
    given = dict(enumerate(rows())) | {
        number: {"": one.sql} for number, one in enumerate(REFUSED_BY_ELASTICSEARCH, FIRST_REFUSED)
    }
    codes = {one.sql: one.code for one in REFUSED_BY_POSTGRES}
    refused = sorted(
        ("db", str(number), codes[sql]) for number, row in given.items() for sql in row.values() if sql in codes
    )
    assert len(refused) == len(REFUSED_BY_POSTGRES)
    assert [letter for letter in everything.letters if letter[0] == "db"] == refused
    assert everything.db("SELECT count(*) AS rows FROM orders") == [{"rows": len(given) - len(refused)}]
    world = everything.world
    with closing(world.settings.sink("db")) as sink:
        found = verify(world.spark, world.settings.routes["orders_db"], sink, world.state_path)
    assert found.comparison.equal, found.comparison


@pytest.mark.parametrize("sink", ["audit", "replica"])
def test_delta_tables_hold_every_value_unchanged(everything, sink):
    spark, world = everything.world.spark, everything.world
    source = spark.read.format("delta").load(world.table).alias("source")
    written = spark.read.format("delta").load(str(world.folder / sink / "orders")).alias("written")

    def differs(case):
        here, there = F.col(f"source.{case.column}"), F.col(f"written.{case.column}")
        equal = here.cast("string").eqNullSafe(there.cast("string"))
        if not any(kind in case.type for kind in ("map", "variant")):
            equal &= here.eqNullSafe(there)
        return F.count_if(~equal).alias(case.column)

    found = source.join(written, F.col("source.id") == F.col("written.id")).agg(
        F.count("*").alias("rows"), *(differs(case) for case in CASES if case.values)
    )
    (counted,) = found.collect()
    differences = {name: count for name, count in counted.asDict().items() if count}
    assert differences == {"rows": len(rows()) + len(REFUSED_BY_ELASTICSEARCH)}


@pytest.mark.nightly  # test_audit recognizes replayed rows of the common types
def test_replay_into_the_audit_table_recognizes_every_value(everything):
    assert everything.world.run("orders_audit", start_version=1) is None
    audit = everything.world.spark.read.format("delta").load(everything.world.audit)
    assert audit.count() == len(rows()) + len(REFUSED_BY_ELASTICSEARCH)


def test_values_that_are_never_null_are_written_beside_a_long_decimal(spark):
    frame = spark.sql("""
        SELECT named_struct('d', CAST(1.5 AS DECIMAL(38,1)), 'v', parse_json('[1]'), 's', named_struct('m', map(DATE'2024-02-29', 1))) AS row""")
    schema = frame.schema["row"].dataType
    assert (schema["v"].nullable, schema["s"].nullable) == (False, False)
    assert frame.select(json_row(schema)).first()[0] == '{"d":"1.5","v":[1],"s":{"m":{"2024-02-29":1}}}'


def test_delta_has_no_column_of_the_other_types(world):
    for kind, condition in NO_DELTA_COLUMN.items():
        with pytest.raises(PySparkException) as caught:
            world.sql(f"CREATE TABLE {{t}} (v {kind}) USING delta")
        assert caught.value.getCondition() == condition, kind


# Keys


def test_the_key_text_of_each_type_is_as_documented(spark):
    listed = [(kind, sql, text) for kind, pairs in KEY_TEXTS.items() for sql, text in pairs]
    frame = spark.sql("SELECT " + ", ".join(f"{sql} AS v{n}" for n, (_, sql, _) in enumerate(listed)))
    texts = [key_text([(F.col(name), frame.schema[name].dataType)]).alias(name) for name in frame.columns]
    (row,) = frame.select(*texts).collect()
    assert list(row) == [text for *_, text in listed]


def test_key_text_has_all_microseconds_and_no_exponent(spark):
    """A setting of Spark decides about both: the service and the tests set it."""
    frame = spark.sql("""
        SELECT TIMESTAMP'2024-01-01 00:00:00.123456' AS at, TIMESTAMP_NTZ'2024-01-01 00:00:00.123456' AS local, 0.000000000000000001BD AS part
        UNION ALL SELECT TIMESTAMP'2024-01-01 00:00:00.123999', TIMESTAMP_NTZ'2024-01-01 00:00:00.123999', 0.000000000000000002BD""")
    text = key_text([(F.col(field.name), field.dataType) for field in frame.schema])
    assert {row[0] for row in frame.select(text).collect()} == {
        "2024-01-01T00%3A00%3A00.123456Z:2024-01-01T00%3A00%3A00.123456:0.000000000000000001",
        "2024-01-01T00%3A00%3A00.123999Z:2024-01-01T00%3A00%3A00.123999:0.000000000000000002",
    }


@pytest.mark.parametrize("kind", KEYLESS)
def test_type_that_cannot_be_a_key_is_named(spark, world, kind):
    table = spark.createDataFrame([], f"id {kind}").schema
    with pytest.raises(RouteHaltError, match=r"Key column id \(.+\) of table orders has a type that can't be a key"):
        change_frame.row_schema(table, world.settings.routes["orders_files"])


PART = st.text(st.sampled_from("ab:%!3A25{}\\\0é😀"), max_size=6)
KEYS = st.tuples(PART, PART, st.binary(max_size=3), st.sampled_from([0, -1, 2**63 - 1]), st.dates(date(1, 1, 1)))


@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(keys=st.lists(KEYS, min_size=200, max_size=400, unique=True))
def test_different_keys_have_different_texts(spark, keys):
    types = (StringType(), StringType(), BinaryType(), LongType(), DateType())
    schema = StructType([StructField(f"k{n}", kind) for n, kind in enumerate(types)])
    frame = spark.createDataFrame(keys, schema).coalesce(1)
    text = key_text([(F.col(field.name), field.dataType) for field in schema.fields])
    assert len({row[0] for row in frame.select(text).collect()}) == len(keys)
