"""Tests of every Spark type, from a row in the JVM to the result of a search."""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from connectors import Change, PermanentError
from connectors.testing import SCHEMA, upsert

ADDRESS = StructType([StructField("city", StringType()), StructField("zip", IntegerType())])
TYPES = {
    "flag": BooleanType(),
    "tiny": ByteType(),
    "small": ShortType(),
    "whole": IntegerType(),
    "large": LongType(),
    "single": FloatType(),
    "real": DoubleType(),
    "price": DecimalType(10, 2),
    "exact": DecimalType(38, 10),
    "day": DateType(),
    "at": TimestampType(),
    "local": TimestampNTZType(),
    "blob": BinaryType(),
    "took": DayTimeIntervalType(),
    "tags": ArrayType(StringType()),
    "grid": ArrayType(ArrayType(LongType())),
    "home": ADDRESS,
    "homes": ArrayType(ADDRESS),
    "labels": MapType(StringType(), StringType()),
    "amounts": ArrayType(DecimalType(20, 2)),
    "dotted.name": StringType(),
    "_loaded": StringType(),
}
EVERY_TYPE = StructType([*SCHEMA.fields, *(StructField(name, kind) for name, kind in TYPES.items())])
ROW = {
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "whole": -(2**31),
    "large": 2**63 - 1,
    "single": 0.5,
    "real": 1e300,
    "price": Decimal("12345678.90"),
    "exact": Decimal("1234567890123456789012345678.0123456789"),
    "day": date(2024, 2, 29),
    "at": datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=timezone.utc),
    "local": datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - a local time has no zone
    "blob": b"\x00\xff hello",
    "took": timedelta(hours=1, minutes=2),
    "tags": ["red", None, "blue"],
    "grid": [[1, 2], [], [3]],
    "home": ("Zürich", 8001),
    "homes": [("Bern", 3000), (None, None)],
    "labels": {"a.b": "x", "": "y", "none": None},
    "amounts": [Decimal("0.10"), Decimal("100000000000000000.01")],
    "dotted.name": "path",
    "_loaded": "yes",
}
SOURCE = {
    "id": "a",
    "name": "Ann",
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "whole": -(2**31),
    "large": 2**63 - 1,
    "single": "0.5",
    "real": "1.0E300",
    "price": "12345678.90",
    "exact": "1234567890123456789012345678.0123456789",
    "day": "2024-02-29",
    "at": "2024-01-02T03:04:05.123456Z",
    "local": "9999-12-31T23:59:59.999999",
    "blob": "AP8gaGVsbG8=",
    "took": "INTERVAL '0 01:02:00' DAY TO SECOND",
    "tags": ["red", None, "blue"],
    "grid": [[1, 2], [], [3]],
    "home": {"city": "Zürich", "zip": 8001},
    "homes": [{"city": "Bern", "zip": 3000}, {"city": None, "zip": None}],
    "labels": {"a.b": "x", "": "y", "none": None},
    "amounts": ["0.10", "100000000000000000.01"],
    "dotted.name": "path",
    "_loaded": "yes",
}
FOUND_BY = [
    {"term": {"flag": True}},
    {"term": {"large": 2**63 - 1}},
    {"range": {"price": {"gt": 12345678.89, "lt": 12345678.91}}},
    {"term": {"exact": "1234567890123456789012345678.0123456789"}},
    {"term": {"day": "2024-02-29"}},
    {"range": {"at": {"gte": "2024-01-02T03:04:05.123Z", "lt": "2024-01-02T03:04:05.124Z"}}},
    {"range": {"local": {"gte": "9999-12-31T23:59:59"}}},
    {"match": {"name": "ann"}},
    {"term": {"name.keyword": "Ann"}},
    {"term": {"tags.keyword": "blue"}},
    {"term": {"grid": 3}},
    {"match": {"home.city": "zürich"}},
    {"term": {"homes.zip": 3000}},
    {"term": {"labels.a.b": "x"}},
    {"term": {"dotted.name.keyword": "path"}},
]


@pytest.fixture
def deliver(sink, write):
    def deliver(route, schema, *changes: Change):
        sink.prepare(schema, route)
        return write(route, *changes, schema=schema)

    return deliver


def test_row_of_every_type_is_kept_exactly_and_found(deliver, es, route):
    result = deliver(route, EVERY_TYPE, upsert("a", 1, "Ann", **ROW), upsert("nulls", 1))
    assert not result.rejected
    assert es.document(route.table, "a") == SOURCE
    assert es.document(route.table, "nulls") == {**dict.fromkeys(SOURCE), "id": "nulls"}
    for query in FOUND_BY:
        assert es.search(route.table, query) == ["a"], query


def test_mapping_has_every_type(sink, es, route):
    sink.prepare(EVERY_TYPE, route)
    mapping = es.mapping(route.table)
    text = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    address = {"properties": {"city": text, "zip": {"type": "long"}}}
    assert mapping["dynamic"] == "strict"
    assert mapping["properties"] == {
        "id": text,
        "name": text,
        "flag": {"type": "boolean"},
        **{name: {"type": "long"} for name in ("tiny", "small", "whole", "large", "grid")},
        **{name: {"type": "double", "ignore_malformed": True} for name in ("single", "real")},
        "price": {"type": "double"},
        **{name: {"type": "keyword"} for name in ("exact", "amounts", "took")},
        **{name: {"type": "date", "ignore_malformed": True} for name in ("day", "at", "local")},
        "blob": {"type": "binary"},
        "tags": text,
        "home": address,
        "homes": address,
        "labels": sink.settings.dialect.map_field,
        "dotted": {"properties": {"name": text}},
        "_loaded": text,
    }


def test_variant_of_any_content_is_kept(spark, sink, es, route):
    frame = spark.sql("""
        SELECT id AS key, 17592186044419L AS guard, 'insert' AS change_type,
               named_struct('id', id, 'body', parse_json(body), 'bodies', array(parse_json(body))) AS row
        FROM VALUES ('object', '{"a": {"b": [1, null]}}'), ('array', '[1, "x"]'), ('number', '2.5'), ('text', '"x"')
             AS t(id, body)""")
    schema = frame.schema["row"].dataType
    sink.prepare(schema, route)
    sink.open(route)
    table = frame.select("key", "guard", "change_type", *sink.render(schema, route)).toArrow().combine_chunks()
    assert not sink.write(table.to_batches()[0]).rejected
    bodies = [es.document(route.table, key)["body"] for key in ("object", "array", "number", "text")]
    assert bodies == [{"a": {"b": [1, None]}}, [1, "x"], "2.5", "x"]


def test_date_refused_by_existing_index_is_rejected_and_other_rows_written(spark, sink, es, route):
    es("PUT", f"/{route.table}", {"mappings": {"properties": {"day": {"type": "date"}}}})
    frame = spark.sql("""
        SELECT id AS key, 17592186044419L AS guard, 'insert' AS change_type,
               named_struct('id', id, 'day', CAST(day AS date)) AS row
        FROM VALUES ('late', '+12024-01-01'), ('first', '0001-01-01'), ('last', '9999-12-31') AS t(id, day)""")
    schema = frame.schema["row"].dataType
    sink.prepare(schema, route)
    sink.open(route)
    table = frame.select("key", "guard", "change_type", *sink.render(schema, route)).toArrow().combine_chunks()
    result = sink.write(table.to_batches()[0])
    assert [(row.position, row.code) for row in result.rejected] == [(0, "document_parsing")]
    assert es.search(route.table, {"range": {"day": {"lte": "9999-12-31"}}}) == ["first", "last"]


@pytest.mark.parametrize(
    "name", ["_id", "_source", "_version", "_routing", "_primary_term", "", " ", "a..b", ".a", "a."]
)
def test_refused_column_is_named_with_the_variable_to_set(sink, es, name, route):
    with pytest.raises(PermanentError) as caught:
        sink.prepare(StructType([*SCHEMA.fields, StructField(name, LongType())]), route)
    assert repr(name) in caught.value.reason
    assert "CDF_ROUTES__ORDERS_SEARCH__RENAME" in caught.value.hint
    assert es.missing(f"/{route.table}")


def test_a_column_inside_another_is_refused(sink, route):
    schema = StructType([*SCHEMA.fields, StructField("name.first", StringType())])
    with pytest.raises(PermanentError, match=r"'name.first'.*part of 'name'"):
        sink.prepare(schema, route)


def test_a_table_wider_than_the_default_field_limit_fits(deliver, es, route):
    schema = StructType([*SCHEMA.fields, *(StructField(f"c{number}", StringType()) for number in range(600))])
    assert not deliver(route, schema, upsert("a", 1, c599="x")).rejected
    assert es.search(route.table, {"term": {"c599.keyword": "x"}}) == ["a"]
