"""From rows of Delta's change feed to the change frame."""

from __future__ import annotations

from datetime import date, datetime, timezone
from types import SimpleNamespace

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.transform import change_frame
from connectors import guard_of

CHANGES = "key string, guard long, change_type string, commit_version long, commit_timestamp timestamp, row struct<id:long,name:string>"


def changes(world, first=None):
    """(key, guard, change type, row as a dict) of the route's change frame, oldest first."""
    source, route = world.source(), world.settings.routes["orders_files"]
    last = source.log.latest_version()
    frame = change_frame.change_frame(source.changes(last if first is None else first, last), route, epoch=1)
    rows = [(r["key"], r["guard"], r["change_type"], r["row"].asDict()) for r in frame.collect()]
    return sorted(rows, key=lambda row: (row[1], row[2], row[0] or ""))


def test_guards_order_deletes_before_upserts_of_one_commit(world):
    world.create(rows=["(1, 'a')"])
    world.change("UPDATE {t} SET name = 'b'")
    assert changes(world, 1) == [
        ("1", guard_of(1, 1, upsert=True), "insert", {"id": 1, "name": "a"}),
        ("1", guard_of(1, 2, upsert=False), "update_preimage", {"id": 1, "name": "a"}),
        ("1", guard_of(1, 2, upsert=True), "update_postimage", {"id": 1, "name": "b"}),
    ]


def test_a_change_of_key_deletes_the_old_key(world):
    world.create(rows=["(1, 'a')"])
    world.change("UPDATE {t} SET id = 9")
    assert [(key, kind) for key, _, kind, _ in changes(world)] == [("1", "update_preimage"), ("9", "update_postimage")]


def test_a_row_that_stops_matching_the_filter_is_deleted(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "name <> 'draft'"
    world.create(rows=["(1, 'a')", "(2, 'draft')", "(3, 'c')"])
    world.change("UPDATE {t} SET name = CASE id WHEN 1 THEN 'draft' WHEN 2 THEN 'b' ELSE NULL END")
    assert [(key, kind) for key, _, kind, _ in changes(world)] == [
        ("1", "update_preimage"),
        ("3", "update_preimage"),  # neither true nor false: it does not match
        ("2", "update_postimage"),
    ]


def test_the_filter_is_pushed_down_to_the_files(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "name <> 'draft'"
    world.create(rows=["(1, 'a')"])
    frame = change_frame.change_frame(world.source().changes(1, 1), world.settings.routes["orders_files"], epoch=1)
    assert "Not(EqualTo(name,draft))" in frame._jdf.queryExecution().toString()


def test_columns_are_selected_and_renamed_with_or_without_the_keys(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__COLUMNS"] = "name"
    world.environ["CDF_ROUTES__ORDERS_FILES__RENAME"] = "name=title"
    world.create(rows=["(1, 'a')"])
    assert [(key, row) for key, _, _, row in changes(world)] == [("1", {"title": "a"})]


def test_odd_column_names_are_kept(world):
    world.environ["CDF_TABLES__ORDERS__KEYS"] = '["a.b", "the id"]'
    world.environ["CDF_ROUTES__ORDERS_FILES__RENAME"] = '{"tick`s": "row"}'
    world.create(
        "`a.b` string, `the id` int, `tick``s` string, key string, guard int, `row` int",
        delta__columnMapping__mode="name",
    )
    world.insert("('x:y', 1, 't', 'k', 7, 8)")
    world.environ["CDF_ROUTES__ORDERS_FILES__COLUMNS"] = '["a.b", "the id", "tick`s", "key", "guard"]'
    assert [(key, row) for key, _, _, row in changes(world)] == [
        ("x%3Ay:1", {"a.b": "x:y", "the id": 1, "row": "t", "key": "k", "guard": 7})
    ]


def test_a_key_with_a_null_is_null(world):
    world.environ["CDF_TABLES__ORDERS__KEYS"] = "id,name"
    world.create(rows=["(1, NULL)"])
    assert [key for key, *_ in changes(world)] == [None]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TABLES__ORDERS__KEYS", "nope"),
        ("ROUTES__ORDERS_FILES__COLUMNS", "id,nope"),
        ("ROUTES__ORDERS_FILES__RENAME", "nope=x"),
    ],
)
def test_missing_column_is_named(world, variable, value):
    world.environ["CDF_" + variable] = value
    world.create()
    with pytest.raises(RouteHaltError, match=r"has no column nope; it has id, name\."):
        changes(world, 0)


def test_two_columns_may_not_get_one_name(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__RENAME"] = "name=id"
    world.create()
    with pytest.raises(RouteHaltError, match="two columns the name id"):
        changes(world, 0)


def test_a_snapshot_is_one_upsert_per_row_at_its_version(world):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    source, route = world.source(), world.settings.routes["orders_files"]
    frame = change_frame.snapshot_frame(source.snapshot(1), route, epoch=3, version=1, committed_at=1700000000.5)
    (row,) = frame.collect()
    assert (row["key"], row["guard"], row["change_type"]) == ("1", guard_of(3, 1, upsert=True), "snapshot")
    assert row["commit_timestamp"].timestamp() == 1700000000.5


@pytest.mark.parametrize(
    ("columns", "once", "again"),
    [
        ("id long", [(0,), (63,), (64,), (-1,), (-64,), (-65,), (2**63 - 1,), (-(2**63),), (None,), (None,)], (-(2**63),)),
        ("id byte", [(-128,), (-1,), (0,), (127,)], (-1,)),
        ("shop string, id int", [("a", 1), ("b", 1), ("a", 2), (None, 1), (None, 1)], ("b", 1)),
        ("shop date, id int", [(date(2024, 1, 1), 1), (date(2024, 1, 2), 1), (date(2024, 1, 1), None)], (date(2024, 1, 2), 1)),
        ("rows int, Seen long, id int", [(1, 1, 1), (1, 1, 2), (2, 1, 1)], (1, 1, 2)),
        ("id string", [("1",), ("2",), (None,), (None,)], ("2",)),
        ("id int, at timestamp", [(1, datetime(2024, 1, 1, tzinfo=timezone.utc)), (1, datetime(2024, 1, 2, tzinfo=timezone.utc))], (1, datetime(2024, 1, 2, tzinfo=timezone.utc))),
    ],
)  # fmt: skip
def test_repeated_keys_are_found_in_a_snapshot(spark, columns, once, again):
    keys = tuple(column.split()[0] for column in columns.split(", "))
    route = SimpleNamespace(keys=keys, filter=None, filter_is_joined=False)
    for rows, repeated in (once, False), ([*once, again], True), ([*once, *[again] * 64], True):
        frame = spark.createDataFrame(rows, columns).repartition(3)
        assert change_frame.repeated_keys(frame, route).isEmpty() is not repeated
        assert change_frame.duplicate_keys(frame, route).isEmpty() is not repeated


def test_repeated_keys_count_only_rows_that_pass_the_filter(spark):
    route = SimpleNamespace(keys=("id",), filter="name = 'a'", filter_is_joined=False)
    frame = spark.createDataFrame([(1, "a"), (1, "b"), (2, "a")], "id long, name string")
    assert change_frame.repeated_keys(frame, route).isEmpty()


def latest(spark, *rows):
    frame = spark.createDataFrame([(k, g, t, g // 2, None, (i, n)) for k, g, t, i, n in rows], CHANGES).repartition(3)
    return sorted((r["key"] or "", r["guard"], r["change_type"]) for r in change_frame.latest_per_key(frame).collect())


def test_a_delete_and_an_insert_of_one_commit_leave_the_insert(spark):
    rows = [("1", 10, "delete", 1, "a"), ("1", 11, "insert", 1, "b")]
    assert latest(spark, *rows) == latest(spark, *reversed(rows)) == [("1", 11, "insert")]


def test_newest_of_mixed_versions_stays(spark):
    rows = [
        ("1", 13, "insert", 1, "c"),
        ("1", 14, "update_preimage", 1, "c"),
        ("1", 12, "delete", 1, "b"),
        ("2", 15, "update_postimage", 2, "y"),
        ("2", 14, "update_preimage", 2, "x"),
    ]
    assert latest(spark, *rows) == [("1", 14, "update_preimage"), ("2", 15, "update_postimage")]


def test_rows_without_a_key_stay_separate_and_their_deletes_are_dropped(spark):
    rows = [(None, 11, "insert", None, "a"), (None, 11, "insert", None, "b"), (None, 12, "delete", None, "a")]
    assert latest(spark, *rows) == [("", 11, "insert"), ("", 11, "insert")]


def test_append_sink_gets_preimages_only_if_configured(spark):
    rows = [("1", 14, "update_preimage", 5, None, (1, "a")), ("1", 15, "update_postimage", 5, None, (1, "b"))]
    frame = change_frame.without_preimages(spark.createDataFrame(rows, CHANGES))
    assert [row["change_type"] for row in frame.collect()] == ["update_postimage"]


def test_duplicate_rows_of_a_commit_become_a_marked_delete(spark):
    rows = [
        ("twice", 11, "insert", 1, "a"),
        ("twice", 11, "insert", 1, "b"),
        ("twins", 11, "insert", 2, "a"),
        ("twins", 11, "insert", 2, "a"),
        ("moved on", 11, "insert", 3, "a"),
        ("moved on", 11, "insert", 3, "b"),
        ("moved on", 13, "update_postimage", 3, "c"),
        ("gone", 10, "delete", 4, "a"),
        ("gone", 10, "delete", 4, "b"),
        (None, 11, "insert", None, "a"),
        (None, 11, "insert", None, "a"),
    ]
    frame = spark.createDataFrame([(k, g, t, g // 2, None, (i, n)) for k, g, t, i, n in rows], CHANGES).repartition(3)
    reduced = change_frame.latest_per_key(frame)
    plan = reduced._jdf.queryExecution().executedPlan().toString()
    assert (plan.count("Exchange hashpartitioning"), plan.count("Sort ")) == (1, 1)
    assert {r["key"]: (r["guard"], r["change_type"], r["doubled"]) for r in reduced.collect()} == {
        "twice": (10, "delete", 11),
        "twins": (10, "delete", 11),
        "moved on": (13, "update_postimage", 11),
        "gone": (10, "delete", None),
        None: (11, "insert", None),
    }
