"""The main loop stops, starts and restarts routes at a reload."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.runtime import exit_codes, route_pool
from cdf_replicator.runtime.reload import Configuration, ReloadRequests, Selection
from cdf_replicator.runtime.route_pool import Heartbeat, RoutePool
from cdf_replicator.settings import load
from cdf_replicator.state.command_queue import Command
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore


class Runner:
    """A runner whose thread ends when its jobs are cancelled, or when ``finish`` is called."""

    def __init__(self, board, route, requested_start_version):
        self.route, self.requested_start_version, self._board = route, requested_start_version, board
        self.events, self.fault, self.joined = [], "", 0.0
        board.add_route(route.name, route.source.slug, route.sink)

    def start(self):
        self.events.append("start")

    def end(self):
        self.events.append("end")

    def finish(self):
        self.events.append("finished")

    def is_alive(self):
        return "start" in self.events and not {"finished", "cancel"} & set(self.events)

    def wake(self):
        self.events.append("wake")

    def join(self, seconds):
        time.sleep(seconds)
        self.joined += seconds

    def cancel_jobs(self):
        self.events.append("cancel")

    def remove_status(self):
        assert not self.is_alive()
        self._board.remove_route(self.route.name)


@dataclass(frozen=True)
class Factory:
    """Makes runners without threads; ``made`` has the newest one of each route."""

    settings: Any
    metrics: Any
    made: dict = field(default_factory=dict)
    spark: Any = None
    state_store: Any = None
    once: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def runner(self, route, start_version):
        self.made[route.name] = Runner(self.metrics.board, route, start_version)
        return self.made[route.name]


@pytest.fixture
def pool(content):
    """Start a pool of two routes with starting versions, and return it with its parts."""
    board, requests, control = StatusStore(), ReloadRequests(), SimpleNamespace(routes=())
    versions = {"orders": 3, "stock": 4, None: 5}
    configuration = Configuration(load(), Selection(frozenset(), versions), board)
    factory = Factory(configuration.settings, Metrics(board))
    pool = RoutePool(factory, configuration, requests, Heartbeat(), control)
    pool._verifier = SimpleNamespace(requests=None, start=lambda verifier: None, stop=lambda: None)  # it needs Spark
    pool._publish_sinks({})
    for route in configuration.routes.values():
        pool._add(route, versions[route.source.slug]).start()
    pool._publish_routes()
    made = dict(factory.made)
    return SimpleNamespace(pool=pool, board=board, requests=requests, control=control, made=factory.made, former=made)


def reload(pool):
    return pool.pool._reload(Command("reload"))


def rows(pool):
    return {route.route for route in pool.board.snapshot().routes}


def test_route_that_hangs_delays_no_other_route(pool, content):
    content(tables=["orders", "stock", "late"], trigger_seconds=5)
    steps, former = reload(pool), pool.former
    next(steps)
    assert [runner.events for runner in former.values()] == [["start", "end"]] * 2
    assert pool.made["late_cache"].events == ["start"], "it waits for no route"
    former["stock_cache"].finish()
    next(steps)
    assert pool.made["stock_cache"].events == ["start"]
    assert pool.made["stock_cache"] is not former["stock_cache"]
    assert (pool.made["orders_cache"], former["orders_cache"].is_alive()) == (former["orders_cache"], True)
    assert rows(pool) == set(pool.control.routes) == {"orders_cache", "stock_cache", "late_cache"}
    assert list(pool.requests.answers) == []
    former["orders_cache"].finish()
    assert list(steps) == []
    assert pool.made["orders_cache"].events == ["start"]
    ((_, answer),) = pool.requests.answers
    assert answer.state == "done"


def test_route_waits_for_the_former_writer_of_its_target(pool, content):
    content(tables=["stock", "late"], routes={"late_cache": {"key_template": "orders:{id}"}}, trigger_seconds=5)
    steps, former = reload(pool), pool.former
    next(steps)
    former["stock_cache"].finish()
    next(steps)
    assert pool.made["stock_cache"].events == ["start"]
    assert "late_cache" not in pool.made
    assert rows(pool) == set(pool.control.routes) == {"orders_cache", "stock_cache"}
    former["orders_cache"].finish()
    assert list(steps) == []
    assert rows(pool) == set(pool.control.routes) == {"stock_cache", "late_cache"}
    assert pool.made["late_cache"].events == ["start"]


def test_routes_that_exchange_their_targets_wait_for_each_other(pool, content):
    other = {"orders_cache": {"key_template": "stock:{id}"}, "stock_cache": {"key_template": "orders:{id}"}}
    content(routes=other)
    steps, former = reload(pool), pool.former
    next(steps)
    former["stock_cache"].finish()
    next(steps)
    assert pool.made == former, "the row of a route that has ended stays until it starts again"
    assert rows(pool) == set(pool.control.routes) == set(former)
    former["orders_cache"].finish()
    assert list(steps) == []
    assert [runner.events for runner in pool.made.values()] == [["start"]] * 2


def test_route_that_exceeds_the_limit_is_cancelled(pool, content):
    content(shutdown_seconds=0.001)
    pool.pool._configuration.adopt(pool.pool._configuration.read())
    content(shutdown_seconds=0.001, trigger_seconds=5)
    pool.former["stock_cache"].finish()
    for _ in reload(pool):
        pass
    assert pool.former["orders_cache"].events == ["start", "end", "cancel"]
    assert "cancel" not in pool.former["stock_cache"].events
    assert pool.made["orders_cache"].events == ["start"]


def test_starting_versions_apply_to_new_routes_and_are_kept(pool, content):
    """A command of an operator has replaced the starting version of a route, as a replay does."""
    pool.former["orders_cache"].requested_start_version = None
    for runner in pool.former.values():
        runner.finish()
    content(tables=["orders", "stock", "late"], trigger_seconds=5)
    assert list(reload(pool)) == []
    versions = {name: runner.requested_start_version for name, runner in pool.made.items()}
    assert versions == {"orders_cache": None, "stock_cache": 4, "late_cache": 5}


def test_stop_ends_a_reload_that_waits_and_starts_no_further_route(pool, content):
    content(tables=["orders"], trigger_seconds=5)
    steps = reload(pool)
    next(steps)
    steps.close()  # the main loop ends
    assert pool.made == pool.former
    assert list(pool.requests.answers) == []


def test_sink_stays_on_the_status_page_until_its_routes_have_ended(pool, content):
    content(sinks={"spare": {"type": "redis", "url": "redis://spare:6379/0"}}, tables=[], routes={})
    given = {name: {"path": f"/lake/{name}", "keys": "id", "sinks": ["spare"]} for name in ("orders", "stock")}
    document = yaml.safe_load(Path(os.environ["CDF_CONFIG_FILE"]).read_text())
    Path(os.environ["CDF_CONFIG_FILE"]).write_text(yaml.safe_dump({**document, "tables": given}))
    steps, former = reload(pool), pool.former
    next(steps)
    assert rows(pool) == {"orders_cache", "stock_cache", "orders_spare", "stock_spare"}
    former["orders_cache"].finish()
    next(steps)
    pool.board.sink_down("cache", "no answer", "timeout")  # by the route that hangs
    assert {sink.sink for sink in pool.board.snapshot().sinks} == {"cache", "spare"}
    former["stock_cache"].finish()
    assert list(steps) == []
    assert {sink.sink for sink in pool.board.snapshot().sinks} == {"spare"}


def test_sink_that_no_configuration_names_leaves_the_status_page(pool, content):
    spare = {"type": "redis", "url": "redis://spare:6379/0"}
    cache = {"type": "redis", "url": "redis://cache:6379/0"}
    content(sinks={"cache": cache, "spare": spare})
    assert list(reload(pool)) == []
    pool.board.sink_up("cache")
    assert {sink.sink for sink in pool.board.snapshot().sinks} == {"cache", "spare"}
    content()
    assert list(reload(pool)) == []
    assert [(sink.sink, sink.up) for sink in pool.board.snapshot().sinks] == [("cache", True)]
    assert all(runner.events == ["start"] for runner in pool.made.values())


@pytest.mark.parametrize("cause", ["thread", "context", "jvm"])
def test_fault_ends_the_service_while_other_routes_run(pool, monkeypatch, tmp_path, cause):
    factory = replace(pool.pool._factory, state_store=StateStore.open(LocalPath(tmp_path)))
    monkeypatch.setattr(pool.pool, "_factory", factory)
    monkeypatch.setattr(pool.pool, "_start_comparisons", lambda: None)
    monkeypatch.setattr(pool.pool._verifier, "join", lambda seconds: None, raising=False)
    started, ended = threading.Event(), threading.Event()

    def jvm_alive(spark):
        started.set()
        return not ended.is_set()

    monkeypatch.setattr(route_pool.session, "jvm_alive", jvm_alive)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(pool.pool.run()), daemon=True)
    thread.start()
    assert started.wait(30)
    thread.join(0.2)
    assert thread.is_alive()
    if cause == "thread":
        pool.pool._runners["stock_cache"].fault = "the thread has failed"
    else:
        (pool.pool.spark_stopped if cause == "context" else ended).set()
    thread.join(30)
    assert codes == [exit_codes.FAILED]


@pytest.fixture
def drain(pool, monkeypatch, content):
    """Drain a pool whose routes hang, a time after the signal; return the duration and whether jobs were cancelled."""
    monkeypatch.setattr(route_pool, "CANCEL_SECONDS", 0.2)
    cancelled = []
    spark = SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=lambda: cancelled.append(True)))
    monkeypatch.setattr(pool.pool, "_factory", replace(pool.pool._factory, spark=spark))

    def drain(shutdown_seconds, after=0.0):
        content(shutdown_seconds=shutdown_seconds)
        pool.pool._configuration.adopt(pool.pool._configuration.read())
        began = time.monotonic()
        pool.pool.drain(began - after)
        return time.monotonic() - began, cancelled == [True]

    return drain


def test_drain_waits_once_for_all_cancelled_routes(pool, drain):
    assert drain(0.001)[1]
    assert 0 < sum(runner.joined for runner in pool.former.values()) <= 0.2


@pytest.mark.parametrize(("shutdown_seconds", "after"), [(110, 94.5), (20, 9.5), (2, 0.5)])
def test_limit_of_a_drain_counts_from_the_signal(drain, shutdown_seconds, after):
    """The last 15 s, or half of a short limit, are kept for what follows."""
    seconds, cancelled = drain(shutdown_seconds, after)
    assert cancelled
    assert 0.4 < seconds < 2
