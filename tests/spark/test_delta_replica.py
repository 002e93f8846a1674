"""The replica equals the table, whatever is done to the table, and whatever is repeated."""

from __future__ import annotations

import pytest

from cdf_replicator.requests import Request

OWN = ("_cdf_key", "_cdf_guard", "_cdf_deleted")


@pytest.fixture
def world(world):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "copy,files",
        "CDF_SINKS__COPY__TYPE": "delta_replica",
        "CDF_SINKS__COPY__PATH": str(world.folder / "copy"),
        "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "3",
    }
    world.copy = f"delta.`{world.folder / 'copy' / 'orders'}`"
    return world


def run(world, **more):
    return world.run("orders_copy", **more)


def rows(frame):
    return sorted((row.asDict(recursive=True) for row in frame.drop(*OWN).collect()), key=repr)


def same(world):
    return rows(world.sql("SELECT * FROM {t} WHERE id IS NOT NULL")) == rows(world.spark.table(world.copy))


def test_the_replica_equals_the_table_after_everything(world, lose_commit):
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')", "(4, NULL)"])
    assert run(world) is None
    assert same(world)
    world.sql("UPDATE {t} SET name = 'b2' WHERE id = 2")
    world.sql("UPDATE {t} SET id = 30 WHERE id = 3")
    world.sql("DELETE FROM {t} WHERE id = 1")
    world.insert("(NULL, 'nobody')", "(1, 'again')", "(5, 'e')")
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (5, 'x'), (6, 'f') AS s(id, name)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND t.id = 4 THEN DELETE"
    )
    world.overwrite(world.sql("SELECT id, concat(name, '!') AS name FROM {t} WHERE id IS NULL OR id <> 30"))
    assert run(world) is None
    assert same(world), "an overwrite is split: its inserts come before its deletes"
    assert world.buried("code", "state") == [("null_key", "open")] * 2
    lose_commit("orders_copy")
    assert run(world) is None, "Spark gives the batch again"
    assert same(world)

    assert run(world, ask=Request("replay", "orders_copy", 1)) is None
    assert same(world)
    world.spark.sql(f"DELETE FROM {world.copy} WHERE id = 5")
    world.spark.sql(f"INSERT INTO {world.copy} VALUES (99, 'mine', NULL, NULL)")
    world.sql("DELETE FROM {t} WHERE id = 2")
    assert run(world, ask=Request("resync", "orders_copy", max_removed_share=1.0)) is None
    assert same(world), "what somebody else did to the replica is undone"


@pytest.mark.parametrize("route", ["orders_copy", "orders_files"])
def test_a_batch_that_comes_to_nothing_is_delivered(world, route):
    world.create(rows=["(NULL, 'nobody')"])
    assert world.run(route) is None
    world.sql("DELETE FROM {t}")
    assert world.run(route) is None
    assert world.buried("code") == [("null_key",)]


def test_columns_may_be_added_and_widened_and_have_odd_names(world):
    world.create("id int, name string", delta__enableTypeWidening="true", delta__columnMapping__mode="name")
    world.insert("(1, 'a')")
    assert run(world) is None
    world.sql("ALTER TABLE {t} ALTER COLUMN id TYPE bigint")
    world.sql("ALTER TABLE {t} ADD COLUMNS (`odd, name` timestamp_ntz, `a.b` struct<`x y`: int>, `tick``s` string)")
    world.insert("(5000000000, 'b', TIMESTAMP_NTZ '2024-01-01 00:00:00', named_struct('x y', 1), 't')")
    assert run(world) is None
    world.sql("UPDATE {t} SET `a.b` = NULL, `tick``s` = 'u' WHERE id = 5000000000")
    assert run(world) is None
    assert same(world)
    assert world.spark.table(world.copy).schema["id"].dataType.simpleString() == "bigint"
    assert world.spark.table(world.copy).schema["a.b"].dataType.simpleString() == "struct<x y:int>"


def test_a_deleted_row_stays_where_it_is_asked_for(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert run(world) is None
    world.environ["CDF_SINKS__COPY__SOFT_DELETE"] = "true"
    verdict = run(world)
    assert "SOFT_DELETE of route orders_copy has changed" in verdict.what
    assert verdict.next_step == "Run: cdf-replicator resync orders_copy"
    assert run(world, ask=Request("resync", "orders_copy", max_removed_share=1.0)) is None
    world.sql("DELETE FROM {t} WHERE id = 1")
    assert run(world) is None
    told = world.spark.sql(f"SELECT id, name, _cdf_deleted FROM {world.copy} ORDER BY id").collect()
    assert [tuple(row) for row in told] == [(1, "a", True), (2, "b", False)]


def test_upkeep_compacts_beside_the_stream_and_once_in_its_time(world):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    assert run(world) is None
    world.insert("(3, 'c')")
    world.sql("DELETE FROM {t} WHERE id = 2")
    world.environ |= {
        "CDF_SINKS__COPY__OPTIMIZE_HOURS": "1",
        "CDF_SINKS__COPY__ZORDER_BY": "id",
        "CDF_SINKS__COPY__AUTO_COMPACT": "true",
    }
    for _ in range(2):
        assert run(world) is None
        history = world.spark.sql(f"DESCRIBE HISTORY {world.copy}").collect()
        ordered = [row["operationParameters"]["zOrderBy"] for row in history if row["operation"] == "OPTIMIZE"]
        assert ordered == ['["id"]'], "a restart does not begin again"
    detail = world.spark.sql(f"DESCRIBE DETAIL {world.copy}").first()
    assert detail["properties"]["delta.autoOptimize.autoCompact"] == "true"
    assert same(world)
