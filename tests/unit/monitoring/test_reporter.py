"""A route logs each micro-batch with its numbers, and a repeated error once a minute."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from cdf_replicator.delivery import DeliveryResult, RejectedRow
from cdf_replicator.errors.exceptions import ErrorDecision
from cdf_replicator.monitoring import reporter
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.monitoring.status_store import StatusStore
from connectors.redis import RedisSink

WHO = {"route": "orders_cache", "table": "orders", "sink": "cache"}
AWAY = ErrorDecision("restart", "unreachable", "cache:6379/0: Connection refused", "Nothing: it is tried again.")


@pytest.fixture
def board():
    return StatusStore()


@pytest.fixture
def report(board):
    route = SimpleNamespace(name="orders_cache", sink="cache", source=SimpleNamespace(slug="orders"))
    board.add_sink("cache", "redis", "cache:6379/0")
    return RouteReporter(route, Metrics(board), RedisSink)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(reporter.time, "monotonic", lambda: clock.now)
    return clock


def test_a_delivered_batch_is_one_line_with_all_its_numbers(report):
    outcome = DeliveryResult(
        received=Counter(insert=5, update_preimage=2, update_postimage=3, delete=1),
        applied=Counter(insert=4, delete=1),
        stale=2,
        noop=1,
        rejected=Counter(too_large=1),
    )
    with capture_logs() as lines:
        seconds = {"prepare": 0.25, "write": 1.5, "record": 0.0004}
        report.batch(7, outcome, versions=(12, 14), seconds=seconds, ended="delivered")
        report.batch(8, DeliveryResult(), versions=None, seconds={}, ended="failed")
    delivered = {
        "event": "batch delivered",
        "log_level": "info",
        **WHO,
        "batch_id": 7,
        "versions": "12-14",
        "received": 11,
        "applied": 5,
        "superseded": 2,
        "stale": 2,
        "noop": 1,
        "rejected": 1,
        "seconds": 1.75,
    }
    nothing = dict.fromkeys(("received", "applied", "superseded", "stale", "noop", "rejected", "seconds"), 0)
    assert lines == [delivered, {**delivered, **nothing, "event": "batch failed", "batch_id": 8, "versions": None}]


def test_batch_with_rejected_rows_is_a_warning_with_keys_and_command(report):
    outcome = DeliveryResult(received=Counter(insert=5))
    for key in ("7", "7", None, "8", "9"):
        outcome.reject(RejectedRow(key, 1, "too_large", f"{key} is too large"))
    with capture_logs() as lines:
        report.batch(7, outcome, versions=(12, 14), seconds={}, ended="failed")
        report.batch(7, outcome, versions=(12, 14), seconds={}, ended="delivered")
    assert [line for line in lines if line["log_level"] == "warning"] == [
        {
            "event": "rows rejected and kept as dead letters",
            "log_level": "warning",
            **WHO,
            "batch_id": 7,
            "rejected": {"too_large": 5},
            "keys": ["7", None, "8"],
            "reason": "7 is too large",
            "next_step": "List them: cdf-replicator dead-letters list orders_cache",
        }
    ]


def test_repeated_error_is_logged_once_a_minute_and_always_counted(report, board, clock):
    with capture_logs() as lines:
        for seconds in (0, 1, 59, 60, 61):
            clock.now = 1000.0 + seconds
            report.failed(AWAY, detail=OSError())
            report.state("retrying", AWAY.reason)
        (route,) = board.snapshot().routes
        report.failed(replace(AWAY, reason="timeout"), detail=OSError())
    fields = {"log_level": "error", **WHO, "next_step": AWAY.remedy, "exc_info": None}
    away = {"event": "route failed", **fields, "reason": "unreachable", "what": AWAY.message}
    state = {"event": "route state", "log_level": "info", **WHO, "state": "retrying", "reason": "unreachable"}
    assert lines == [away, state, away, state, {**away, "reason": "timeout"}]
    assert route.last_error.count == 5


def test_error_with_another_request_id_is_the_same_error(report, clock):
    ids = ("4442587FB7D0A2F9, Extended: vlR7PnpV2Ce81l0P+Rw=", "9C1D3B0A77E2F410, Extended: QjryTjKlc5aLWGVH/Z8=")
    with capture_logs() as lines:
        for each in ids:
            clock.now += 1
            decision = replace(AWAY, message=f"Slow down. (Request ID: {each})")
            report.failed(decision, detail=OSError())
            report.state("retrying", decision.message)
        report.failed(replace(AWAY, message="Access denied."), detail=OSError())
    assert [line["event"] for line in lines] == ["route failed", "route state", "route failed"]


def test_error_after_a_successful_run_is_logged(report, clock):
    with capture_logs() as lines:
        report.failed(AWAY, detail=OSError())
        report.state("running")
        clock.now += 1
        report.failed(AWAY, detail=OSError())
    assert [line["event"] for line in lines] == ["route failed", "route state", "route failed"]


def test_only_a_bug_is_logged_with_traceback(report):
    error = ValueError("no way")
    with capture_logs() as lines:
        report.failed(ErrorDecision("halt", "bug", "ValueError: no way", "Report it."), detail=error)
    assert lines[0]["exc_info"] is error
