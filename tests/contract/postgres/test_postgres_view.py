"""The rows that ``verify`` reads: columns of any name and of computed types, in pages that are bounded in bytes."""

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from connectors.testing import SCHEMA, upsert
from connectors.testing.chunk import frame_of_rows, render_frame
from connectors.testing.contract import assert_applied
from connectors.testing.verifying import read_entries, written


@pytest.mark.parametrize("names", [("r", "t"), ("s", "d", "gone", "cdf_rows")])
def test_column_with_the_name_of_an_alias_is_read(spark, sink, deliver, route, names):
    schema = StructType([*SCHEMA.fields, *(StructField(name, StringType()) for name in names)])
    sink.prepare(schema, route)
    values = {name: f"value of {name}" for name in names}
    assert_applied(deliver(route, upsert("a", 1, "one", **values), schema=schema))
    (entry,) = read_entries(spark, sink, route, schema).values()
    assert entry[1] == {"id": "a", "name": "one", **values}


def test_computed_interval_and_time_of_day_are_text(spark, sink, db, route):
    computed = {
        "took": "TIMESTAMP'2024-01-02 03:04:05.678901' - TIMESTAMP'2024-01-01 00:00:00'",
        "before": "TIMESTAMP'2024-01-01 00:00:00' - TIMESTAMP'2024-01-01 00:00:01'",
        "age": "DATE'2024-03-01' - DATE'2024-02-01'",
        "term": "INTERVAL '1-2' YEAR TO MONTH",
        "clock": "TIME'12:34:56.789012'",
        "none": "CAST(NULL AS INTERVAL DAY TO SECOND)",
        "steps": "array(INTERVAL '1' DAY, NULL)",
    }
    rows = spark.range(1).selectExpr(
        "'a' AS id", "'name' AS name", *(f"{sql} AS {name}" for name, sql in computed.items())
    )
    frame = frame_of_rows(rows)
    sink.prepare(rows.schema, route)
    sink.open(route)
    assert_applied(sink.write(render_frame(frame, sink, route, rows.schema)))
    (row,) = db(f'SELECT * FROM "{route.table}"')
    assert {name: row[name] for name in computed} == {
        "took": "INTERVAL '1 03:04:05.678901' DAY TO SECOND",
        "before": "INTERVAL '-0 00:00:01' DAY TO SECOND",
        "age": "INTERVAL '29' DAY",
        "term": "INTERVAL '1-2' YEAR TO MONTH",
        "clock": "12:34:56.789012",
        "none": None,
        "steps": ["INTERVAL '1' DAY", None],
    }
    assert read_entries(spark, sink, route, rows.schema) == written(frame, sink, route)


def test_page_has_as_many_rows_as_its_bytes_allow(sink, deliver, route, monkeypatch):
    monkeypatch.setattr("connectors.view.PAGE_BYTES", 200_000)
    sink.prepare(SCHEMA, route)
    deliver(route, *(upsert(str(number), 1, "x" * 10_000) for number in range(200)))
    with sink.view(route) as held:
        batches = [batch for part in range(held.parts) for batch in held.scan(part)]
    assert sum(batch.num_rows for batch in batches) == 200
    assert 150_000 < max(batch.nbytes for batch in batches) < 250_000, "a page has about twenty rows of 10,000 bytes"


SAME = {
    "whole": "to_variant_object(named_struct('n', 9999999.0D))",
    "small": "to_variant_object(named_struct('n', 0.001D))",
    "plain": "named_struct('n', 1.0E-5D, 'm', 1.0E7D)",
    "list": "array(double('-0.0'))",
    "zero": "double('-0.0')",
}
DIFFERENT = {
    "whole": "to_variant_object(named_struct('n', 1.0E7D))",
    "small": "to_variant_object(named_struct('n', 1.0E-5D))",
    "negative": "named_struct('n', double('-0.0'))",
}


@pytest.mark.parametrize(("values", "same"), [(SAME, True), (DIFFERENT, False)])
def test_numbers_that_jsonb_writes_otherwise_are_those_of_the_docs(spark, sink, route, values, same):
    rows = spark.range(1).selectExpr("'a' AS id", *(f"{sql} AS {name}" for name, sql in values.items()))
    frame = frame_of_rows(rows)
    sink.prepare(rows.schema, route)
    sink.open(route)
    assert_applied(sink.write(render_frame(frame, sink, route, rows.schema)))
    (found,), (expected,) = (
        [row for _, row in entries.values()]
        for entries in (read_entries(spark, sink, route, rows.schema), written(frame, sink, route))
    )
    assert {name: found[name] == expected[name] for name in values} == dict.fromkeys(values, same)
