"""The live service: commits become visible, it can be watched, asked, stopped and started again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from cdf_replicator.metrics import catalogue
from deploy.servers import Redis
from tests.support.reading import documents, entries, folded
from tests.support.service import Service, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.servers import Elasticsearch
    from tests.process.conftest import Source

ORDERS = ("live_audit", "live_search", "live_cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def orders(folder: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(folder, "live")


@pytest.fixture(scope="module")
def stock(folder: Path, new_source: Callable[..., Source]) -> Source:
    """Followed into a Redis of its own, which the tests take away."""
    return new_source(folder, "stock")


@pytest.fixture(scope="module")
def fragile() -> Iterator[Redis]:
    with Redis.start() as server:
        yield server


@pytest.fixture(scope="module")
def service(
    folder: Path, orders: Source, stock: Source, fragile: Redis, sinks: Callable[[Path], dict[str, object]]
) -> Iterator[Service]:
    """Started while one of its tables, ``late``, is not there yet."""
    given = environment(
        folder,
        **sinks(folder),
        TRIGGER_SECONDS=0.2,
        TABLES__LIVE__PATH=orders.path,
        TABLES__LIVE__KEYS="id",
        TABLES__LIVE__SINKS="audit,search,cache",
        TABLES__LIVE__INCLUDE_PREIMAGES=True,
        TABLES__STOCK__PATH=stock.path,
        TABLES__STOCK__KEYS="id",
        TABLES__STOCK__SINKS="fragile",
        TABLES__LATE__PATH=folder / "late",
        TABLES__LATE__KEYS="id",
        TABLES__LATE__SINKS="cache",
        SINKS__FRAGILE__TYPE="redis",
        SINKS__FRAGILE__URL=fragile.url,
    )
    with Service(given).started() as started:
        for route in ORDERS:
            started.wait_delivered(route, orders.version)
        yield started


def delivered(service: Service, version: int) -> None:
    for route in ORDERS:
        service.wait_delivered(route, version)


def received(service: Service) -> dict[str, dict[str, float]]:
    """Changes received so far, by route of the orders and change type."""
    return {
        route: {
            kind: service.metric("cdf_changes_received_total", route=route, change_type=kind)
            for kind in ("snapshot", "insert", "update_preimage", "update_postimage", "delete")
        }
        for route in ORDERS
    }


def equal_everywhere(orders: Source, folder: Path, elasticsearch: Elasticsearch, redis_server: Redis) -> None:
    expected = orders.rows
    assert documents(elasticsearch.url, "live") == expected
    assert entries(redis_server.url, "live:") == expected
    assert folded(orders.spark, folder / "audit" / "live", ["id"]) == expected


def test_it_waits_for_a_table_that_is_not_there_and_is_ready_once_it_is(
    service: Service, folder: Path, new_source: Callable[..., Source], redis_server: Redis
):
    service.wait_state("late_cache", "retrying")
    assert service.get("/livez").status_code == 200
    answer = service.get("/readyz")
    assert answer.status_code == 503
    assert [route["route"] for route in answer.json()["waiting"]] == ["late_cache"]
    error = service.route("late_cache")["last_error"]
    assert str(folder / "late") in error["what"]
    assert "Create it, or correct its PATH" in error["next_step"]

    late = new_source(folder, "late")

    service.wait_delivered("late_cache", late.version)
    until(lambda: service.get("/readyz").status_code == 200, 30, str)
    assert entries(redis_server.url, "late:") == late.rows


def test_commits_become_visible_while_it_runs_and_are_counted(
    service: Service, orders: Source, folder: Path, elasticsearch: Elasticsearch, redis_server: Redis
):
    before = received(service)
    delivered(service, orders.sql("INSERT INTO {} SELECT id + 100, 'new', 0 FROM range(10)"))
    delivered(service, orders.sql("UPDATE {} SET name = 'changed' WHERE id IN (1, 2, 3)"))
    delivered(service, orders.sql("DELETE FROM {} WHERE id IN (4, 5)"))
    delivered(service, orders.sql("UPDATE {} SET id = 200 WHERE id = 6"))

    equal_everywhere(orders, folder, elasticsearch, redis_server)
    made = {"snapshot": 0, "insert": 10, "update_preimage": 4, "update_postimage": 4, "delete": 2}
    after = received(service)
    assert {route: {kind: after[route][kind] - before[route][kind] for kind in made} for route in ORDERS} == (
        dict.fromkeys(ORDERS, made)
    )


def test_every_metric_of_the_catalogue_is_scraped_and_its_counts_add_up(service: Service, orders: Source):
    delivered(service, orders.version)

    samples = service.metrics()

    expected = {metric.name + ("_bucket" if metric.type == "histogram" else "") for metric in catalogue()}
    assert expected <= samples.keys()
    for route in ORDERS:
        assert service.metric("cdf_route_state", route=route, state="running") == 1
        assert service.metric("cdf_route_state", route=route) == 1
        assert service.metric("cdf_source_version", route=route) == orders.version
        assert service.metric("cdf_delivered_version", route=route) == orders.version
        assert service.metric("cdf_lag_versions", route=route) == 0
        assert service.metric("cdf_batches_total", route=route, outcome="failed") == 0
        batches = service.metric("cdf_batches_total", route=route, outcome="delivered")
        assert service.metric("cdf_batch_duration_seconds_count", route=route, phase="total") == batches
        assert service.metric("cdf_last_delivery_timestamp_seconds", route=route) > 0
    audit = {"route": "live_audit"}
    assert service.metric("cdf_changes_applied_total", **audit) == service.metric("cdf_changes_received_total", **audit)
    (build,) = samples["cdf_build_info"]
    assert dict(build)["spark_version"].startswith("4.")
    assert service.metric("cdf_sink_up", sink="search") == 1
    assert service.metric("cdf_sink_bytes_total", sink="search") > 0
    assert service.metric("cdf_sink_request_duration_seconds_count", sink="cache") > 0
    assert service.metric("cdf_jvm_process_resident_memory_bytes") > 0


def test_its_page_and_the_status_command_show_the_routes(service: Service):
    page = service.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "live_search" in page.text
    table = command(service.given, "status")
    assert (table.code, table.log) == (0, "")
    assert "live_search" in table.output
    told = json.loads(command(service.given, "status", "--format", "json").output)
    assert told["routes"][0].keys() == service.status()["routes"][0].keys()


def test_a_redis_that_goes_away_holds_up_its_own_route_only_and_is_caught_up_with(
    service: Service, orders: Source, stock: Source, fragile: Redis
):
    service.wait_delivered("stock_fragile", stock.version)

    fragile.stop()
    missed = stock.sql("UPDATE {} SET amount = -1 WHERE id < 5")
    delivered(service, orders.sql("UPDATE {} SET amount = -1 WHERE id = 1"))
    service.wait_state("stock_fragile", "retrying")
    delivered(service, orders.sql("UPDATE {} SET amount = -2 WHERE id = 1"))

    route = service.route("stock_fragile")
    assert route["lag_versions"] == 1
    assert route["lag_seconds"] > 0
    assert "unreachable" in route["reason"]
    assert service.metric("cdf_sink_up", sink="fragile") == 0
    assert service.metric("cdf_retries_total", route="stock_fragile", reason="unreachable") > 0
    assert [service.route(name)["lag_versions"] for name in ORDERS] == [0, 0, 0]
    assert service.get("/livez").status_code == 200
    assert service.get("/readyz").status_code == 503

    stock.sql("DELETE FROM {} WHERE id = 9")
    fragile.restart()
    service.wait_delivered("stock_fragile", missed + 1)
    assert entries(fragile.url, "stock:") == stock.rows
    service.wait_state("stock_fragile", "running")
    assert service.metric("cdf_sink_up", sink="fragile") == 1
    assert "Traceback" not in service.log.read_text()


def test_a_second_instance_on_the_same_state_is_told_who_holds_it(service: Service):
    second = command(service.given, "run", within=20)

    assert second.code == 75
    (entry,) = second.entries
    assert service.url in entry["message"]
    assert "Stop it first, or name another CDF_STATE_PATH" in entry["message"]


def test_a_replay_asked_for_beside_the_service_brings_lost_entries_back(
    service: Service, orders: Source, folder: Path, elasticsearch: Elasticsearch, redis_server: Redis
):
    delivered(service, orders.version)
    with redis.Redis.from_url(redis_server.url) as client:
        client.delete("live:1", "live:101")

    ended = command(service.given, "replay", "live_cache", "--starting-version", "1", "--yes")

    assert ended.code == 0, ended.log
    equal_everywhere(orders, folder, elasticsearch, redis_server)
    assert service.route("live_cache")["generation"] == 1


def test_a_replay_with_an_end_appends_what_the_audit_table_lacks(
    service: Service, orders: Source, folder: Path, elasticsearch: Elasticsearch, redis_server: Redis
):
    delivered(service, orders.version)
    audit = orders.spark.read.format("delta").load(str(folder / "audit" / "live"))
    data = ["id", "name", "amount", "change_type", "commit_version"]
    before = sorted(audit.select(data).collect())
    lost = orders.version
    orders.spark.sql(f"DELETE FROM delta.`{folder / 'audit' / 'live'}` WHERE commit_version = {lost}")
    assert sorted(audit.select(data).collect()) != before

    ended = command(
        service.given, "replay", "live_audit", "--starting-version", "2", "--ending-version", f"{lost}", "--yes"
    )

    assert ended.code == 0, ended.log
    again = orders.spark.read.format("delta").load(str(folder / "audit" / "live"))
    assert sorted(again.select(data).collect()) == before


def test_a_resync_asked_for_beside_the_service_rebuilds_an_index_and_removes_orphans(
    service: Service, orders: Source, folder: Path, elasticsearch: Elasticsearch, redis_server: Redis
):
    orphan = {"id": 999, "name": "orphan", "amount": 0}
    with httpx.Client(base_url=elasticsearch.url, trust_env=False) as client:
        client.put("/live/_doc/999?version=3&version_type=external", json=orphan).raise_for_status()
        client.delete("/live/_doc/1").raise_for_status()

    ended = command(service.given, "resync", "live_search", "--yes")

    assert ended.code == 0, ended.log
    equal_everywhere(orders, folder, elasticsearch, redis_server)
    assert service.route("live_search")["epoch"] == 2


def test_a_request_the_table_can_not_fulfil_is_refused_and_the_route_goes_on(service: Service, orders: Source):
    ended = command(service.given, "replay", "live_cache", "--starting-version", "5000", "--yes")

    assert ended.code == 1
    assert f"versions 0 to {orders.version} are available" in ended.entry(route="live_cache")["why"]
    service.wait_state("live_cache", "running")
    delivered(service, orders.sql("UPDATE {} SET amount = 7 WHERE id = 1"))


def test_after_sigterm_it_ends_well_and_goes_on_where_it_stopped(
    service: Service, orders: Source, folder: Path, elasticsearch: Elasticsearch, redis_server: Redis
):
    delivered(service, orders.sql("UPDATE {} SET amount = 8 WHERE id = 1"))

    assert service.end() == 0
    missed = orders.sql("INSERT INTO {} SELECT id + 300, 'while away', 0 FROM range(7)")
    service.restart()
    delivered(service, missed)

    equal_everywhere(orders, folder, elasticsearch, redis_server)
    once = {"snapshot": 0, "insert": 7, "update_preimage": 0, "update_postimage": 0, "delete": 0}
    assert received(service) == dict.fromkeys(ORDERS, once)
