"""A query passes micro-batches down, yields progress up, and stops without a commit of an unwritten micro-batch."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from cdf_replicator.errors.exceptions import QueryStalledError
from cdf_replicator.monitoring.lag import Progress
from cdf_replicator.monitoring.progress import BatchCount, StreamPosition
from cdf_replicator.pipeline import streaming_query
from cdf_replicator.pipeline.context import Interrupt, RouteContext
from cdf_replicator.pipeline.streaming_query import ForeachBatch, StopRequestedError, StreamingQueryRunner
from cdf_replicator.settings.models import Delivery
from cdf_replicator.state.route_state import RouteState

STATE = RouteState("orders_search", {}, "table-1", phase="streaming", start_version=4)
CHANGES = object()


@pytest.fixture
def stop():
    return threading.Event()


@pytest.fixture
def closed(monkeypatch):
    """Return the list of closed connections of Spark's calls."""
    closed = []
    monkeypatch.setattr(streaming_query.callback, "callback_closer", lambda _: lambda: closed.append("closed"))
    return closed


@pytest.fixture
def delivered():
    return []


@pytest.fixture
def on_batch(stop, closed, delivered):
    return ForeachBatch(None, lambda frame, number: delivered.append((frame, number)), Interrupt(stop), BatchCount())


def test_a_micro_batch_after_a_stop_raises_before_it_is_delivered(on_batch, stop, delivered):
    """Spark commits a micro-batch whose call returns."""
    on_batch("rows", 0)
    stop.set()
    with pytest.raises(StopRequestedError):
        on_batch("rows", 1)
    assert delivered == [("rows", 0)]
    assert not on_batch.running.is_set()


def test_the_error_of_a_micro_batch_is_raised_to_spark_and_kept(on_batch, monkeypatch, closed):
    error = RuntimeError("sink")

    def fails(*_):
        raise error

    monkeypatch.setattr(on_batch, "deliver", fails)
    with pytest.raises(RuntimeError):
        on_batch("rows", 0)
    assert on_batch.error is error
    on_batch.close()
    assert closed == ["closed"]


class Query:
    """A query that ends after a number of polls of its status, with an error or without."""

    def __init__(self, polls, error=None):
        self.polls, self.error, self.stopped = polls, error, False
        self.status = {"isTriggerActive": False}

    @property
    def isActive(self):  # noqa: N802 - Spark's name
        self.polls -= 1
        return self.polls >= 0 and not self.stopped

    def exception(self):
        return self.error

    def stop(self):
        self.stopped = True


class Tracker:
    def __init__(self, events):
        self.source_version, self.delivered_version, self.has_committed, self.events = 9, 3, False, events
        self.has_read_all = False

    def poll(self, *, idle=None):
        self.delivered_version += 1
        self.events.append("poll")

    def release(self):
        self.events.append("release")


@pytest.fixture
def run(stop, closed, monkeypatch):
    """Return a function that follows a query, and the events of its run."""
    events, moved = [], []
    monkeypatch.setattr(streaming_query, "movement", lambda *_: moved[0] if moved else None)
    monkeypatch.setattr(Interrupt, "wait", lambda self, seconds: events.append("wait"))
    report = SimpleNamespace(state=lambda *state: events.append(state[0]))
    delivery, routes = Delivery(stall_seconds=1), {"orders_search": None}
    settings = SimpleNamespace(delivery=delivery, trigger_seconds=0.0, shutdown_seconds=1.0, routes=routes)
    context = RouteContext(None, SimpleNamespace(name="orders_search"), None, report, settings)
    lag = SimpleNamespace(batches=BatchCount(), tracker=lambda *_: Tracker(events))
    maintenance = SimpleNamespace(start_if_due=lambda: events.append("maintenance"))
    source = SimpleNamespace(location="/lake/orders", log=SimpleNamespace(is_local=True, device=1))
    position = StreamPosition(source, STATE, "checkpoint", None)

    def follow(query):
        runner = StreamingQueryRunner(context, Interrupt(stop), lag, None)
        monkeypatch.setattr(runner, "_started", lambda *_: query)
        return runner.follow(position, CHANGES, lambda *_: None, maintenance)

    return SimpleNamespace(follow=follow, events=events, moved=moved)


def test_each_poll_yields_the_progress_of_the_run(run):
    values = list(run.follow(Query(2)))
    assert values == [Progress(4, 9, version, has_committed=False) for version in (4, 5, 6)]
    assert run.events == [*["poll", "maintenance", "wait"] * 2, "poll", "release"]


def test_the_error_of_a_query_is_raised_after_its_last_progress(run):
    values = run.follow(Query(0, RuntimeError("ended")))
    assert next(values).delivered_version == 4
    with pytest.raises(RuntimeError, match="ended"):
        next(values)
    assert run.events[-1] == "release"


def test_a_stop_ends_the_query_without_an_error(run, stop):
    query = Query(9, RuntimeError("of the micro-batch that was not written"))
    values = run.follow(query)
    next(values)
    stop.set()
    assert list(values) == []
    assert query.stopped


def test_a_caller_that_leaves_stops_the_query(run):
    query = Query(9)
    values = run.follow(query)
    next(values)
    values.close()
    assert query.stopped
    assert run.events[-1] == "release"


def test_a_query_that_does_not_move_is_restarted(run, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("cdf_replicator.monitoring.stalls.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(streaming_query.StallDetector, "is_stalled", lambda *_, **__: True)
    values = run.follow(Query(9))
    next(values)
    with pytest.raises(QueryStalledError, match="version 4 is delivered, the source is at 9"):
        next(values)
    assert run.events[-2:] == ["stalled", "release"]


def test_an_interrupt_is_the_stop_of_the_service_or_a_waiting_command(stop):
    interrupt = Interrupt(stop)
    assert not interrupt.requested
    interrupt._commands.append("replay")
    assert interrupt.requested
    assert not interrupt.stopping
    interrupt._commands.clear()
    stop.set()
    assert interrupt.requested
    assert interrupt.stopping


def test_an_interrupt_stops_a_query_that_does_not_end_once(run, stop, monkeypatch):
    """Spark waits ``spark.sql.streaming.stopTimeout`` for the end of a query, then raises."""
    query, stops = Query(99), []

    def does_not_end():
        stops.append(query)
        raise PySparkException("TimeoutException")

    monkeypatch.setattr(query, "stop", does_not_end)
    values = run.follow(query)
    next(values)
    stop.set()
    assert list(values) == []
    assert len(stops) == 1
