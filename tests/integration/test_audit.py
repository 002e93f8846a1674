"""Tests of the audit table: it holds every change once, also after repetitions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cdf_replicator.pipeline import route_stream
from cdf_replicator.state.command_queue import Command
from cdf_replicator.transform import change_frame
from connectors import Batch, PermanentError, RetryableError, RouteOptions, RouteSpec
from connectors.delta import audit
from connectors.delta.audit import DeltaAuditSink
from connectors.delta.tables import transactions
from connectors.delta.tables.snapshot import Snapshot
from tests.support import light_table

SHORT = ("id", "name", "change_type", "commit_version")
ROUTE = RouteSpec(name="orders_audit", table="orders", keys=(), options=RouteOptions(), owner="us", epoch=1)


@pytest.fixture
def world(world):
    world.into_delta("audit")
    world.environ["CDF_TABLES__ORDERS__KEYS"] = ""  # optional here
    return world


@pytest.fixture
def loaded(prepared):
    return prepared(one_row)


def one_row(world):
    world.create(rows=["(1, 'a')"])
    assert run(world) is None


@pytest.fixture
def target_made(prepared):
    return prepared(empty_target)


def empty_target(world):
    """Make the audit table of a source with one row, without a run."""
    world.create(rows=["(1, 'a')"])
    batch_of(world, 1)


def run(world, **more):
    return world.run("orders_audit", **more)


def lose(world, where):
    """Delete rows of the audit table, in Spark only if it has to be."""
    statement = f"DELETE FROM {{t}} WHERE {where}"
    if not light_table.changed(world.audit, statement):
        world.spark.sql(statement.replace("{t}", f"delta.`{world.audit}`"))


@pytest.mark.usefixtures("loaded")
def test_every_change_is_kept_once(world, lose_commit):
    world.change("UPDATE {t} SET name = 'b'")
    world.change("DELETE FROM {t}")
    assert run(world) is None
    history = [(1, "a", "snapshot", 1), (1, "b", "delete", 3), (1, "b", "update_postimage", 2)]
    assert world.audited(*SHORT) == history
    lose_commit("orders_audit")
    assert run(world) is None, "Spark gives the batch again"
    assert world.audited(*SHORT) == history
    table_id = world.source().metadata.table_id
    assert world.audited("source_table", "source_table_id", "route", "generation", "batch") == [
        ("orders", table_id, "orders_audit", 0, 0),
        ("orders", table_id, "orders_audit", 0, 1),
        ("orders", table_id, "orders_audit", 0, 1),
    ]


@pytest.mark.usefixtures("loaded")
def test_append_without_its_checksum_file_is_recognized_after_a_log_checkpoint(world, lose_commit):
    world.insert("(2, 'b')")
    assert run(world) is None
    jvm = world.spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(world.spark._jsparkSession, world.audit)
    log.checkpoint(log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty()), jvm.scala.Option.empty())
    world.insert("(3, 'c')")
    assert run(world) is None
    kept = world.audited(*SHORT)
    lose_commit("orders_audit")
    max(Path(world.audit, "_delta_log").glob("*.crc")).unlink()
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert run(world) is None
    assert world.audited(*SHORT) == kept


def batch_of(world, version):
    """The sink, the change frame of one version, and a micro-batch of a prepared route to write it by."""
    route, sink = world.settings.routes["orders_audit"], world.settings.sink("audit")
    source = world.source()
    spec = route.spec(owner="us", epoch=1)
    sink.prepare(change_frame.row_schema(source.schema(), route), spec)
    frame = change_frame.change_frame(source.changes(version, version), route, epoch=1)
    return sink, frame, Batch(spec, generation=1, number=3, table_id=source.metadata.table_id)


@pytest.mark.usefixtures("target_made")
def test_the_same_batch_written_twice_is_written_once(world, monkeypatch):
    sink, frame, batch = batch_of(world, 1)
    first = sink.write(frame, batch)
    assert (first.applied, first.versions) == ({"insert": 1}, (1, 1))
    assert first.commit_times is not None
    assert first.commit_times[0] == first.commit_times[1]
    with monkeypatch.context() as patched:
        patched.setattr(transactions, "append", None)  # nothing is given to Delta
        assert sink.write(frame, batch).skipped
        assert sink.write(frame, replace(batch, number=2)).skipped, "an older one"
        assert sink.write(frame, replace(batch, generation=0, number=9)).skipped, "of an older generation"
    again = sink.write(frame, replace(batch, generation=2, number=1, may_exist=True))
    assert (again.applied, again.stale) == ({}, 1)
    assert len(world.audited("id")) == 1


@pytest.mark.usefixtures("target_made")
def test_batch_recorded_by_a_concurrent_writer_is_skipped(world, monkeypatch):
    sink, frame, batch = batch_of(world, 1)
    sink.write(frame, batch)
    monkeypatch.setattr(
        Snapshot, "last_txn_version", lambda self, app: -1
    )  # as it was before the other writer's commit
    assert sink.write(frame, batch).skipped
    assert len(world.audited("id")) == 1


@pytest.mark.usefixtures("target_made")
def test_append_conflicts_with_a_commit_of_the_same_batch(world, monkeypatch):
    sink, frame, batch = batch_of(world, 1)
    last_version = transactions.last_version

    def overtaken(snapshot, app):
        found = last_version(snapshot, app)
        monkeypatch.setattr(transactions, "last_version", last_version)
        transactions.record_txn(world.audit, app, batch.txn_version)
        return found

    monkeypatch.setattr(transactions, "last_version", overtaken)
    with pytest.raises(RetryableError, match="DELTA_CONCURRENT_TRANSACTION"):
        sink.write(frame, batch)
    assert sink.write(frame, batch).skipped
    assert world.audited("id") == []


@pytest.mark.usefixtures("target_made")
def test_transactions_are_found_without_a_checksum(world):
    sink, frame, batch = batch_of(world, 1)
    sink.write(frame, batch)
    app = transactions.application(batch.route, world.audit)
    with_checksum = Snapshot(world.audit).last_txn_version(app)
    for file in Path(world.audit, "_delta_log").glob("*.crc"):
        file.unlink()
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    assert with_checksum == Snapshot(world.audit).last_txn_version(app) == batch.txn_version


@pytest.mark.usefixtures("target_made")
def test_replay_distinguishes_deleted_row_from_identical_row_inserted_in_same_version(world):
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (1), (2) AS s(id)) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, name) VALUES (1, 'a')"
    )
    sink, frame, batch = batch_of(world, 2)
    both = [(1, "a", "delete", 2), (1, "a", "insert", 2)]
    sink.write(frame, batch)
    assert world.audited(*SHORT) == both
    for generation, lost in ((2, "delete"), (3, "insert")):
        lose(world, f"change_type = '{lost}'")
        again = sink.write(frame, replace(batch, generation=generation, may_exist=True))
        assert (again.applied, again.stale) == ({lost: 1}, 1)
        assert world.audited(*SHORT) == both


@pytest.mark.usefixtures("loaded")
def test_batch_of_another_state_path_is_not_skipped_as_repeated(world):
    assert run(world, command=Command("resync", "orders_audit")) is None
    world.insert("(2, 'b')")
    assert run(world) is None
    before = len(world.audited("id"))
    world.environ["CDF_STATE_PATH"] = str(world.folder / "other")
    assert run(world).reason == "target_claimed"
    assert run(world, command=Command("resync", "orders_audit")) is None
    assert len(world.audited("id")) == before + 2, "the snapshot of the new epoch"
    assert world.state("orders_audit").epoch == 3


@pytest.mark.nightly  # the oracle compares each audit with the feed and the table
def test_folded_audit_table_equals_the_source_table(world):
    world.environ["CDF_TABLES__ORDERS__INCLUDE_PREIMAGES"] = "true"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    assert run(world) is None
    world.change("UPDATE {t} SET id = id + 10 WHERE id < 3")
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (11, 'x'), (4, 'd') AS s(id, name)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND t.id = 3 THEN DELETE"
    )
    world.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id <> 12")
    assert run(world) is None
    fold = world.spark.sql(
        f"""SELECT id, newest.name FROM (
              SELECT id, max_by(struct(name, change_type), commit_version * 2
                + if(change_type IN ('delete', 'update_preimage'), 0, 1)) AS newest
              FROM delta.`{world.audit}` GROUP BY id)
            WHERE newest.change_type NOT IN ('delete', 'update_preimage')"""
    )
    assert {str(row["id"]): row.asDict() for row in fold.collect()} == world.expected()
    assert world.expected().keys() == {"4", "11"}


def test_replay_appends_missing_rows_and_counts_identical_rows(world):
    world.create(
        "id bigint, name string, content string, copy int, `a.b` string, `tick``s` timestamp",
        delta__columnMapping__mode="name",
    )
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "0"
    moment = "TIMESTAMP '2024-05-01 12:00:00.00000"
    twin = f"(1, 'a', 'c', 7, 'd', {moment}1')"
    world.insert(twin, twin, f"(1, 'a', 'c', 7, 'd', {moment}2')", twin)
    world.insert("(2, NULL, NULL, NULL, NULL, NULL)")
    assert run(world) is None
    columns = ["id", "name", "content", "copy", "`a.b`", "`tick``s`", "change_type", "commit_version"]
    whole = world.audited(*columns)
    assert len(whole) == 5
    audit = f"delta.`{world.audit}`"
    world.spark.sql(f"DELETE FROM {audit} WHERE id = 2 OR `tick``s` = {moment}2'")
    world.spark.sql(f"CREATE OR REPLACE TEMP VIEW kept AS SELECT DISTINCT * FROM {audit}")
    kept = world.spark.table("kept").collect()
    schema = world.spark.table("kept").schema
    left = world.spark.createDataFrame(kept, schema).write.format("delta").mode("overwrite")
    left.option("replaceWhere", "id = 1").save(world.audit)
    assert len(world.audited("id")) == 1, "of the twins one is left, of the others none"
    command = Command("replay", "orders_audit", 1, 2)
    assert run(world, command=command) is None
    assert world.audited(*columns) == whole
    assert world.answer(command).state == "done"
    batch = world.last_batch()
    assert (batch.received, batch.applied, batch.stale, batch.versions) == ({"insert": 5}, {"insert": 4}, 1, (1, 2))
    assert run(world, command=Command("replay", "orders_audit", 1)) is None, "without an end"
    batch = world.last_batch()
    assert (batch.received, batch.applied, batch.stale, batch.versions) == ({"insert": 5}, {}, 5, (1, 2))
    assert world.audited(*columns) == whole


def given(spark, version, *rows, columns="id int"):
    """The change frame of inserts; ``rows``: SQL of each."""
    schema = StructType.fromDDL(columns)
    casts = ", ".join(f"CAST(c{n} AS {f.dataType.simpleString()}) AS `{f.name}`" for n, f in enumerate(schema))
    names = ", ".join(f"c{n}" for n in range(len(schema)))
    return spark.sql(
        f"SELECT '' AS key, 0L AS guard, 'insert' AS change_type, {version}L AS commit_version, "
        f"TIMESTAMP '2024-05-01 12:00:00' AS commit_timestamp, struct({casts}) AS row "
        f"FROM VALUES {', '.join(rows)} AS t({names})"
    )


def test_replay_counts_identical_rows_over_all_micro_batches_of_a_version(spark, tmp_path, monkeypatch):
    def write(generation, number, *rows, version=7, replay=True):
        sink = DeltaAuditSink(DeltaAuditSink.Settings(type="delta_audit", path=str(tmp_path)))  # as after a restart
        if not generation:
            sink.prepare(StructType.fromDDL("id int"), ROUTE)
        batch = Batch(ROUTE, generation, number, table_id="t", may_exist=replay)
        return sink.write(given(spark, version, *rows), batch)

    def killed(*_):
        raise RuntimeError("the plug was pulled")

    folder = tmp_path / "_replays" / "orders" / "orders_audit"
    write(0, 1, "(1)", "(1)", replay=False)  # of four twins in three micro-batches; then the checkpoint is lost
    assert (write(1, 1, "(1)").stale, write(1, 2, "(1)").stale) == (1, 1)
    assert write(1, 2, "(1)").skipped
    assert write(1, 3, "(1)", "(1)", "(2)").applied == {"insert": 3}
    assert write(2, 1, "(1)", "(2)", "(1)").stale == 3, "a further replay"
    with monkeypatch.context() as patch:
        patch.setattr(audit, "_append", killed)
        with pytest.raises(RuntimeError, match="the plug was pulled"):
            write(2, 2, "(1)", "(1)")
    assert write(2, 2, "(1)", "(1)").stale == 2
    assert write(2, 4, "(1)", version=8).applied == {"insert": 1}
    assert write(2, 5, "(1)", version=8).applied == {"insert": 1}
    assert sorted(path.name for path in folder.iterdir()) == ["us.2.8.4", "us.2.8.5"], "what is needed no more is gone"
    write(2, 6, "(1)", version=9, replay=False)
    assert not folder.exists()
    held = light_table.read(str(tmp_path / "orders"), ("commit_version", "id"))
    assert sorted(tuple(row.values()) for row in held) == [(7, 1)] * 4 + [(7, 2), (8, 1), (8, 1), (9, 1)]


def test_replay_counts_twins_that_the_generation_appended_before_it(spark, tmp_path):
    """A bounded replay makes the rest of a commit uncertain that the stream has delivered in part, for certain."""

    def write(generation, number, *rows, replay=True, route=ROUTE):
        sink = DeltaAuditSink(DeltaAuditSink.Settings(type="delta_audit", path=str(tmp_path)))
        return sink.write(given(spark, 7, *rows), Batch(route, generation, number, table_id="t", may_exist=replay))

    DeltaAuditSink(DeltaAuditSink.Settings(type="delta_audit", path=str(tmp_path))).prepare(
        StructType.fromDDL("id int"), ROUTE
    )
    write(1, 1, "(1)", replay=False)
    assert write(1, 2, "(1)").applied == {"insert": 1}
    assert write(1, 2, "(1)").skipped
    assert write(1, 3, "(1)", "(2)").applied == {"insert": 2}, "a further micro-batch of the replay"
    assert write(2, 1, "(3)").applied == {"insert": 1}
    other = replace(ROUTE, owner="them")
    DeltaAuditSink(DeltaAuditSink.Settings(type="delta_audit", path=str(tmp_path))).prepare(
        StructType.fromDDL("id int"), replace(other, epoch=2)
    )
    assert write(1, 1, "(3)", route=other).stale == 1
    assert write(1, 4, "(1)", "(1)", "(1)", "(2)", route=other).stale == 4, "another state path had that generation"


def test_range_replayed_within_a_commit_loses_no_twin(world, monkeypatch):
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    one_row(world)
    twins = world.spark.range(0, 2, 1, 2).selectExpr("7L AS id", "'twin' AS name")
    twins.write.format("delta").mode("append").save(world.table)
    world.insert("(3, 'c')")
    world.insert("(4, 'd')")
    write = DeltaAuditSink.write

    def stopped(sink, frame, batch):
        if batch.number == 2:
            raise PermanentError("the query stops after the first file of version 2", "")
        return write(sink, frame, batch)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaAuditSink, "write", stopped)
        assert run(world) is not None
    assert [row[0] for row in world.audited("id")] == [1, 7]
    assert run(world, command=Command("replay", "orders_audit", 3, 4)) is None
    assert [row[0] for row in world.audited("id")] == [1, 3, 4, 7, 7]


WIDE = "n bigint, f double, d decimal(12,4), s struct<a:string,b:bigint,c:string>, l array<struct<a:int,b:int>>, m map<int,struct<a:int,b:double>>"
NARROW = "N int, f float, d decimal(10,2), s struct<C:string,a:string,b:int>, l array<struct<b:int,a:int>>, m map<int,struct<b:float,a:int>>"


def test_rows_of_an_older_schema_are_cast_and_recognized(spark, tmp_path):
    sink = DeltaAuditSink(DeltaAuditSink.Settings(type="delta_audit", path=str(tmp_path)))
    wide = "(5, 0.5, 1.5, struct('a', 7, 'c'), array(struct(1, 2), NULL), map(1, struct(1, 0.5)))"
    narrow = "(5, 0.5, 1.5, struct('c', 'a', 7), array(struct(2, 1), NULL), map(1, struct(0.5, 1)))"
    other = "(6, 0.1, 1.5, NULL, NULL, map(1, struct(0.1, NULL)))"

    def write(number, *rows, columns=WIDE, **more):
        sink.prepare(StructType.fromDDL(columns), ROUTE)
        return sink.write(given(spark, 7, *rows, columns=columns), Batch(ROUTE, number, number, table_id="t", **more))

    write(1, wide)
    assert write(2, narrow, columns=NARROW, may_exist=True).stale == 1
    assert write(3, other, columns=NARROW).applied == {"insert": 1}
    again = write(4, narrow, other, columns=NARROW, may_exist=True)
    assert (again.applied, again.stale) == ({}, 2)
    assert write(5, "(6)", columns="n int", may_exist=True).stale == 1, "what a row lacks makes it no other row"
    held = spark.read.format("delta").load(sink.target(ROUTE))
    assert held.select("s", "l", "m").schema.simpleString() == (
        "struct<s:struct<a:string,b:bigint,c:string>,l:array<struct<a:int,b:int>>,m:map<int,struct<a:int,b:double>>>"
    )
    rows = sorted(tuple(row)[:6] for row in held.drop("f", "d").collect())
    assert [row[0] for row in rows] == [5, 6]
    assert rows[0][1] == ("a", 7, "c")
    assert rows[0][2] == [(1, 2), None]
    assert held.where("f = CAST(0.1F AS double) AND s IS NULL").count() == 1


@pytest.mark.nightly  # the oracle loses a checkpoint after schema changes
def test_lost_checkpoint_across_schema_changes_doubles_and_loses_no_row(world):
    world.environ |= {
        "CDF_TABLES__ORDERS__STARTING_VERSION": "0",
        "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "1",
    }
    mapped = {"delta__columnMapping__mode": "name", "delta__enableTypeWidening": "true"}
    world.create("id bigint, x int, s struct<a:string,b:string>", **mapped)
    twins = world.spark.range(0, 2, 1, 2).selectExpr("1L AS id", "5 AS x", "named_struct('a', 'a', 'b', 'b') AS s")
    twins.write.format("delta").mode("append").save(world.table)
    world.sql("ALTER TABLE {t} ADD COLUMNS (s.c string AFTER a)")
    world.sql("ALTER TABLE {t} ALTER COLUMN x TYPE bigint")
    world.insert("(2, 5000000000, named_struct('a', 'a', 'c', 'c', 'b', 'b'))")
    assert run(world) is None
    whole = world.audited("id", "x", "s.a", "s.b", "s.c")
    assert whole == [(1, 5, "a", "b", None)] * 2 + [(2, 5000000000, "a", "b", "c")]
    first = world.audited("batch")[0][0]
    lose(world, f"id = 1 AND batch > {first}")
    shutil.rmtree(world.state_path.checkpoint("orders_audit", 0))
    assert run(world) is None
    assert world.audited("id", "x", "s.a", "s.b", "s.c") == whole


@pytest.mark.usefixtures("loaded")
def test_replay_of_an_undelivered_range_does_not_double_it(world):
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    assert run(world, command=Command("replay", "orders_audit", 2, 3)) is None
    assert [row[0] for row in world.audited("id")] == [1, 2, 3]


def test_range_replayed_before_the_first_delivery_is_not_doubled(world):
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "0"
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    assert run(world, command=Command("replay", "orders_audit", 2, 3)) is None
    assert [row[0] for row in world.audited("id")] == [1, 2, 3]


def test_audit_restored_to_its_snapshot_gets_the_later_changes_alone(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert run(world) is None
    loaded = Snapshot(world.audit).version
    world.insert("(3, 'c')")
    assert run(world) is None
    history = world.audited(*SHORT)
    world.spark.sql(f"RESTORE delta.`{world.audit}` TO VERSION AS OF {loaded}")
    assert run(world) is None
    assert world.audited(*SHORT) == history == [(1, "a", "snapshot", 1), (2, "b", "snapshot", 1), (3, "c", "insert", 2)]


@pytest.mark.usefixtures("loaded")
def test_new_source_column_becomes_a_new_audit_column(world):
    world.insert("(2, 'b')")
    world.sql("ALTER TABLE {t} ADD COLUMN price int")
    world.insert("(3, 'c', 30)")
    assert run(world) is None
    assert world.audited("id", "price") == [(1, None), (2, None), (3, 30)]
    assert run(world, command=Command("replay", "orders_audit", 2)) is None
    assert len(world.audited("id")) == 3, "a row from before the column is still the same row"


def test_date_may_become_a_timestamp_without_zone(world):
    given = {"delta__enableTypeWidening": "true", "delta__feature__timestampNtz": "supported"}
    world.create("id int, day date", rows=["(1, date'2026-01-02')"], **given)
    assert run(world) is None
    world.sql("ALTER TABLE {t} ALTER COLUMN day TYPE timestamp_ntz")
    world.insert("(2, timestamp_ntz'2026-01-02 12:00:00')")
    assert run(world) is None
    assert world.audited("id", "day") == [(1, datetime(2026, 1, 2)), (2, datetime(2026, 1, 2, 12))]  # noqa: DTZ001 - without zone


def test_columns_of_a_mapped_table_may_be_added_and_renamed(world):
    world.create(rows=["(1, 'a')"], delta__columnMapping__mode="name")
    assert run(world) is None
    world.insert("(2, 'b')")
    world.sql("ALTER TABLE {t} ADD COLUMN price int")
    world.insert("(3, 'c', 30)")
    assert run(world) is None
    assert world.audited("id", "price") == [(1, None), (2, None), (3, 30)]
    world.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    world.insert("(4, 'd', 40)")
    decision = run(world)
    assert (decision.action, decision.reason) == ("halt", "schema_change")
    assert "Approve it" in decision.remedy
    world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = "5"
    assert run(world) is None
    assert world.audited("id", "title") == [(1, None), (2, None), (3, None), (4, "d")]


def test_column_named_like_an_audit_column_halts_with_rename_setting(world):
    world.create("id bigint, batch int")
    decision = run(world)
    assert "column batch of route orders_audit has the name of an audit column" in decision.message
    world.environ["CDF_ROUTES__ORDERS_AUDIT__RENAME"] = "batch=source_batch"
    assert run(world) is None, "nothing was written yet, so the definition may be corrected"


def test_foreign_delta_table_is_not_written(world):
    world.create(rows=["(1, 'a')"])
    write_deltalake(world.audit, pa.table({"id": [0, 1, 2]}))
    decision = run(world)
    assert "is no audit table" in decision.message
    assert [field.name for field in DeltaTable(world.audit).schema().fields] == ["id"]


def test_unknown_path_scheme_is_reported(world):
    world.environ["CDF_SINKS__AUDIT__PATH"] = "nowhere://bucket/audit"
    with pytest.raises(PermanentError, match="can't be reached"):
        world.settings.sink("audit").check()


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("limit", "files"), [(route_stream.SMALL_BYTES, 1), (0, 2)])
def test_small_micro_batch_is_appended_in_one_file(world, monkeypatch, limit, files):
    monkeypatch.setattr(route_stream, "SMALL_BYTES", limit)
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    before = {*Path(world.audit).rglob("*.parquet")}

    assert run(world) is None

    assert len({*Path(world.audit).rglob("*.parquet")} - before) == files


@pytest.mark.usefixtures("target_made")
def test_replayed_rows_conflict_with_a_restore_since_the_table_was_read(world, monkeypatch):
    sink, frame, batch = batch_of(world, 1)
    sink.write(frame, batch)
    again = replace(batch, generation=2, may_exist=True)
    written = Snapshot(world.audit).version
    lose(world, "id = 1")
    append = transactions.append

    def restored(*given):
        DeltaTable(world.audit).restore(written)
        return append(*given)

    monkeypatch.setattr(transactions, "append", restored)
    with pytest.raises(RetryableError, match="DELTA_CONCURRENT"):
        sink.write(frame, again)


@pytest.mark.usefixtures("target_made")
def test_append_of_another_type_than_the_table_has_is_refused(world):
    sink, frame, batch = batch_of(world, 1)
    wider = frame.withColumn("row", F.struct(F.col("row.id").cast("string").alias("id"), "row.name"))

    with pytest.raises(PermanentError, match="id is bigint there, string now"):
        sink.write(wider, batch)
