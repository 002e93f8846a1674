"""Tests of a real Prometheus with the real service: the metrics match the deliveries, and the alert of a stopped sink fires and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.service import Service, environment
from tests.support.waiting import until
from tests.system.prometheus import Prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Redis
    from tests.support.source import Source

WITHIN = 90


@pytest.fixture
def orders(tmp_path: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(tmp_path, "orders")


@pytest.fixture
def service(tmp_path: Path, orders: Source, redis_server: Redis) -> Iterator[Service]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    given = environment(
        tmp_path,
        TRIGGER_SECONDS=0.2,
        TABLES__ORDERS__PATH=orders.path,
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit,cache",
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=tmp_path / "audit",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
    )
    with Service(given).started() as started:
        yield started


@pytest.fixture
def prometheus(installed: Callable[..., None], service: Service) -> Iterator[Prometheus]:
    installed("prometheus")
    with Prometheus([f"127.0.0.1:{service.port}"]).started() as server:
        yield server


def test_alert_fires_for_a_stopped_sink_and_not_for_other_routes(
    service: Service, prometheus: Prometheus, orders: Source, redis_server: Redis
):
    for route in ("orders_audit", "orders_cache"):
        service.wait_delivered(route, orders.version)
    version = orders.change("UPDATE {} SET amount = 1 WHERE id < 5")
    delivered = 'cdf_delivered_version{route="orders_cache"}'
    until(lambda: prometheus.value(delivered) == version, WITHIN, service.log.read_text)
    assert prometheus.value("cdf_build_info") == 1
    assert prometheus.value('sum(cdf_changes_applied_total{sink="cache",change_type="update_postimage"})') == 5
    assert "CDFSinkDown" not in prometheus.firing()

    redis_server.stop()
    try:
        orders.change("UPDATE {} SET amount = 2 WHERE id < 5")
        until(lambda: "CDFSinkDown" in prometheus.firing(), WITHIN, service.log.read_text)
        assert prometheus.firing()["CDFSinkDown"]["sink"] == "cache"
        assert prometheus.value('cdf_route_state{route="orders_cache",state="retrying"}') == 1
        assert prometheus.value('cdf_route_state{route="orders_audit",state="running"}') == 1
    finally:
        redis_server.restart()
    until(lambda: "CDFSinkDown" not in prometheus.firing(), WITHIN, service.log.read_text)

    service.kill()
    until(lambda: "CDFReplicatorDown" in prometheus.firing(), WITHIN, str)
