"""The text of ``/metrics`` after a fixed set of reports, byte by byte: names, types, help, labels, order and values."""

from __future__ import annotations

import platform
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.exposition import generate_latest

from cdf_replicator import __version__
from cdf_replicator.delivery import DeliveryResult
from cdf_replicator.errors.exceptions import ErrorDecision
from cdf_replicator.monitoring import reporter
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.monitoring.status import VerificationStatus
from cdf_replicator.spark.memory import JvmMemory
from connectors.delta.audit import DeltaAuditSink
from connectors.elasticsearch import ElasticsearchSink
from connectors.redis import RedisSink
from tests.unit.boards import START

SCRAPES = Path(__file__).with_name("scrapes")
AWAY = ErrorDecision("restart", "unreachable", "search:9200: Connection refused", "Nothing: it is tried again.")


@pytest.fixture
def clock(clock, monkeypatch):
    monkeypatch.setattr(
        reporter, "datetime", SimpleNamespace(now=lambda _: clock(), fromtimestamp=datetime.fromtimestamp)
    )
    return clock


def report(board, metrics, route, sink, kind, table="orders"):
    source = SimpleNamespace(slug=table)
    board.add_sink(sink, "type", f"{sink}:1")
    return RouteReporter(SimpleNamespace(name=route, sink=sink, source=source), metrics, kind)


@pytest.fixture
def routes(board, metrics):
    return (
        report(board, metrics, "items_audit", "audit", DeltaAuditSink, "items"),
        report(board, metrics, "orders_cache", "cache", RedisSink),
        report(board, metrics, "orders_search", "search", ElasticsearchSink),
    )


def deliver(audit, cache, search, board):
    """Report whatever a route can report, to a known value and to an unknown value of each label."""
    board.runtime(spark="4.2.0", delta="4.4.0", java="17")
    outcome = DeliveryResult(
        received=Counter(snapshot=7, insert=5, update_postimage=403, update_preimage=403, delete=1),
        applied=Counter(insert=4, delete=1),
        stale=2,
        noop=1,
        rejected=Counter(too_large=1, **{f"code_{number}": number for number in range(40)}),
        retries=Counter(timeout=3, http_599=2),
        request_seconds=[0.004, 0.2, 42.0],
        sent_bytes=1234,
    )
    for ended in ("delivered", "failed", "cancelled", "delivered"):
        search.requests(outcome)
        search.batch(7, outcome, versions=(3, 9), seconds={"prepare": 0.25, "write": 1.5, "record": 0.004}, ended=ended)
    audit.batch(1, DeliveryResult(received=Counter(insert=2)), versions=None, seconds={}, ended="failed")
    search.versions(12, 9, START.timestamp() - 61.5)
    cache.versions(12, 12, None)
    search.planning(0.125)
    search.bootstrap(1.0)
    audit.bootstrap(0.5)
    board.jvm_memory(JvmMemory(heap_used=5_000_000, heap_max=8_000_000, collections=3, collection_seconds=0.25))
    audit.versions(3, -1, START.timestamp() + 60)
    search.headroom(3600.5, 12)
    search.dead_letters(4)
    for route in (audit, cache, search):
        route.state("running")
        route.rates(1250.25, 7.5)
        route.sink_up()
    audit.state("paused", "by an operator")
    search.sink_down(AWAY)
    search.failed(AWAY, detail=OSError())
    for reason in ("unreachable", "unreachable", "request", "gremlins"):
        search.restarted(reason)
    search.state("retrying", AWAY.message)
    search.replay(3, 9, 0.25)
    cache.replay(3, 9, 0.5)
    cache.replay(3, 9, 1)
    audit.replay(1, 3, 0.75)
    audit.replay_failed()
    last = VerificationStatus(9, START, 1.5, 3, {"missing": 2, "extra": 0, "different": 1, "foreign": 0})
    board.update("orders_search", verification=last, verify_deadline=START)


def of_the_service(scraped: bytes) -> str:
    """Return the lines of the service, without those of the Python process."""
    lines = (line for line in scraped.decode().splitlines() if " cdf_" in line or line.startswith("cdf_"))
    text = "\n".join(lines).replace(f'version="{__version__}"', 'version="V"', 1)
    return text.replace(platform.python_version(), "PYTHON") + "\n"


def test_the_scrape_of_a_service_without_routes(metrics):
    assert of_the_service(generate_latest(metrics.registry)) == (SCRAPES / "empty.txt").read_text()


def test_the_scrape_of_routes_that_have_reported(board, metrics, routes):
    deliver(*routes, board)
    assert of_the_service(generate_latest(metrics.registry)) == (SCRAPES / "delivered.txt").read_text()
