"""A route halts on errors that no retry resolves, reports the reason and the next command, and a resync repairs it."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from cdf_replicator.route import ENTRY_NAMES
from cdf_replicator.source import continuity
from cdf_replicator.spark.session import clear_delta_cache
from cdf_replicator.state.command_queue import Command
from tests.support.waiting import until


def halted(world, reason):
    decision = world.run()
    assert decision is not None
    assert (decision.action, decision.reason) == ("halt", reason)
    assert world.board.snapshot().routes[0].state == "halted"
    assert decision.remedy.endswith("resync orders_files")
    return decision


def resynced(world):
    command = Command("resync", "orders_files")
    assert world.run(command=command) is None
    assert world.answer(command).state == "done"
    assert world.delivered() == world.expected()


def test_duplicate_keys_in_a_snapshot_are_named(world):
    world.environ["CDF_TABLES__ORDERS__ON_DUPLICATE_KEYS"] = "halt"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(2, 'c')", "(3, 'd')"])
    decision = halted(world, "duplicate_keys")
    assert "Key columns id of table orders" in decision.message
    assert "at version 1" in decision.message
    assert "several rows of 1 key: 2 (2 rows)." in decision.message
    assert "ON_DUPLICATE_KEYS=dead_letter" in decision.remedy
    assert world.delivered() == {}
    world.change("DELETE FROM {t} WHERE name = 'c'")
    resynced(world)


def test_recreated_table_halts_the_route(started):
    shutil.rmtree(started.table)
    started.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    started.create(rows=["(2, 'bb')", "(3, 'c')"])
    decision = halted(started, "table_replaced")
    assert "recreated" in decision.message
    assert started.delivered().keys() == {"1", "2"}
    resynced(started)
    assert started.state().epoch == 2
    assert started.delivered().keys() == {"2", "3"}, "what the new table never had is swept"


@pytest.mark.parametrize(("commits", "followed"), [(0, True), (3, False), (3, True)])
def test_table_restored_from_a_copy_of_files_halts_the_route(world, monkeypatch, commits, followed):
    """Its id is the same. The commits after the copy differ from those that the route has read."""
    monkeypatch.setattr(continuity, "DRIVER_CLOCK_SECONDS", 0.0)
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.0)
    world.create(rows=["(1, 'a')"])
    copy = world.folder / "copy"
    shutil.copytree(world.table, copy)
    if followed:
        assert world.run() is None
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    assert world.run() is None
    shutil.rmtree(world.table)
    copy.rename(world.table)
    clear_delta_cache(world.spark)
    for number in range(commits):
        world.insert(f"({10 + number}, 'other')")
    decision = halted(world, "history_lost")
    assert "has read version 3" in decision.message
    assert "restored from a copy" in decision.message
    assert world.delivered().keys() == {"1", "2", "3"}
    resynced(world)
    assert world.delivered().keys() == {"1", *(str(10 + number) for number in range(commits))}


def test_table_restored_from_a_copy_during_a_replay_halts_the_route(world, monkeypatch):
    """The copy ends after the commit that the replay has reached, and before the last that the route has read."""
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.0)
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    assert world.run() is None
    copy = world.folder / "copy"
    shutil.copytree(world.table, copy)
    world.insert("(3, 'c')")
    world.insert("(4, 'd')")
    assert world.run() is None
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    world.trouble("0")
    assert world.run(start_version=1).reason == "bug"
    world.trouble(None)
    go_back(world, copy, "(13, 'other')", "(14, 'other')", "(15, 'other')")
    decision = halted(world, "history_lost")
    assert "has read version 4" in decision.message


def go_back(world, copy, *rows):
    """Replace the files of the table by a copy, and commit rows after it."""
    shutil.rmtree(world.table)
    copy.rename(world.table)
    clear_delta_cache(world.spark)
    for row in rows:
        world.insert(row)


def test_table_restored_from_a_copy_during_a_bootstrap_halts_the_route(world, monkeypatch):
    """The other snapshot lacks a row that the first load has written."""
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.0)
    world.create(rows=["(1, 'a')"])
    copy = world.folder / "copy"
    shutil.copytree(world.table, copy)
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    world.trouble("3")
    assert world.run().reason == "bug"
    world.trouble(None)
    written = world.delivered().keys()
    assert written
    go_back(world, copy, "(4, 'other')", "(5, 'other')")
    assert "has read version 3" in halted(world, "history_lost").message
    assert world.delivered().keys() == written
    resynced(world)


def test_mapped_table_restored_before_its_first_commit_halts_the_route(world, live, monkeypatch):
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.0)
    world.create(rows=["(1, 'a')"], delta__columnMapping__mode="name")
    copy = world.folder / "copy"
    shutil.copytree(world.table, copy)
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    (runner,) = live("orders_files")
    until(lambda: len(world.delivered()) == 3 and world.board.snapshot().routes[0].state == "running")
    go_back(world, copy, "(4, 'other')", "(5, 'other')", "(6, 'other')")
    until(lambda: runner.failure is not None or len(world.delivered()) > 3)
    assert world.delivered().keys() == {"1", "2", "3"}
    assert (runner.failure.action, runner.failure.reason) == ("halt", "history_lost")
    assert "restored from a copy" in runner.failure.message


def test_snapshot_read_with_a_slow_clock_does_not_halt_the_route(started, monkeypatch):
    """The state names the time of the commit file, by the clock of its storage."""
    monkeypatch.setattr(continuity, "DRIVER_CLOCK_SECONDS", -3600.0)
    assert started.run() is None


def test_clock_is_named_that_a_later_commit_was_compared_with(started, monkeypatch):
    started.insert("(3, 'c')")
    assert started.run() is None
    monkeypatch.setattr(continuity, "DRIVER_CLOCK_SECONDS", -3600.0)
    assert (
        "by the clock of the machine that ran the route (if that clock was slow"
        in halted(started, "history_lost").message
    )


def test_moved_files_of_a_table_do_not_halt_the_route(started, monkeypatch):
    """A file's time may be some milliseconds before the time that its writer has put into it."""
    monkeypatch.setattr(continuity, "DRIVER_CLOCK_SECONDS", 0.1)
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.1)
    for commit in (Path(started.table) / "_delta_log").glob("*.json"):
        moved_at = commit.stat().st_mtime + 60
        os.utime(commit, (moved_at, moved_at))
    started.insert("(3, 'c')")
    assert started.run() is None
    assert started.delivered().keys() == {"1", "2", "3"}


@pytest.mark.parametrize("seen_missing", [True, False])
def test_mapped_table_recreated_before_its_first_commit_halts_the_route(world, live, seen_missing):
    world.create(rows=["(1, 'a')", "(2, 'b')"], delta__columnMapping__mode="name")
    (runner,) = live("orders_files")

    def state_and_condition():
        route = world.board.snapshot().routes[0]
        return route.state, route.last_error.condition if route.last_error else None

    until(lambda: state_and_condition() == ("running", None))
    shutil.rmtree(world.table)
    if seen_missing:
        until(lambda: state_and_condition() == ("retrying", "table_missing"))
    world.create(rows=["(7, 'new')"], delta__columnMapping__mode="name")
    world.insert("(8, 'new')")
    until(lambda: runner.failure is not None or len(world.delivered()) > 2)
    assert world.delivered().keys() == {"1", "2"}
    assert (runner.failure.action, runner.failure.reason) == ("halt", "table_replaced")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CDF_ROUTES__ORDERS_FILES__FILTER", "id > 1"),
        ("CDF_ROUTES__ORDERS_FILES__COLUMNS", "id"),
        ("CDF_ROUTES__ORDERS_FILES__RENAME", "name=title"),
        ("CDF_TABLES__ORDERS__KEYS", "id,name"),
    ],
)
def test_changed_definition_is_not_mixed_with_the_former_definition(started, variable, value):
    started.environ[variable] = value
    decision = halted(started, "route_changed")
    assert f"{variable.rsplit('__', 1)[1].lower()} was" in decision.message


def test_resync_applies_a_changed_definition(started):
    started.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "id > 1"
    command = Command("resync", "orders_files")
    assert started.run(command=command) is None
    assert started.delivered() == started.expected(lambda row: row["id"] > 1)
    started.change("UPDATE {t} SET id = id - 1")
    assert started.run() is None
    assert started.delivered() == started.expected(lambda row: row["id"] > 1) == {}


def cached(world, redis_server):
    """Load two rows into Redis; return a client."""
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    client.flushall()
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.environ |= {"CDF_TABLES__ORDERS__SINKS": "cache", "CDF_SINKS__CACHE__TYPE": "redis"}
    world.environ["CDF_SINKS__CACHE__URL"] = redis_server.url
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run("orders_cache") is None
    return client


def test_changed_key_template_halts_and_a_resync_deletes_the_former_keys(world, redis_server):
    del world.environ["CDF_DELIVERY__MAX_REMOVED_SHARE"]
    with cached(world, redis_server) as client:
        client.set("orders:count", "of another program")
        world.environ["CDF_ROUTES__ORDERS_CACHE__KEY_TEMPLATE"] = "orders:{id}:v2"
        decision = world.run("orders_cache")
        assert (decision.action, decision.reason) == ("halt", "route_changed")
        assert "entry names was 'orders:{id}', is 'orders:{id}:v2'" in decision.message
        assert decision.remedy == (
            "Run: cdf-replicator resync orders_cache --yes "
            "(it deletes every entry with a former name, often a larger share than MAX_REMOVED_SHARE)"
        )
        allowed = Command("resync", "orders_cache", max_removed_share=1.0)  # of --yes
        assert world.run("orders_cache", command=allowed) is None
        assert sorted(client.scan_iter("orders:*")) == ["orders:1:v2", "orders:2:v2", "orders:count"]


def test_state_of_an_older_release_without_entry_names_halts_no_route(world, redis_server):
    with cached(world, redis_server):
        state = world.state("orders_cache")
        older = {name: value for name, value in state.identity.items() if name != ENTRY_NAMES}
        world.state_path.save(replace(state, identity=older))
        world.environ["CDF_ROUTES__ORDERS_CACHE__KEY_TEMPLATE"] = "orders:{id}"  # the same names as without it
        assert world.run("orders_cache") is None
        assert world.state("orders_cache").identity == {**older, ENTRY_NAMES: "orders:{id}"}


def test_missing_target_is_not_filled_with_the_newest_changes_only(started):
    shutil.rmtree(started.files / "orders")
    started.insert("(3, 'c')")
    halted(started, "target_gone")
    resynced(started)


def test_target_filled_from_another_state_path_is_unchanged(started):
    started.environ["CDF_STATE_PATH"] = str(started.folder / "another")
    started.change("DELETE FROM {t} WHERE id = 1")
    halted(started, "target_claimed")
    assert started.delivered().keys() == {"1", "2"}
    resynced(started)
    assert started.state().epoch == 2


def test_commits_removed_by_log_cleanup_are_not_skipped(started):
    started.insert("(3, 'c')")
    started.insert("(4, 'd')")
    assert started.run() is None
    started.insert("(5, 'e')")
    started.change("DELETE FROM {t} WHERE id = 5")
    started.insert("(6, 'f')")
    started.forget_log_before(started.version())
    halted(started, "history_lost")
    resynced(started)


def test_disabled_change_feed_halts_with_the_command_to_enable_it(world):
    world.create(rows=["(1, 'a')"], delta__enableChangeDataFeed="false")
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "change_feed_off")
    assert "cdf-replicator enable orders" in decision.remedy
    assert "(delta.enableChangeDataFeed = true)" in decision.remedy
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_table_that_does_not_exist_yet_is_retried(world):
    decision = world.run()
    assert (decision.action, decision.reason) == ("wait", "table_missing")
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_sink_that_refuses_access_halts_the_route_with_its_hint(started):
    started.insert("(3, 'c')")
    started.trouble("forbidden")
    decision = started.run()
    assert (decision.action, decision.message, decision.remedy) == ("halt", "The folder is locked.", "Unlock it.")


def test_filter_that_spark_cannot_parse_is_reported(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "colour = 'red'"
    world.create()
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "bad_expression")
    assert "colour" in decision.message


def test_a_damaged_state_is_rebuilt_by_a_resync(started):
    (started.state_path.root / "routes" / "orders_files" / "route.json").write_text("{")
    started.change("DELETE FROM {t} WHERE id = 1")
    halted(started, "state_damaged")
    resynced(started)
    assert (started.state().epoch, started.state().generation) == (2, 1)


def test_halted_route_waits_for_its_operator_and_reports_no_old_error(started):
    """A live route fails by a sink error first, then by a schema change: each is classified separately."""
    started.environ["CDF_TRIGGER_SECONDS"] = "0.2"
    stop = threading.Event()
    runner = started.runner(once=False, stop=stop)
    runner.start()
    try:
        started.trouble("forbidden")
        started.insert("(3, 'c')")
        until(lambda: runner.failure is not None)
        started.trouble(None)
        command = Command("replay", "orders_files", 2)
        started.state_path.requests.mkdir()
        runner.submit(command)
        until(lambda: started.delivered() == started.expected())
        started.sql("ALTER TABLE {t} ADD COLUMN price int")
        started.insert("(4, 'd', 40)")
        until(lambda: "4" in started.delivered())
        assert started.delivered()["4"] == {"id": 4, "name": "d", "price": 40}
        events = [event.what for event in started.board.snapshot().events]
        assert any("retrying: [DELTA_SCHEMA_CHANGED" in what for what in events)
        assert runner.failure is None
    finally:
        stop.set()
        runner.wake()
        runner.join(30)
    assert not runner.is_alive()
