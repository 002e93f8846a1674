"""Check that a feature table equals the aggregation of the whole source, and that only changed entities are recomputed."""

from __future__ import annotations

import json

import pytest

from cdf_replicator.state.command_queue import Command
from connectors import PermanentError
from connectors.delta.aggregation import check_aggregates
from connectors.delta.features import DeltaFeaturesSink
from connectors.delta.tables import table
from tests.support.tiers import nightly

AGGREGATES = {"total": "sum(amount)", "orders": "count(*)", "largest": "max_by(id, amount)"}


@pytest.fixture
def world(world):
    world.into_delta("features")
    world.environ |= {
        "CDF_ROUTES__ORDERS_FEATURES__ENTITY": "customer",
        "CDF_ROUTES__ORDERS_FEATURES__AGGREGATES": json.dumps(AGGREGATES),
        "CDF_ROUTES__ORDERS_FEATURES__FILTER": "NOT test",
        "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "3",
    }
    world.features = f"delta.`{world.folder / 'features' / 'orders_features'}`"
    return world


def run(world, **more):
    return world.run("orders_features", **more)


def expected(world, aggregates=AGGREGATES):
    columns = ", ".join(f"{text} AS {name}" for name, text in aggregates.items())
    rows = world.sql(f"SELECT customer, {columns} FROM {{t}} WHERE NOT test GROUP BY customer").collect()
    return sorted(map(tuple, rows), key=repr)


def held(world, *more):
    return sorted(map(tuple, world.spark.table(world.features).drop("_cdf_guard").collect()), key=repr)


def guards(world):
    return {row["customer"]: row["_cdf_guard"] for row in world.spark.table(world.features).collect()}


@pytest.mark.nightly  # the oracle tier compares features after every write
def test_features_equal_the_aggregation_after_every_operation(world, lose_commit):
    world.create(
        "id bigint, customer string, amount decimal(10,2), test boolean",
        rows=[
            "(1, 'a', 10, false)",
            "(2, 'a', 5, false)",
            "(3, 'b', 7, false)",
            "(4, NULL, 1, false)",
            "(5, 'c', 2, false)",
        ],
    )
    assert run(world) is None
    assert held(world) == expected(world)
    before = guards(world)
    world.change("UPDATE {t} SET customer = 'b' WHERE id = 2")
    world.insert("(6, NULL, 4, false)", "(7, 'd', 4, true)")
    assert run(world) is None
    assert held(world) == expected(world), "an order that moved counts for both customers"
    assert {name for name, guard in guards(world).items() if guard != before[name]} == {"a", "b", None}

    world.change("DELETE FROM {t} WHERE customer = 'c'")
    world.change("UPDATE {t} SET test = false WHERE id = 7")
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'e'), (8, 'f') AS s(id, customer)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET customer = s.customer "
        "WHEN NOT MATCHED THEN INSERT (id, customer, amount, test) VALUES (s.id, s.customer, 3, false)"
    )
    world.overwrite(
        world.sql("SELECT id, customer, CAST(amount * 2 AS decimal(10,2)) AS amount, test FROM {t} WHERE id <> 8")
    )
    assert run(world) is None
    assert held(world) == expected(world)
    assert {row[0] for row in held(world)} == {None, "b", "d", "e"}, "entities without rows are gone"
    lose_commit("orders_features")
    assert run(world) is None, "Spark gives the batch again"
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "100"
    assert run(world, command=Command("replay", "orders_features", 1)) is None
    assert run(world, command=Command("replay", "orders_features", 1, 2)) is None
    assert held(world) == expected(world)


@pytest.mark.parametrize("last", [(), (2,)], ids=["stream", "range"])
def test_leftover_writer_of_a_replay_does_not_restore_an_entity(world, monkeypatch, last):
    world.create("id bigint, customer string, amount int, test boolean", rows=["(1, 'a', 1, false)"])
    world.insert("(2, 'b', 2, false)", "(3, 'a', 2, false)")
    assert run(world) is None
    write, latest, given, left = DeltaFeaturesSink.write, table.latest_version, [], []

    def overtaken(*names):
        version = latest(*names)
        if given:  # the new lease holder delivers the batch before the leftover writer merges
            sink, *batch = given.pop()
            world.change("DELETE FROM {t} WHERE customer = 'a'")
            write(DeltaFeaturesSink(sink.settings), *batch)
            left.append(held(world))
        return version

    def leftover(*named):
        if not left:
            given.append(named)
        result = write(*named)
        left.append(held(world))
        return result

    with monkeypatch.context() as patched:
        patched.setattr(table, "latest_version", overtaken)
        patched.setattr(DeltaFeaturesSink, "write", leftover)
        run(world, command=Command("replay", "orders_features", 1, *last))
    assert left[:2] == [expected(world), expected(world)]
    assert expected(world) == [("b", 2, 1, 2)]
    for again in (last, last):
        world.spark.sql(f"UPDATE {world.features} SET orders = 9")
        assert run(world, command=Command("replay", "orders_features", 1, *again)) is None
        assert held(world) == expected(world), "a replay is not taken for a batch that the table has recorded"


def test_changed_aggregates_need_a_resync(world):
    world.create("id bigint, customer string, test boolean", rows=["(1, 'a', false)", "(2, 'b', false)"])
    second = {"first": "min(id)", "mark": "max('x')"}
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps({"n": "count(*)"})
    assert run(world) is None
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps(second)
    decision = run(world)
    assert "ENTITY or AGGREGATES of route orders_features has changed" in decision.message
    assert decision.remedy == "Run: cdf-replicator resync orders_features"
    world.change("DELETE FROM {t} WHERE id = 2")
    assert run(world, command=Command("resync", "orders_features", max_removed_share=1.0)) is None
    assert held(world) == expected(world, second) == [("a", 1, "x")]
    world.spark.sql(f"INSERT INTO {world.features} VALUES ('z', 9, 'y', NULL)")
    assert run(world, command=Command("resync", "orders_features", max_removed_share=1.0)) is None
    assert held(world) == [("a", 1, "x")]
    world.environ["CDF_ROUTES__ORDERS_FEATURES__RENAME"] = "customer=client"
    assert (
        "ENTITY of route orders_features names customer, which the route leaves out, renames"
        in run(world, command=Command("resync", "orders_features", max_removed_share=1.0)).message
    )


def test_redefined_aggregate_may_be_a_timestamp_without_zone(world):
    """The table was made without the table feature that the type needs."""
    given = {"delta__feature__timestampNtz": "supported"}
    columns = "id bigint, customer string, amount int, at timestamp_ntz, test boolean"
    world.create(columns, rows=["(1, 'a', 1, timestamp_ntz'2026-01-02 12:00:00', false)"], **given)
    assert run(world) is None
    newest = {"newest": "max(at)"}
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps(newest)
    assert run(world, command=Command("resync", "orders_features", max_removed_share=1.0)) is None
    assert held(world) == expected(world, newest)


def test_narrower_struct_is_merged_into_the_wider_struct_of_the_table(world):
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps({"s": "max_by(s, id)"})
    columns = "id bigint, customer string, s struct<a:int,b:string,c:string>, test boolean"
    world.create(columns, delta__columnMapping__mode="name")
    world.insert("(1, 'a', struct(1, 'b', 'c'), false)", "(2, 'z', struct(2, 'b', 'c'), false)")
    assert run(world) is None
    world.sql("ALTER TABLE {t} DROP COLUMN s.b")
    world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(world.version())
    world.insert("(3, 'a', struct(3, 'd'), false)", "(4, 'n', NULL, false)")
    assert run(world) is None
    features = world.spark.table(world.features).select("customer", "s.a", "s.b", "s.c", "s").collect()
    assert sorted(tuple(row)[:4] for row in features) == [
        ("a", 3, None, "d"),
        ("n", None, None, None),
        ("z", 2, "b", "c"),
    ]
    assert [row.s for row in features if row.customer == "n"] == [None]


@pytest.mark.parametrize(("wide", "value"), [nightly("bigint", "3000000000"), ("double", "7.5")])
def test_source_widened_ahead_of_the_micro_batch_widens_the_features(world, monkeypatch, wide, value):
    aggregates = {"largest": "max(amount)"}
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps(aggregates)
    world.create("id bigint, customer string, amount int, test boolean", delta__enableTypeWidening="true")
    world.insert("(1, 'a', 1, false)")
    assert run(world) is None
    merge, merged = DeltaFeaturesSink._recompute, []

    def merge_after_another_writer(sink, *given):
        if not merged:
            world.sql(f"ALTER TABLE {{t}} ALTER COLUMN amount TYPE {wide}")
            world.insert(f"(3, 'a', {value}, false)")
        merge(sink, *given)
        merged.append(held(world))

    monkeypatch.setattr(DeltaFeaturesSink, "_recompute", merge_after_another_writer)
    world.insert("(2, 'a', 2, false)")
    run(world)
    assert merged[0] == expected(world, aggregates)
    assert run(world) is None
    assert held(world) == expected(world, aggregates)


@pytest.mark.parametrize("changed", [nightly("b"), None], ids=str)
def test_features_of_unchanged_rows_follow_a_widened_column(world, changed):
    aggregates = {"mean": "avg(amount)", "text": "max(string(amount))"}
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps(aggregates)
    world.environ["CDF_ROUTES__ORDERS_FEATURES__COLUMNS"] = "id,customer,test"
    world.create("id bigint, customer string, amount decimal(10,2), test boolean", delta__enableTypeWidening="true")
    world.insert("(1, 'a', 1, false)", "(2, 'a', 1, false)", "(3, 'a', 2, false)", "(4, 'b', 1, false)")
    assert run(world) is None
    world.sql("ALTER TABLE {t} ALTER COLUMN amount TYPE decimal(12,4)")
    if changed:
        world.insert(f"(5, '{changed}', 3, false)")
    assert run(world) is None
    assert held(world) == expected(world, aggregates)
    before = guards(world)
    world.sql("ALTER TABLE {t} ADD COLUMN other string")
    world.insert("(6, 'b', 3, false, 'x')")
    assert run(world) is None
    assert held(world) == expected(world, aggregates)
    assert guards(world)["a"] == before["a"], "an added column recomputes nothing"


def test_aggregate_whose_type_the_table_cannot_take_needs_a_resync(world):
    aggregates = {"total": "sum(amount)"}
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps(aggregates)
    world.create("id bigint, customer string, amount int, test boolean", delta__enableTypeWidening="true")
    world.insert("(1, 'a', 1, false)", "(2, 'b', 1, false)")
    assert run(world) is None
    world.sql("ALTER TABLE {t} ALTER COLUMN amount TYPE double")
    world.insert("(3, 'a', 0.5, false)")
    for _ in range(2):
        decision = run(world)
        assert "total is bigint there, double now" in decision.message
        assert decision.remedy == "Run: cdf-replicator resync orders_features"
    assert run(world, command=Command("resync", "orders_features", max_removed_share=1.0)) is None
    assert held(world) == expected(world, aggregates) == [("a", 1.5), ("b", 1.0)]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("amount", "AGGREGATES of route orders_features: total (sum(amount)) can't be kept up to date"),
        ("customer", "ENTITY of route orders_features names customer, which"),
    ],
)
def test_column_renamed_by_a_later_commit_is_named(world, monkeypatch, column, message):
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps({"n": "count(*)", "total": "sum(amount)"})
    world.create("id bigint, customer string, amount int, test boolean", delta__columnMapping__mode="name")
    world.insert("(1, 'a', 1, false)")
    assert run(world) is None
    write = DeltaFeaturesSink.write

    def write_after_a_rename(sink, *given):
        world.sql(f"ALTER TABLE {{t}} RENAME COLUMN {column} TO other")
        return write(sink, *given)

    monkeypatch.setattr(DeltaFeaturesSink, "write", write_after_a_rename)
    world.insert("(2, 'a', 2, false)")
    decision = run(world)
    assert message in decision.message
    assert "AGGREGATES" in decision.remedy


def test_aggregate_that_fails_for_a_row_is_named(world):
    world.environ["CDF_ROUTES__ORDERS_FEATURES__AGGREGATES"] = json.dumps({"rate": "sum(id) / count(amount)"})
    world.create("id bigint, customer string, amount int, test boolean", rows=["(1, 'a', NULL, false)"])
    decision = run(world)
    assert decision.reason == "bad_expression"
    assert "AGGREGATES" in decision.remedy


@pytest.mark.parametrize(
    "text",
    [
        "count(DISTINCT id)",
        "sum(amount) / count(*)",
        "max_by(struct(id, day), amount)",
        "1",
        "count( * )",
        "max(at) > '2026-01-01 12:00'",
    ],
)
def test_aggregate_over_the_rows_of_an_entity_is_accepted(spark, text):
    assert check_aggregates(source(spark), ("customer", "day"), {"n": text}, "r").names == ["customer", "day", "n"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sum(", "PARSE_SYNTAX_ERROR"),
        ("sum(nothing)", "UNRESOLVED_COLUMN"),
        ("amount", "MISSING_AGGREGATION"),
        ("max(rand())", "Non-deterministic expression"),
        ("count(*) * rand()", "at random"),
        ("aes_encrypt(max(region), '0000111122223333')", "at random"),
        ("max(datediff(current_date(), day))", "changes with the time"),
        ("max(current_user())", "changes with the time or the session"),
        ("sum(sum(id)) OVER ()", "other entities"),
        ("sum(id) / (SELECT 7)", "another table"),
        ("explode(collect_list(id))", "several rows of one"),
        ("count_if(day < DATE 'today')", "changes every day"),
        ("count_if(day >= 'today')", "changes every day"),
        ("count(*) FILTER (WHERE day > to_date('yesterday'))", "changes every day"),
        ("max(at) > TIMESTAMP '12:00'", "changes every day"),
        ("max(at_ntz) > TIMESTAMP_NTZ 'today'", "changes every day"),
        ("max(day) > CAST('yesterday' AS date)", "changes every day"),
        ("max(at) > 'T12:30'", "changes every day"),
        ("max(day) > CAST(concat('to', 'day') AS date)", "changes every day"),
        ("count(DISTINCT *)", "name the columns instead"),
        ("bit_xor(xxhash64(*))", "name the columns instead"),
        ("max(at) - min(at)", "interval.*unix_micros"),
        ("max(day) - min(day)", "interval.*datediff"),
        ("map('span', array(max(at) - min(at)))", "interval.*unix_micros"),
        ("max(NULL)", "type void.*cast"),
        ("max(struct(id, NULL))", "type void.*cast"),
        ("max(region COLLATE UTF8_LCASE)", "store its type string collate"),
    ],
)
def test_aggregate_that_cannot_be_maintained_is_refused_with_the_reason(spark, text, why):
    with pytest.raises(PermanentError, match=why) as caught:
        check_aggregates(source(spark), ("customer",), {"fine": "count(*)", "wrong": text}, "orders_features")
    assert "AGGREGATES of route orders_features: wrong (" in caught.value.reason
    assert (
        caught.value.hint
        == "Correct CDF_ROUTES__ORDERS_FEATURES__AGGREGATES, then restart, or reload a changed file: cdf-replicator reload"
    )


def source(spark):
    times = "at timestamp, at_ntz timestamp_ntz"
    return spark.createDataFrame(
        [], f"id bigint, customer string, region string, day date, amount decimal(10,2), {times}"
    )
