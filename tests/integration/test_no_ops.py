"""Updates that change nothing delivered, left out where the operator asks for it, and only as a pair."""

from __future__ import annotations

import pytest

from cdf_replicator import feed
from cdf_replicator.requests import Request

CHANGES = (
    "key string, guard long, change_type string, commit_version long, commit_timestamp timestamp, "
    "row struct<name:string,m:map<string,int>>"
)
ROUTE = "CDF_ROUTES__ORDERS_FILES__"


def left(spark, *rows, above=-1):
    """What reaches the reduction, of (key, version, change type, name)."""
    given = [(k, 2 * v + (t != "update_preimage"), t, v, None, (name, {"x": 1})) for k, v, t, name in rows]
    frame = spark.createDataFrame(given, CHANGES).repartition(2)
    kept = feed.without_no_ops(feed.no_ops_marked(frame, above))
    assert kept.columns == frame.columns
    return sorted((r["key"] or "", r["commit_version"], r["change_type"]) for r in kept.collect())


def pair(key, version, before, after):
    return [(key, version, "update_preimage", before), (key, version, "update_postimage", after)]


def test_only_a_whole_pair_of_equal_images_is_left_out(spark):
    doubled = [*pair("4", 5, "a", "a"), ("4", 5, "update_postimage", "a")]
    swapped = [("5", 5, "update_preimage", "a"), ("6", 5, "update_postimage", "a")]
    beside = [*pair("7", 5, "a", "a"), ("7", 5, "delete", "a")]
    nameless = pair(None, 5, "a", "a")
    nulls = pair("8", 5, None, None)
    half_null = pair("9", 5, None, "a")
    same = pair("1", 5, "a", "a")
    kept = [
        *pair("1", 6, "a", "b"),
        *pair("2", 5, "a", "A"),
        ("3", 5, "insert", "a"),
        ("3", 6, "update_postimage", "a"),
    ]
    untouched = [*doubled, *swapped, *beside, *nameless, *half_null, *kept]
    assert left(spark, *same, *nulls, *untouched) == sorted((k or "", v, t) for k, v, t, _ in untouched)
    assert left(spark, *same, above=5) == sorted((k, v, t) for k, v, t, _ in same), "a replay leaves out nothing"


def test_the_history_that_leaving_out_too_late_or_by_halves_would_damage(spark):
    """A real change of version 5 and an update of version 6 that changes nothing, in one micro-batch.

    The newest change of the key is the image after the second. Reduce first and then leave it out: the first change is
    lost. Leave out the image after alone: the image before wins, and deletes a live row.
    """
    history = [*pair("1", 5, "a", "b"), *pair("1", 6, "b", "b")]
    given = [(k, 2 * v + (t != "update_preimage"), t, v, None, (name, None)) for k, v, t, name in history]
    frame = spark.createDataFrame(given, CHANGES)
    (newest,) = feed.latest_per_key(feed.without_no_ops(feed.no_ops_marked(frame, -1))).collect()
    assert (newest["change_type"], newest["commit_version"], newest["row"]["name"]) == ("update_postimage", 5, "b")


@pytest.fixture
def quiet(world):
    world.environ |= {ROUTE + "SKIP_UNCHANGED": "true", ROUTE + "COLUMNS": "id,name"}
    world.create("id bigint, name string, seen int", rows=["(1, 'a', 0)", "(2, 'b', 0)"])
    return world


def test_an_update_of_what_is_not_delivered_is_left_out_and_counted(quiet):
    world = quiet
    assert world.run() is None
    world.sql("UPDATE {t} SET name = 'c' WHERE id = 1")
    world.sql("UPDATE {t} SET seen = 1")
    assert world.run() is None
    assert world.delivered() == {"1": {"id": 1, "name": "c"}, "2": {"id": 2, "name": "b"}}
    batch = world.last_batch()
    assert batch.received == {"update_preimage": 3, "update_postimage": 3}
    assert (batch.applied, batch.noop, batch.versions) == ({"update_postimage": 1}, 2, (2, 3))
    world.sql("UPDATE {t} SET seen = 2")
    assert world.run() is None
    assert (world.last_batch().applied, world.last_batch().noop) == ({}, 2)


def test_a_replay_delivers_updates_that_change_nothing(quiet):
    """It is asked for because the sink may have lost the row; what comes after it is left out again."""
    world = quiet
    assert world.run() is None
    world.sql("UPDATE {t} SET seen = 1")
    assert world.run() is None
    for file in (world.files / "orders").glob("*.json"):
        file.unlink()  # a sink that has lost its rows
    world.state_path.requests.mkdir()
    assert world.run(ask=Request("replay", "orders_files", 2)) is None
    assert world.delivered() == {"1": {"id": 1, "name": "a"}, "2": {"id": 2, "name": "b"}}
    assert world.last_batch().noop == 0
    world.sql("UPDATE {t} SET seen = 3")
    assert world.run() is None
    assert world.last_batch().noop == 2


def test_a_start_at_a_later_version_leaves_out_nothing(quiet):
    world = quiet
    world.sql("UPDATE {t} SET seen = 1")
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "2"
    assert world.run() is None
    assert world.delivered() == {"1": {"id": 1, "name": "a"}, "2": {"id": 2, "name": "b"}}
