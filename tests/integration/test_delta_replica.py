"""Tests of the replica: it equals the table after every operation and every repetition."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from cdf_replicator.state.command_queue import Command
from cdf_replicator.verification import verify
from connectors import Batch, PermanentError, RetryableError, RouteOptions, RouteSpec
from connectors.delta import merge
from connectors.delta import sink as delta_sink
from connectors.delta.replica import DeltaReplicaSink
from connectors.delta.tables import transactions
from connectors.testing import SCHEMA, change_frame, deletion, upsert
from tests.support import light_table
from tests.support.tiers import nightly

OWN = ("_cdf_key", "_cdf_guard", "_cdf_deleted")
ROUTE = RouteSpec(name="orders_copy", table="orders", keys=("id",), options=RouteOptions(), owner="us", epoch=1)


class SeenEmpty(DeltaReplicaSink):
    def _is_empty(self, _):
        return True


def copy_to(path, **settings):
    return DeltaReplicaSink(DeltaReplicaSink.Settings(type="delta_replica", path=str(path), **settings))


def held(sink):
    """Return the name of each row by its ``id``."""
    return {row["id"]: row["name"] for row in light_table.read(sink.target(ROUTE), ("id", "name"))}


@pytest.fixture
def world(world):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "copy,files",
        "CDF_SINKS__COPY__TYPE": "delta_replica",
        "CDF_SINKS__COPY__PATH": str(world.folder / "copy"),
    }
    world.copy = f"delta.`{world.folder / 'copy' / 'orders'}`"
    return world


def run(world, **more):
    return world.run("orders_copy", **more)


def rows(world, path):
    """Return the rows that have an ``id``, in Spark only if it has to be."""
    found = light_table.read(path)
    if found is None:
        found = [row.asDict(recursive=True) for row in world.spark.read.format("delta").load(path).collect()]
    shown = ({name: value for name, value in row.items() if name not in OWN} for row in found)
    return sorted((row for row in shown if row["id"] is not None), key=repr)


def same(world):
    return rows(world, world.table) == rows(world, f"{world.folder}/copy/orders")


@pytest.mark.nightly
def test_replica_equals_the_table_after_every_operation(world, lose_commit):
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "3"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')", "(4, NULL)"])
    assert run(world) is None
    assert same(world)
    world.change("UPDATE {t} SET name = 'b2' WHERE id = 2")
    world.change("UPDATE {t} SET id = 30 WHERE id = 3")
    world.change("DELETE FROM {t} WHERE id = 1")
    world.insert("(NULL, 'no key')", "(1, 'again')", "(5, 'e')")
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (5, 'x'), (6, 'f') AS s(id, name)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND t.id = 4 THEN DELETE"
    )
    world.overwrite(world.sql("SELECT id, concat(name, '!') AS name FROM {t} WHERE id IS NULL OR id <> 30"))
    assert run(world) is None
    assert same(world), "an overwrite is split: its inserts come before its deletes"
    assert world.dead_letters("code", "state") == [("null_key", "open")] * 2
    lose_commit("orders_copy")
    assert run(world) is None, "Spark gives the batch again"
    assert same(world)

    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "100"
    assert run(world, command=Command("replay", "orders_copy", 1)) is None
    assert same(world)
    world.spark.sql(f"DELETE FROM {world.copy} WHERE id = 5")
    world.spark.sql(f"INSERT INTO {world.copy} VALUES (99, 'mine', NULL, NULL)")
    world.change("DELETE FROM {t} WHERE id = 2")
    assert run(world, command=Command("resync", "orders_copy", max_removed_share=1.0)) is None
    assert same(world), "the resync undoes changes of another writer"


@pytest.mark.parametrize("route", ["orders_copy", nightly("orders_files")])  # test_duplicate_keys has such a batch
def test_batch_without_net_changes_is_delivered(world, route):
    world.create(rows=["(NULL, 'no key')"])
    assert world.run(route) is None
    world.change("DELETE FROM {t}")
    assert world.run(route) is None
    assert world.dead_letters("code") == [("null_key",)]


def test_share_of_rows_without_key_counts_in_a_repeated_batch_too(world, lose_commit):
    world.environ |= {"CDF_DELIVERY__MAX_REJECTED_SHARE": "0.2", "CDF_TABLES__ORDERS__STARTING_VERSION": "0"}
    world.create()
    world.insert(*(f"({'NULL' if number <= 150 else number}, 'row {number}')" for number in range(1, 1001)))
    assert run(world) is None
    lose_commit("orders_copy")
    assert run(world) is None
    assert world.letters.open("orders_copy").count() == 150
    world.insert(*(f"(NULL, 'no key {number}')" for number in range(150)))
    assert run(world).reason == "too_many_rejected"


def test_row_that_another_writer_copied_is_extra_and_counts_once(world):
    def compared():
        sink = world.settings.sink("copy")
        return verify(world.spark, world.settings.routes["orders_copy"], sink, world.state_path).comparison

    def written():
        assert run(world) is None
        batch = next(r for r in world.board.snapshot().routes if r.route == "orders_copy").batches[0]
        return {kind: number for kind, number in batch.applied.items() if number}, batch.stale, batch.noop

    world.create("id int, name string", rows=["(1, 'a')", "(2, 'b')"])
    assert run(world) is None
    path = f"{world.folder}/copy/orders"
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().filter(pc.field("id") == 2), mode="append")
    assert compared().kinds == {"missing": 0, "extra": 1, "different": 0, "foreign": 0}
    world.change("UPDATE {t} SET name = 'c' WHERE id = 2")
    assert written() == ({"update_postimage": 1}, 0, 0)
    world.change("DELETE FROM {t} WHERE id = 2")
    assert written() == ({"delete": 1}, 0, 0)
    assert compared().equal


def test_columns_may_be_added_and_widened_and_have_odd_names(world):
    given = {"delta__columnMapping__mode": "name", "delta__feature__timestampNtz": "supported"}
    world.create("id int, name string", delta__enableTypeWidening="true", **given)
    world.insert("(1, 'a')")
    assert run(world) is None
    world.sql("ALTER TABLE {t} ALTER COLUMN id TYPE bigint")
    world.sql("ALTER TABLE {t} ADD COLUMNS (`odd, name` timestamp_ntz, `a.b` struct<`x y`: int>, `tick``s` string)")
    world.insert(
        "(5000000000, 'b', TIMESTAMP_NTZ '2024-01-01 00:00:00', named_struct('x y', 1), 't')",
        "(6, 'c', NULL, NULL, 'u')",
    )
    world.change("DELETE FROM {t} WHERE id = 1")
    assert run(world) is None
    assert same(world)
    schema = world.spark.table(world.copy).schema
    assert schema["id"].dataType.simpleString() == "bigint"
    assert schema["a.b"].dataType.simpleString() == "struct<x y:int>"


@pytest.mark.parametrize("column", ["day date", nightly("day struct<at: date>")])
def test_date_may_become_a_timestamp_without_zone(world, column):
    """The replica needs a table feature for it, which Delta enables for a new table only."""
    given = {"delta__enableTypeWidening": "true", "delta__feature__timestampNtz": "supported"}
    world.create(f"id int, {column}", **given)
    nested = "struct" in column
    row = "(%d, named_struct('at', %s))" if nested else "(%d, %s)"
    world.insert(row % (1, "date'2026-01-02'"))
    assert run(world) is None
    world.sql(f"ALTER TABLE {{t}} ALTER COLUMN {'day.at' if nested else 'day'} TYPE timestamp_ntz")
    world.insert(row % (2, "timestamp_ntz'2026-01-02 12:00:00'"))
    assert run(world) is None
    assert same(world)
    assert "timestamp_ntz" in world.spark.table(world.copy).schema["day"].dataType.simpleString()


@pytest.mark.nightly  # the replica of the oracle gets nested columns, and the test before adds and widens columns
def test_nested_columns_may_be_added_dropped_and_renamed_at_any_depth(world):
    pair = "struct<a:string,b:string>"
    columns = f"id bigint, name string, s {pair}, l array<{pair}>, m map<string,{pair}>"
    world.create(columns, delta__columnMapping__mode="name")
    row = "(%d, 'a', struct('a', 'b'), array(struct('a', 'b'), NULL), map('k', struct('a', 'b')))"
    world.insert(row % 1, row % 2, "(3, 'c', NULL, NULL, NULL)")
    assert run(world) is None
    world.sql("ALTER TABLE {t} ADD COLUMNS (s.c string AFTER a, l.element.c string FIRST, m.value.c string AFTER a)")
    world.sql("ALTER TABLE {t} DROP COLUMNS (s.b, m.value.b)")
    world.sql("ALTER TABLE {t} RENAME COLUMN l.element.b TO z")
    world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(world.version())
    world.change("UPDATE {t} SET name = 'new', s.c = 'c'")
    assert run(world) is None
    kept = f"{world.folder}/copy/orders keeps columns the route no longer has: s.b, l.element.b, m.value.b."
    assert kept in [event.what for event in world.board.snapshot().events]

    def shown(name):
        return world.spark.sql(f"SELECT id, name, to_json(struct(s, l, m)) AS nested FROM {name} ORDER BY id").collect()

    assert shown(world.copy) == shown(f"delta.`{world.table}`")
    assert run(world, command=Command("replay", "orders_copy", 1)) is None, "of rows that lack what came later"
    assert shown(world.copy) == shown(f"delta.`{world.table}`")


def test_configured_replica_keeps_deleted_rows_and_history(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    world.environ["CDF_SINKS__COPY__HISTORY"] = "true"
    assert run(world) is None
    world.environ["CDF_SINKS__COPY__SOFT_DELETE"] = "true"
    decision = run(world)
    assert "SOFT_DELETE of route orders_copy has changed" in decision.message
    assert decision.remedy == "Run: cdf-replicator resync orders_copy"
    assert run(world, command=Command("resync", "orders_copy", max_removed_share=1.0)) is None
    world.change("DELETE FROM {t} WHERE id = 1")
    assert run(world) is None
    path = str(world.folder / "copy" / "orders")
    kept = light_table.read(path, ("id", "name", "_cdf_deleted"))
    assert sorted(tuple(row.values()) for row in kept) == [(1, "a", True), (2, "b", False)]
    feed = pa.table(DeltaTable(path).load_cdf(starting_version=0, predicate="id = 1"))
    of_one = sorted(feed.to_pylist(), key=lambda row: (row["_commit_version"], row["_change_type"]))
    assert [(row["_change_type"], row["_cdf_deleted"]) for row in of_one] == [
        ("insert", None),
        ("update_postimage", False),
        ("update_preimage", None),
        ("update_postimage", True),
        ("update_preimage", False),
    ]

    world.environ["CDF_STATE_PATH"] = str(world.folder / "another")
    assert run(world).reason == "target_claimed"
    world.environ["CDF_STATE_PATH"] = str(world.folder / "state")
    shutil.rmtree(path)
    decision = run(world)
    assert (decision.reason, decision.remedy) == ("target_gone", "Run: cdf-replicator resync orders_copy")


def test_delivery_repairs_a_kill_between_the_tombstones_and_the_merge(spark, tmp_path, monkeypatch):
    sink, route = copy_to(tmp_path), ROUTE
    sink.prepare(SCHEMA, route)

    def write(number, *changes):
        restarted = DeltaReplicaSink(sink.settings)
        return restarted.write(change_frame(spark, SCHEMA, changes), Batch(route, 0, number, table_id="t"))

    def killed(*given, **named):
        raise RuntimeError("the plug was pulled")

    write(0, upsert("gone", 5, "one"), upsert("kept", 5, "one"))
    batch = (1, deletion("gone", 7), deletion("kept", 6), upsert("new", 7, "new"))
    with monkeypatch.context() as patched:
        patched.setattr(merge, "merge", killed)
        with pytest.raises(RuntimeError, match="the plug was pulled"):
            write(*batch)
    assert held(sink).keys() == {"gone", "kept"}
    assert not write(*batch).skipped
    assert write(*batch).skipped
    assert write(2, upsert("gone", 6, "older"), upsert("kept", 6, "newer")).stale == 1
    assert held(sink) == {"kept": "newer", "new": "new"}
    tombstones = light_table.read(sink.tombstone_path(route), ("key", "guard"))
    assert sorted(row["key"] for row in tombstones) == ["gone", "kept"], "the tombstones of the batch are there once"


def test_delete_of_a_request_keeps_the_content_of_a_soft_deleted_row(spark, tmp_path):
    """It has no content of its own, so that an absent key gets no row."""
    sink = copy_to(tmp_path, soft_delete=True)
    sink.prepare(SCHEMA, ROUTE)

    def write(number, *changes, **more):
        return sink.write(change_frame(spark, SCHEMA, changes), Batch(ROUTE, 0, number, table_id="t", **more))

    write(0, upsert("gone", 5, "one"), upsert("kept", 5, "one"))
    outcome = write(0, deletion("gone", 8), deletion("absent", 8), upsert("kept", 7, "two"), request="a command")
    assert (outcome.stale, outcome.noop) == (0, 1)
    rows = light_table.read(sink.target(ROUTE), ("id", "name", "_cdf_deleted"))
    assert sorted(tuple(row.values()) for row in rows) == [("gone", "one", True), ("kept", "two", False)]


def test_first_load_detects_another_writer_of_an_empty_table(spark, tmp_path):
    sink = copy_to(tmp_path)
    sink.prepare(SCHEMA, ROUTE)

    def load(kind, generation, *changes):
        return kind(sink.settings).write(
            change_frame(spark, SCHEMA, changes), Batch(ROUTE, generation, 0, table_id="t")
        )

    assert load(DeltaReplicaSink, 0, upsert("a", 5, "one"), upsert("b", 5, "one")).applied == {"snapshot": 2}
    again = (1, upsert("b", 7, "two"), upsert("c", 7, "two"))
    with pytest.raises(RetryableError, match=r"another writer has written to a table that was empty: key [ab]"):
        load(SeenEmpty, *again)
    assert held(sink) == {"a": "one", "b": "one"}
    assert not load(DeltaReplicaSink, *again).skipped
    assert held(sink) == {"a": "one", "b": "two", "c": "two"}


@pytest.mark.usefixtures("spark")
def test_table_filled_by_another_writer_is_unchanged(tmp_path):
    def refused(why):
        with pytest.raises(PermanentError, match=why) as caught:
            sink.prepare(SCHEMA, ROUTE)
        assert "PATH" in caught.value.hint

    sink = copy_to(tmp_path / "table")
    keys, guards = ["0", "1", "2"], [0, 1, 2]
    write_deltalake(sink.target(ROUTE), pa.table({"id": guards}))
    refused("is no replica table: it lacks _cdf_guard, _cdf_key")
    sink = copy_to(tmp_path / "folder")
    file = Path(sink.target(ROUTE), "part.parquet")
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": guards}), file)
    refused("is no Delta table, and not empty")
    assert pq.read_table(file).num_rows == 3
    sink = copy_to(tmp_path / "rows")
    of_ours = {"id": keys, "name": ["x"] * 3, "_cdf_key": keys, "_cdf_guard": guards}
    write_deltalake(sink.target(ROUTE), pa.table(of_ours))
    refused("holds rows, and no route has recorded that it fills it")
    sink.prepare(SCHEMA, replace(ROUTE, epoch=2))  # a resync sweeps them
    sink.record_claim(replace(ROUTE, name="second", epoch=3))
    refused("is filled by route second")


def test_clustering_is_done_while_compacting_or_not_at_all():
    with pytest.raises(ValueError, match="zorder_by needs optimize_hours or auto_compact"):
        DeltaReplicaSink.Settings(type="delta_replica", path="/copy", zorder_by=("id",))


def test_maintenance_compacts_beside_the_stream_once_per_interval(world, monkeypatch):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    assert run(world) is None
    world.insert("(3, 'c')")
    world.change("DELETE FROM {t} WHERE id = 2")
    world.environ |= {
        "CDF_SINKS__COPY__OPTIMIZE_HOURS": "1",
        "CDF_SINKS__COPY__ZORDER_BY": "id",
    }

    def compacted():
        history = DeltaTable(f"{world.folder}/copy/orders").history()
        return [each["operationParameters"]["zOrderBy"] for each in history if each["operation"] == "OPTIMIZE"]

    assert run(world) is None
    assert "upkeep: compacted" in " ".join(event.what for event in world.board.snapshot().events)

    world.environ["CDF_SINKS__COPY__AUTO_COMPACT"] = "true"
    world.insert("(4, 'd')")
    monkeypatch.setattr(delta_sink, "MOST_SMALL_FILES", 2)
    assert run(world) is None
    assert compacted() == ['["id"]'], "a restart does not begin again; of two small files one is left"
    del world.environ["CDF_SINKS__COPY__OPTIMIZE_HOURS"], world.environ["CDF_SINKS__COPY__ZORDER_BY"]
    monkeypatch.setattr(delta_sink, "MOST_SMALL_FILES", 1)
    assert run(world) is None
    assert compacted() == ["[]", '["id"]']
    assert same(world)


def test_replica_with_v2_checkpoints_is_claimed_from_a_new_thread(spark, tmp_path):
    sink = copy_to(tmp_path)
    sink.prepare(SCHEMA, ROUTE)
    path = sink.target(ROUTE)
    v2 = "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({v2})")
    for version in range(3):
        transactions.record_txn(path, "us", version)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with ThreadPoolExecutor(1) as route_thread:
        assert route_thread.submit(sink.read_claim, ROUTE).result().owner == "us"


def test_violated_constraint_of_another_owner_is_named(spark, tmp_path):
    sink = copy_to(tmp_path)
    sink.prepare(SCHEMA, ROUTE)
    spark.sql(f"ALTER TABLE delta.`{sink.target(ROUTE)}` ADD CONSTRAINT short CHECK (length(name) < 5)")
    with pytest.raises(PermanentError, match=r"refuses a row: CHECK constraint short \(.*\)\.") as caught:
        sink.write(change_frame(spark, SCHEMA, [upsert("a", 1, "too long")]), Batch(ROUTE, 0, 1, table_id="t"))
    assert f"ALTER TABLE delta.`{sink.target(ROUTE)}` DROP CONSTRAINT short" in caught.value.hint


def test_truncated_replica_needs_a_resync(world):
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "0"
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert run(world) is None
    world.spark.sql(f"TRUNCATE TABLE {world.copy}")
    world.insert("(4, 'd')")
    decision = run(world)
    assert (decision.reason, decision.remedy) == ("target_restored", "Run: cdf-replicator resync orders_copy")
    assert run(world, command=Command("resync", "orders_copy")) is None
    assert same(world)
