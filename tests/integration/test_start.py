"""Tests of where a route starts, of kills during a start, and of histories that damage starts.

More of it: ``test_route`` (an unreachable sink, a pin that VACUUM removed, one batch and a cleaned log),
``test_replay`` (starting versions, replays), ``test_halts`` (a recreated table), ``test_audit`` (twins, redelivery),
``test_source`` (ranges and timestamps).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import start_position
from cdf_replicator.state.command_queue import Command
from tests.support.waiting import until

ROUTE = "orders_files"


def test_bootstrap_killed_at_any_step_ends_with_the_rows_of_the_table(world):
    """One table, a fresh state path and target for each step; between kill and restart a row goes and one comes."""
    world.create(rows=[f"({number}, 'a')" for number in range(6)])

    def pinned():
        route = world.settings.routes[ROUTE]
        world.state_path.save(
            start_position.resolve(
                route, world.source(), world.settings.sink(route.sink), world.state_path, world.letters
            )
        )

    def half_loaded():
        world.trouble("2")  # of the three rows of a file
        decision = world.run()
        assert (decision.action, decision.reason) == ("halt", "bug")
        assert "the plug was pulled" in decision.message
        assert world.state().phase == "bootstrapping"
        assert world.delivered()
        assert world.delivered() != world.expected()

    def written_but_not_known_to_be():
        assert world.run() is None
        begin_again(world, loaded=False)

    def loaded_but_not_streaming():
        assert world.run() is None
        begin_again(world, loaded=True)

    steps = (pinned, half_loaded, written_but_not_known_to_be, loaded_but_not_streaming)
    for number, step in enumerate(steps):
        world.files = world.folder / f"files{number}"
        world.files.mkdir()
        world.environ["CDF_SINKS__FILES__PATH"] = str(world.files)
        world.environ["CDF_STATE_PATH"] = str(world.folder / f"state{number}")
        at = world.version()
        step()
        world.trouble(None)
        world.change(f"DELETE FROM {{t}} WHERE id = {number}")
        world.insert(f"({10 + number}, 'later')")
        assert world.run() is None
        assert world.delivered() == world.expected()
        assert (world.state().epoch, world.state().start_version) == (1, at + 1), "pinned once"


def begin_again(world, *, loaded):
    """As if the route had been killed before it wrote down that the bootstrap is done."""
    state = world.state()
    world.state_path.save(
        replace(state, phase="bootstrapping", start_version=None, snapshot_loaded=loaded, query_started=False)
    )
    shutil.rmtree(world.state_path.checkpoint(ROUTE, state.generation))


def test_starting_version_during_a_bootstrap_has_no_effect(world):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    world.trouble("1")
    assert world.run().reason == "bug"
    world.trouble(None)
    assert world.run(start_version=2) is None
    assert world.delivered() == world.expected()
    assert (world.state().generation, world.state().start_version) == (0, 4)
    assert world.run(start_version=2) is None
    assert (world.state().generation, world.state().start_version) == (0, 4), "the same value after a restart resumes"


def test_start_before_the_oldest_version_is_refused_with_the_range(world):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    world.forget_log_before(world.version())
    world.insert("(3, 'c')")
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "1"
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "start_out_of_range")
    assert "versions 2 to 3 are available" in decision.message
    assert world.state() is None
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "2"
    assert world.run() is None
    assert world.delivered().keys() == {"2", "3"}


def test_a_starting_timestamp_means_the_same_in_every_time_zone(world, monkeypatch):
    """Text without an offset is UTC in every time zone of the session, of this process and of the JVM."""
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    noon = 1_714_564_800  # 2024-05-01T12:00:00Z
    for version in range(3):
        at = noon + 60 * version
        os.utime(Path(world.table, "_delta_log", f"{version:020d}.json"), (at, at))
    deltas = world.spark._jvm.org.apache.spark.sql.delta.DeltaLog
    zones = world.spark._jvm.java.util.TimeZone
    usual = zones.getDefault()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    zones.setDefault(zones.getTimeZone("America/New_York"))
    world.spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    deltas.clearCache()
    try:
        found = {
            text: world.source().version_at(text)
            for text in (
                "2024-05-01",
                "2024-05-01 12:00",
                "2024-05-01 12:00:00.000001",
                "2024-05-01T14:01:00+02:00",
                "2024-05-01T08:01:30-0400",
            )
        }
        assert list(found.values()) == [0, 0, 1, 1, 2]
        assert world.source().version_until("2024-05-01T12:01:59Z") == 1
        with pytest.raises(RouteHaltError, match="later than its newest commit"):
            world.source().version_at("2024-05-01 12:02:00.5")
    finally:
        world.spark.conf.set("spark.sql.session.timeZone", "UTC")
        zones.setDefault(usual)
        monkeypatch.undo()
        time.tzset()


def test_starting_timestamp_uses_in_commit_timestamps_if_present(world):
    world.create(rows=["(1, 'a')"], delta__enableInCommitTimestamps="true")
    world.insert("(2, 'b')")
    commits = [Path(world.table, "_delta_log", f"{version:020d}.json") for version in range(3)]
    stated = [json.loads(file.read_text().splitlines()[0])["commitInfo"]["inCommitTimestamp"] for file in commits]
    for file in commits:
        os.utime(file, (0, 0))
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    at = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) + f".{ms % 1000:03d}Z" for ms in stated]
    assert [world.source().version_at(text) for text in at] == [0, 1, 2]
    assert [world.source().version_until(text) for text in at] == [0, 1, 2]
    world.environ["CDF_TABLES__ORDERS__STARTING_TIMESTAMP"] = at[2]
    assert world.run() is None
    assert world.state().start_version == 2
    assert world.delivered().keys() == {"2"}


def test_resync_of_a_recreated_table_beats_versions_of_the_old_table(world):
    world.create(rows=["(1, 'old')", "(2, 'old')"])
    for _ in range(3):
        world.change("UPDATE {t} SET name = concat(name, '!')")
    assert world.run() is None
    shutil.rmtree(world.table)
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    world.create(rows=["(1, 'new')"])
    assert world.run().reason == "table_replaced"
    assert world.run(command=Command("resync", ROUTE)) is None
    world.change("UPDATE {t} SET name = 'newer'")
    assert world.version() == 2
    assert world.run() is None
    assert world.delivered() == world.expected() == {"1": {"id": 1, "name": "newer"}}


def test_upsert_sink_refuses_bounded_replay_and_full_replay_restores_no_key(world):
    """Once its tombstone has expired, nothing but the later delete keeps a replayed row out."""
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    world.change("DELETE FROM {t} WHERE id = 1")
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "0"
    assert world.run() is None
    for file in (world.files / "orders").glob("*.json"):
        if json.loads(file.read_text())["row"] is None:
            file.unlink()
    command = Command("replay", ROUTE, 0, 1)
    assert world.run(command=command) is None
    assert world.answer(command).state == "failed"
    assert "bring back keys that were deleted later" in world.answer(command).message
    assert world.delivered() == world.expected()
    assert world.run(command=Command("replay", ROUTE, 0)) is None
    assert world.delivered() == world.expected()


def test_batches_after_a_replay_are_not_dropped_by_txn_version(world):
    """A generation's batch ids begin at 0 again; Delta drops a write whose txnVersion is not above the last one."""
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "audit",
        "CDF_SINKS__AUDIT__TYPE": "delta_audit",
        "CDF_SINKS__AUDIT__PATH": str(world.folder / "audit"),
    }
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.create(rows=["(1, 'a')"])
    for number in (2, 3):
        assert world.run("orders_audit") is None
        world.insert(f"({number}, 'a')")
    assert world.run("orders_audit") is None
    assert world.run("orders_audit", command=Command("replay", "orders_audit", 1)) is None
    world.insert("(4, 'a')")
    assert world.run("orders_audit") is None
    assert world.run("orders_audit", command=Command("resync", "orders_audit")) is None
    world.insert("(5, 'a')")
    assert world.run("orders_audit") is None
    kept = world.audited("id", "change_type", "generation")
    assert [row for row in kept if row[1] == "insert"] == [
        (1, "insert", 1),
        (2, "insert", 0),
        (3, "insert", 0),
        (4, "insert", 1),
        (5, "insert", 2),
    ]
    assert [row[0] for row in kept if row[1:] == ("snapshot", 2)] == [1, 2, 3, 4]


def test_running_bootstrap_reports_its_lag(world, live, monkeypatch):
    monkeypatch.setattr("cdf_replicator.monitoring.lag.BACKGROUND_SECONDS", 0.2)
    world.create(rows=["(1, 'a')"])
    world.trouble("hang")
    live(ROUTE)

    def behind(source):
        route = world.board.snapshot().routes[0]
        metrics = {name: world.sample(name) for name in ("cdf_source_version", "cdf_lag_versions")}
        expected = {"cdf_source_version": source, "cdf_lag_versions": source + 1}
        return route.state == "bootstrapping" and metrics == expected

    until(lambda: behind(1))
    assert math.isnan(world.sample("cdf_lag_seconds")), "the newest snapshot is loaded"
    world.insert("(2, 'b')")
    until(lambda: behind(2))
    assert 0 < world.sample("cdf_lag_seconds") < math.inf
    assert world.sample("cdf_headroom_seconds") < math.inf
    world.trouble(None)
    until(lambda: world.delivered() == world.expected())
    until(lambda: (world.sample("cdf_lag_versions"), world.sample("cdf_lag_seconds")) == (0, 0))
