"""The lag is reported between two runs of a route, and an unavailable source ends no thread."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdf_replicator.monitoring import lag
from cdf_replicator.monitoring.lag import REOPEN_SECONDS, LagMonitor
from cdf_replicator.monitoring.progress import StreamPosition
from cdf_replicator.state.route_state import RouteState

STATE = RouteState("orders_search", {}, "table-1", phase="streaming", start_version=4)


@pytest.fixture
def world(monkeypatch, tmp_path):
    """A monitor of a source whose ``newest`` version is an exception while the source is unavailable."""
    world = SimpleNamespace(now=1000.0, newest=9, opened=0, versions=[], state=STATE)

    def latest_version():
        if isinstance(world.newest, Exception):
            raise world.newest
        return world.newest

    def opened(*_):
        world.opened += 1
        latest_version()
        return world.source

    world.source = SimpleNamespace(log=SimpleNamespace(latest_version=latest_version, committed_at=lambda _: 0.0))
    monkeypatch.setattr(lag, "SourceTable", opened)
    monkeypatch.setattr(lag.time, "monotonic", lambda: world.now)
    store = SimpleNamespace(load=lambda _: world.state, checkpoint=lambda *_: tmp_path)
    report = SimpleNamespace(versions=lambda *position: world.versions.append(position[:2]))
    route = SimpleNamespace(name="orders_search", source=None)
    world.monitor = LagMonitor(None, route, store, report, SimpleNamespace(update=lambda *_: None), 600)
    world.position = StreamPosition(world.source, STATE, tmp_path, None)
    return world


def test_route_that_can_not_start_reports_the_lag_of_its_checkpoint(world):
    """After a restart of the service while the sink is down, no run gets as far as its query."""
    world.monitor.poll()
    world.newest = 12
    world.monitor.poll()
    assert (world.opened, world.versions) == (1, [(9, 3), (12, 3)])


def test_after_a_run_its_tracker_is_polled_until_the_source_is_unavailable(world):
    world.monitor.tracker(world.position)
    world.monitor.poll()
    world.newest = RuntimeError("gone")
    world.monitor.poll()
    world.newest = 12
    world.monitor.poll()
    assert (world.opened, world.versions) == (0, [(9, 3)])
    world.now += REOPEN_SECONDS
    world.monitor.poll()
    assert (world.opened, world.versions) == (1, [(9, 3), (12, 3)]), "a halted route has no further run"


def test_a_reopened_source_that_is_unavailable_is_read_again_after_a_minute(world):
    world.newest = RuntimeError("gone")
    world.monitor.reopen()
    world.monitor.poll()
    world.newest = 9
    world.monitor.poll()
    assert (world.opened, world.versions) == (1, [])
    world.now += REOPEN_SECONDS
    world.monitor.poll()
    assert (world.opened, world.versions) == (2, [(9, 3)])


def test_before_the_first_start_there_is_no_lag(world):
    world.state = None
    for _ in range(5):
        world.monitor.poll()
    assert (world.opened, world.versions) == (1, []), "the source is opened once a minute"
    world.state = STATE
    world.now += REOPEN_SECONDS
    world.monitor.poll()
    assert (world.opened, world.versions) == (2, [(9, 3)])


def test_bootstrap_that_failed_leaves_no_tracker_from_before_it(world, monkeypatch):
    monkeypatch.setattr(lag.jobs, "TaggedJobs", lambda *_: None)
    world.monitor.poll()
    world.state = replace(STATE, generation=1, start_version=8)
    with world.monitor.load_polled():
        pass
    world.monitor.poll()
    assert world.versions == [(9, 3), (9, 7)]


def test_tracker_inherits_position_of_former_tracker_of_its_generation(world):
    world.monitor.tracker(world.position).delivered_version = 8
    assert world.monitor.tracker(world.position).delivered_version == 8
