"""A route from its first start on: snapshot, stream, restarts, kills. The sink always ends up as the table is."""

from __future__ import annotations

import gc
import shutil
import threading
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from cdf_replicator.pipeline import generation
from cdf_replicator.pipeline.batch_writer import BatchWriter
from cdf_replicator.pipeline.route_stream import RouteStream
from cdf_replicator.state import checkpoint
from cdf_replicator.state.command_queue import Command
from tests.chaos.progress import is_inside_a_commit
from tests.support.waiting import until


def test_a_snapshot_is_loaded_and_then_followed(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run() is None
    assert world.delivered() == world.expected()
    assert world.last_batch().applied == {"snapshot": 2}
    world.insert("(3, 'c')")
    world.change("UPDATE {t} SET name = 'bb' WHERE id = 2")
    world.change("DELETE FROM {t} WHERE id = 1")
    assert world.run() is None
    assert world.delivered() == world.expected() == {"2": {"id": 2, "name": "bb"}, "3": {"id": 3, "name": "c"}}
    batch = world.last_batch()
    assert batch.received == {"insert": 1, "update_preimage": 1, "update_postimage": 1, "delete": 1}
    assert batch.applied == {"insert": 1, "update_postimage": 1, "delete": 1}
    assert batch.versions == (2, 4)


def test_an_empty_table_is_followed_from_its_first_row(world):
    world.create()
    assert world.run() is None
    assert world.delivered() == {}
    world.insert("(1, 'a')")
    assert world.run() is None
    assert world.delivered() == world.expected()


@pytest.mark.nightly
def test_every_operation_in_small_micro_batches_leaves_the_rows_of_the_table(world):
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "0"
    world.create()
    world.insert("(1, 'a')", "(2, 'b')", "(3, 'c')", "(4, 'd')")
    kept = world.version()
    world.change("UPDATE {t} SET id = id + 10 WHERE id < 3")
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (3, 'cc'), (4, NULL), (5, 'e') AS s(id, name)) s ON t.id = s.id "
        "WHEN MATCHED AND s.name IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    world.overwrite(world.spark.createDataFrame([(3, "o"), (5, "o"), (6, "o")], "id long, name string"))
    world.sql("OPTIMIZE {t}")
    world.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {kept}")
    world.change("UPDATE {t} SET name = upper(name) WHERE id = 1")
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_overwrite_split_at_any_place_leaves_the_rows_of_the_table(world):
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    assert world.run() is None
    frame = world.spark.createDataFrame([(2, "bb"), (3, "c"), (4, "d")], "id long, name string")
    world.overwrite(frame, files=2)
    assert world.run() is None
    folder = world.state_path.checkpoint("orders_files", 0)
    assert len(list((folder / "commits").glob("[0-9]*"))) > 2, "the commit was split"
    assert world.delivered() == world.expected()


def test_half_written_micro_batch_is_written_again(world):
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    assert world.run() is None
    world.change("UPDATE {t} SET name = upper(name)")
    world.trouble("1")
    assert world.run().reason == "bug"
    assert checkpoint.last_committed(world.state_path.checkpoint("orders_files", 0)) is None
    world.trouble(None)
    world.change("DELETE FROM {t} WHERE id = 2")
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_writes_before_a_server_restart_are_sent_again(world):
    world.create(rows=["(1, 'a')"])
    for phase in ("bootstrapping", "streaming"):
        world.trouble("restarted")
        decision = world.run()
        assert (decision.action, decision.reason, world.state().phase) == ("wait", "lost", phase)
        for file in (world.files / "orders").glob("*.json"):
            file.unlink()
        world.trouble(None)
        assert world.run() is None
        assert world.delivered() == world.expected(lambda row: row["id"] > 1) or phase == "bootstrapping"
        world.insert("(2, 'b')")


@pytest.mark.usefixtures("loaded")
def test_a_redelivered_micro_batch_changes_nothing(world, lose_commit):
    world.insert("(2, 'b')")
    assert world.run() is None
    lose_commit("orders_files")
    assert world.run() is None
    assert world.delivered() == world.expected()
    assert world.last_batch().received == {"insert": 1}


def test_vacuumed_pinned_version_is_pinned_again_and_orphans_are_deleted(world):
    """A row deleted between the two pins is removed, however large its share: no other writer wrote it."""
    world.environ["CDF_DELIVERY__MAX_REMOVED_SHARE"] = "0"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    world.trouble("1")
    world.run()
    world.replace("(3, 'cc')", "(4, 'd')")
    world.vacuum()
    world.trouble(None)
    assert world.run() is None
    assert world.state().epoch == 2
    assert world.delivered() == world.expected()


def test_restart_after_a_micro_batch_does_not_need_the_starting_version(world):
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "1"
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    world.insert("(2, 'b')")
    world.forget_log_before(2)
    world.insert("(3, 'c')")
    assert world.run() is None
    assert world.delivered() == world.expected()
    assert world.last_batch().received == {"insert": 2}, "what was delivered is not delivered again"


@pytest.mark.parametrize("killed", [False, True])
def test_restart_does_not_need_a_delivered_update_that_cleanup_removed(started, live, monkeypatch, killed):
    """Spark's offset of an update lies within its commit."""
    monkeypatch.setattr(generation, "IDLE_SECONDS", 0.0)
    started.change("UPDATE {t} SET name = 'later' WHERE id = 1")
    if killed:  # the state as the service has written it while its query was idle
        (runner,) = live("orders_files")
        until(lambda: started.state().completed_offset)
        shutil.copytree(started.folder / "state", started.folder / "copy")
        runner.end()
        runner.join(30)
        shutil.rmtree(started.folder / "state")
        (started.folder / "copy").rename(started.folder / "state")
    else:
        assert started.run() is None
    end = checkpoint.last_committed(started.state_path.checkpoint("orders_files", 0))
    assert (end.version, end.index >= 0) == (2, True)
    started.insert("(3, 'c')")
    started.forget_log_before(3)
    assert started.run() is None
    assert started.delivered() == started.expected()
    assert started.last_batch().received == {"insert": 1}, "what was delivered is not delivered again"


def test_live_route_follows_until_it_is_stopped(world):
    world.environ["CDF_TRIGGER_SECONDS"] = "0.2"
    world.create(rows=["(1, 'a')"])
    stop = threading.Event()
    runner = world.runner(once=False, stop=stop)
    runner.start()
    try:
        until(lambda: world.delivered() == world.expected())
        world.insert("(2, 'b')")
        until(lambda: world.delivered() == world.expected())
        until(lambda: world.board.snapshot().routes[0].lag_versions == 0)
        route = world.board.snapshot().routes[0]
        assert (route.state, route.source_version, route.delivered_version) == ("running", 2, 2)
        world.change("DELETE FROM {t} WHERE id = 1")
        command = Command("resync", "orders_files")
        world.state_path.requests.mkdir()
        runner.submit(command)
        until(lambda: (found := world.answer(command)) is not None and found.state == "done")
        assert world.delivered() == world.expected()
    finally:
        stop.set()
        runner.wake()
        runner.join(30)
    assert not runner.is_alive()
    assert runner.failure is None
    assert world.board.snapshot().routes[0].state == "stopped"


def test_unreachable_sink_is_distinguished_from_a_fault(world):
    world.create(rows=["(1, 'a')"])
    world.trouble("away")
    decision = world.run()
    assert (decision.action, decision.reason) == ("wait", "unreachable")
    assert world.board.snapshot().sinks[0].up is False
    world.trouble(None)
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_sink_that_refuses_one_target_is_not_down(world):
    world.create(rows=["(1, 'a')"])
    for trouble, up in (("forbidden", True), ("locked", False)):  # in a write, and in the check of the sink
        world.trouble(trouble)
        decision = world.run()
        assert (decision.action, decision.reason) == ("halt", "sink_refused")
        assert world.board.snapshot().sinks[0].up is up


@pytest.mark.usefixtures("loaded")
def test_sink_that_refuses_the_service_while_a_route_runs_is_down(world, live):
    def shown():
        status = world.board.snapshot()
        return status.routes[0].state, status.sinks[0].up

    (runner,) = live("orders_files")
    until(lambda: shown() == ("running", True))
    world.trouble("locked")
    world.insert("(2, 'b')")
    until(lambda: shown() == ("halted", False))
    world.trouble(None)
    world.submit(runner, Command("resume", "orders_files"))
    until(lambda: world.delivered() == world.expected() and shown() == ("running", True))


def test_delta_reads_tables_again_after_an_unknown_spark_error(world, monkeypatch):
    world.create(rows=["(1, 'a')"])
    logs, run, calls = world.spark._jvm.org.apache.spark.sql.delta.DeltaLog, RouteStream.run, []

    def fails_once(stream, *given, **named):
        calls.append(logs.forTable(world.spark._jsparkSession, world.table))
        if len(calls) == 1:
            raise AnalysisException(message="[INTERNAL_ERROR] Executed command failed.")
        return run(stream, *given, **named)

    monkeypatch.setattr(RouteStream, "run", fails_once)
    assert world.run() is None
    before, after = calls
    assert not before.equals(after)
    assert world.delivered() == world.expected()


def test_ended_query_is_released_by_python_and_the_jvm(world):
    """Its sink calls back from the JVM into Python: held from there too, neither would ever free it, nor its plans."""
    world.create(rows=["(1, 'a')"])
    called_back = world.spark.sparkContext._gateway.gateway_property.pool.dict
    others = set(called_back)
    for number in (2, 3):
        world.insert(f"({number}, 'b')")
        assert world.run() is None

    def freed():
        gc.collect()
        world.spark._jvm.java.lang.System.gc()
        return set(called_back) <= others

    until(freed)


def test_restart_within_a_commit_does_not_report_it_as_delivered(world, live, monkeypatch):
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    world.create(rows=["(0, 'a')"])
    assert world.run() is None
    world.spark.range(1, 4, 1, 3).selectExpr("id", "'b' name").write.format("delta").mode("append").save(world.table)
    stop, write = threading.Event(), BatchWriter.write

    def written(*arguments, **options):
        stop.set()
        return write(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "write", written)
        stopped = world.runner(stop=stop)
        stopped.start()
        stopped.join(60)
    assert len(world.delivered()) == 2
    route, table = world.state_path.checkpoint("orders_files", 0).parent.parent, Path(world.table)
    assert is_inside_a_commit(route, table)
    world.trouble("hang")
    live("orders_files")
    positions = []
    try:
        until(lambda: positions.append(position(world)) or len([at for at in positions if at[0] == "running"]) >= 20)
        assert (world.sample("cdf_delivered_version"), world.sample("cdf_lag_versions")) == (1, 1)
    finally:
        world.trouble(None)
    assert {at[1:] for at in positions if at[0] == "running" and at[2] is not None} == {(2, 1)}
    until(lambda: position(world) == ("running", 2, 2))
    assert len(world.delivered()) == 4
    assert not is_inside_a_commit(route, table)


def position(world):
    (route,) = world.board.snapshot().routes
    return route.state, route.source_version, route.delivered_version
