"""How a route begins again after a failure: how soon, how often, and when it stops trying."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.runtime.route_factory import RouteFactory
from cdf_replicator.settings import load
from cdf_replicator.state.command_queue import (
    Command,
    CommandStatus,
    accept,
    answer_interrupted,
    enqueue,
    pending,
    read_status,
)
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from connectors import PermanentError, RetryableError

EVOLUTION = RuntimeError("[DELTA_STREAMING_METADATA_EVOLUTION] The schema of your Delta table has changed.")
CHANGED = RuntimeError("[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 4:")


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Return a runner without a thread that records its waits."""
    settings = load(
        {
            "CDF_STATE_PATH": str(tmp_path),
            "CDF_TABLES__ORDERS__PATH": "/lake/orders",
            "CDF_TABLES__ORDERS__SINKS": "audit",
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": "/lake/audit",
        }
    )
    spark, letters = None, None
    board, stop = StatusStore(), threading.Event()
    board.add_sink("audit", "delta_audit", "")
    path = StateStore.open(LocalPath(tmp_path))
    factory = RouteFactory(spark, settings, path, letters, Metrics(board), once=False, stop=stop)
    runner = factory.runner(settings.routes["orders_audit"], None)
    runner.waits = []
    monkeypatch.setattr(runner, "_wait", runner.waits.append)
    monkeypatch.setattr(runner, "_await_operator", lambda decision: decision)
    return runner


def goes_on(runner, error):
    return runner.handle_failure(classify_error(error, route="orders_audit"), error)


def test_tracked_schema_change_restarts_at_once_five_times_a_minute(runner, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("cdf_replicator.runtime.route_runner.time.monotonic", lambda: clock[0])
    assert [goes_on(runner, EVOLUTION) for _ in range(5)] == [True] * 5
    assert runner.waits == []
    assert goes_on(runner, EVOLUTION) is True
    assert len(runner.waits) == 1, "the sixth waits; it never halts"
    clock[0] += 61
    assert goes_on(runner, EVOLUTION) is True
    assert len(runner.waits) == 1


def test_permanent_schema_change_halts_at_the_third_failure(runner):
    assert [goes_on(runner, CHANGED) for _ in range(2)] == [True, True]
    assert len(runner.waits) == 2
    halted = goes_on(runner, CHANGED)
    assert (halted.action, halted.reason) == ("halt", "schema_change")
    assert "resync orders_audit" in halted.remedy


def test_waiting_route_clears_the_cache_of_all_routes_a_few_times(runner, monkeypatch):
    """As a route whose joined table can't be read: it never halts."""
    cleared = []
    monkeypatch.setattr("cdf_replicator.runtime.route_runner.clear_delta_cache", cleared.append)
    unknown = replace(classify_error(PySparkException("[SOME_SPARK_ERROR]"), route="orders_audit"), action="wait")
    assert unknown.reason == UNKNOWN_SPARK_ERROR
    assert [runner.handle_failure(unknown, RuntimeError()) for _ in range(9)] == [True] * 9
    assert len(cleared) == unknown.max_failures == 5


def test_failures_of_another_cause_do_not_count_towards_a_halt(runner):
    away, unlisted = RetryableError("connection refused"), RuntimeError("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions ...")
    assert [goes_on(runner, away) for _ in range(6)] == [True] * 6
    assert [goes_on(runner, unlisted) for _ in range(2)] == [True] * 2
    assert goes_on(runner, away) is True
    assert [goes_on(runner, unlisted) for _ in range(2)] == [True] * 2
    halted = goes_on(runner, unlisted)
    assert (halted.action, halted.reason) == ("halt", "history_lost")
    assert len(runner.waits) == 11, "each failure but the last waits"


def test_thread_that_fails_in_the_handling_of_an_error_reports_a_fault(runner, monkeypatch):
    def fails(*_):
        raise ConnectionError("py4j")

    monkeypatch.setattr("cdf_replicator.runtime.route_runner.is_spark_exit", lambda *_: False)
    monkeypatch.setattr(runner, "_run_stream", fails)
    monkeypatch.setattr(runner, "handle_failure", fails)
    runner.start()
    runner.join(30)
    assert not runner.is_alive()
    assert runner.fault == "the thread of route orders_audit has failed: ConnectionError"


def test_exit_of_a_sink_halts_its_route_alone(runner, monkeypatch):
    decisions = []

    def exits():
        raise SystemExit(3)

    monkeypatch.setattr("cdf_replicator.runtime.route_runner.is_spark_exit", lambda *_: False)
    monkeypatch.setattr(runner, "_run_stream", exits)
    monkeypatch.setattr(runner, "handle_failure", lambda decision, _: decisions.append(decision))
    runner.start()
    runner.join(30)
    assert [(decision.action, decision.message) for decision in decisions] == [("halt", "SystemExit: 3")]
    assert runner.fault == ""


@pytest.fixture
def commanded(runner, monkeypatch):
    """Return a function that executes a command with the given effect; it returns whether the stream changes."""
    monkeypatch.setattr("cdf_replicator.runtime.command_handler.is_spark_exit", lambda *_: False)
    handler = runner._handler

    def run(command, execute):
        record = handler.executor.record_start_version
        handler.executor = SimpleNamespace(
            check=lambda _: 1, execute=lambda *_: execute(), record_start_version=record, abandon_replay=None
        )
        return handler.handle(command, None)

    run.requests = handler.context.state_store.requests
    return run


def fails():
    raise PermanentError("the index is closed.", "Open it.")


@pytest.mark.parametrize("execute", [lambda: "2 delivered", fails])
@pytest.mark.parametrize("kind", ["redrive", "discard", "repair"])
def test_command_whose_answer_cannot_be_written_stays_in_the_queue(commanded, monkeypatch, kind, execute):
    command = Command(kind, "orders_audit", identities=("1",))
    enqueue(commanded.requests, command)
    accept(commanded.requests, command)

    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    calls = []

    def counted():
        calls.append(command)
        return execute()

    with monkeypatch.context() as context:
        context.setattr(LocalPath, "replace_text", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                commanded(command, counted)
    assert [each.id for each in pending(commanded.requests)] == [command.id]
    answer_interrupted(commanded.requests)  # the next start
    assert read_status(commanded.requests, command.id) == CommandStatus("running", "accepted")
    assert commanded(command, counted) is False
    assert pending(commanded.requests) == []
    assert read_status(commanded.requests, command.id).state == ("failed" if execute is fails else "done")
    assert len(calls) == 1, "an executed command is only answered"


@pytest.mark.parametrize(("last", "answered"), [(None, "running"), (3, "done")])
def test_executed_replay_leaves_the_queue(commanded, last, answered):
    command = Command("replay", "orders_audit", starting_version=2, ending_version=last)
    enqueue(commanded.requests, command)
    accept(commanded.requests, command)
    assert commanded(command, lambda: "") is True
    assert pending(commanded.requests) == []
    assert read_status(commanded.requests, command.id).state == answered


def test_exit_of_a_sink_during_a_command_is_its_answer(commanded):
    def exits():
        raise SystemExit(3)

    command = Command("redrive", "orders_audit")
    enqueue(commanded.requests, command)
    assert commanded(command, exits) is False
    assert pending(commanded.requests) == []
    assert read_status(commanded.requests, command.id).message.startswith("SystemExit: 3")
