"""The live service delivers commits, reports its status, executes commands and stops."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from cdf_replicator.monitoring.metrics import all_metrics
from deploy.local.servers import Redis
from tests.support.reading import documents, entries
from tests.support.service import Ended, Service, command, environment
from tests.support.source import Source
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Elasticsearch

ORDERS = ("live_audit", "live_search", "live_cache")


@dataclass(frozen=True)
class Live:
    """A service that follows ``orders`` into three sinks, ``stock`` into ``fragile``, and ``late`` once it is there."""

    service: Service
    folder: Path
    orders: Source
    stock: Source
    fragile: Redis
    elasticsearch: Elasticsearch
    redis: Redis

    def delivered(self, version: int) -> None:
        for route in ORDERS:
            self.service.wait_delivered(route, version)

    def received(self) -> dict[str, dict[str, float]]:
        """Return the changes received so far, by route of the orders and change type."""
        kinds = ("snapshot", "insert", "update_preimage", "update_postimage", "delete")
        counted = self.service.metrics()["cdf_changes_received_total"].items()
        result = {route: dict.fromkeys(kinds, 0.0) for route in ORDERS}
        for labels, value in counted:
            found = dict(labels)
            if found["route"] in result:
                result[found["route"]][found["change_type"]] += value
        return result

    def reloads(self, content: str) -> None:
        """Write the configuration file, send SIGHUP, and wait until the service has taken it."""
        before = self.service.metric("cdf_config_reloads_total", result="success")
        (self.folder / "cdf.yaml").write_text(content)
        os.kill(self.service.pid, signal.SIGHUP)
        until(
            lambda: self.service.metric("cdf_config_reloads_total", result="success") == before + 1,
            60,
            self.service.log.read_text,
        )

    def equal_everywhere(self) -> None:
        expected = self.orders.rows
        assert documents(self.elasticsearch.url, "live") == expected
        assert entries(self.redis.url, "live:") == expected
        assert self.orders.folded(self.folder / "audit" / "live") == expected


@pytest.fixture
def live(
    tmp_path: Path,
    new_source: Callable[..., Source],
    sinks: Callable[[Path], dict[str, object]],
    elasticsearch: Elasticsearch,
    redis_server: Redis,
) -> Iterator[Live]:
    """Started while one of its tables, ``late``, is not there yet; ``fragile`` is a Redis of its own, which the test takes away."""
    orders, stock = new_source(tmp_path, "live"), new_source(tmp_path, "stock")
    (tmp_path / "cdf.yaml").write_text("routes: {}")
    with Redis.start() as fragile:
        given = environment(
            tmp_path,
            **sinks(tmp_path),
            CONFIG_FILE=tmp_path / "cdf.yaml",
            TRIGGER_SECONDS=0.2,
            TABLES__LIVE__PATH=orders.path,
            TABLES__LIVE__KEYS="id",
            TABLES__LIVE__SINKS="audit,search,cache",
            TABLES__LIVE__INCLUDE_PREIMAGES=True,
            TABLES__STOCK__PATH=stock.path,
            TABLES__STOCK__KEYS="id",
            TABLES__STOCK__SINKS="fragile",
            TABLES__LATE__PATH=tmp_path / "late",
            TABLES__LATE__KEYS="id",
            TABLES__LATE__SINKS="cache",
            SINKS__FRAGILE__TYPE="redis",
            SINKS__FRAGILE__URL=fragile.url,
        )
        with Service(given).started() as service:
            live = Live(service, tmp_path, orders, stock, fragile, elasticsearch, redis_server)
            live.delivered(orders.version)
            service.wait_delivered("stock_fragile", stock.version)
            for route in (*ORDERS, "stock_fragile"):
                service.wait_state(route, "running")
            yield live


def test_service_delivers_reports_obeys_and_stops(live: Live):
    """One life of a service; what each step asserts is in its name."""
    for step in (
        it_waits_for_a_table_that_is_not_there_and_is_ready_once_it_is,
        commits_become_visible_while_it_runs_and_are_counted,
        targets_are_compared_beside_their_streams_and_are_equal,
        every_metric_of_the_catalogue_is_scraped_and_its_counts_add_up,
        its_page_and_the_status_command_show_the_routes,
        it_answers_a_command_that_reads_so_that_no_further_jvm_starts,
        a_redis_that_goes_away_holds_up_its_own_route_only_and_is_caught_up_with,
        a_second_instance_on_the_same_state_is_told_who_holds_it,
        a_replay_asked_for_beside_the_service_brings_lost_entries_back,
        a_replay_with_an_end_appends_what_the_audit_table_lacks,
        a_resync_asked_for_beside_the_service_rebuilds_an_index_and_removes_orphans,
        a_request_the_table_can_not_fulfil_is_refused_and_the_route_goes_on,
        a_reload_by_command_and_by_signal_restarts_one_route,
        after_sigterm_it_ends_well,
    ):
        step(live)


def it_waits_for_a_table_that_is_not_there_and_is_ready_once_it_is(live: Live) -> None:
    live.service.wait_state("late_cache", "retrying")
    assert live.service.get("/livez").status_code == 200
    answer = live.service.get("/readyz")
    assert answer.status_code == 503
    assert [route["route"] for route in answer.json()["waiting"]] == ["late_cache"]
    error = live.service.route("late_cache")["last_error"]
    assert str(live.folder / "late") in error["what"]
    assert "Create it, or correct its PATH" in error["next_step"]

    late = Source.created(live.orders.start, live.folder / "late")

    live.service.wait_delivered("late_cache", late.version)
    until(lambda: live.service.get("/readyz").status_code == 200, 30, str)
    assert entries(live.redis.url, "late:") == late.rows


def commits_become_visible_while_it_runs_and_are_counted(live: Live) -> None:
    before = live.received()
    live.delivered(live.orders.sql("INSERT INTO {} SELECT id + 100, 'new', 0 FROM range(10)"))
    live.delivered(live.orders.change("UPDATE {} SET name = 'changed' WHERE id IN (1, 2, 3)"))
    live.delivered(live.orders.change("DELETE FROM {} WHERE id IN (4, 5)"))
    live.delivered(live.orders.change("UPDATE {} SET id = 200 WHERE id = 6"))

    live.equal_everywhere()
    made = {"snapshot": 0, "insert": 10, "update_preimage": 4, "update_postimage": 4, "delete": 2}
    after = live.received()
    assert {route: {kind: after[route][kind] - before[route][kind] for kind in made} for route in ORDERS} == (
        dict.fromkeys(ORDERS, made)
    )


def targets_are_compared_beside_their_streams_and_are_equal(live: Live) -> None:
    """The file orders the comparisons, and ends them: each takes a second of processor time."""
    live.reloads("verify: {every_hours: 0.001}")
    for route in ("live_search", "live_cache"):
        until(lambda route=route: live.service.metric("cdf_verified_version", route=route) == live.orders.version, 120)  # type: ignore[misc]
        assert live.service.metric("cdf_verify_differences", route=route) == 0
        assert live.service.metric("cdf_restarts_total", route=route) == 0
    assert live.service.metric("cdf_verified_timestamp_seconds", route="live_audit") == 0
    live.reloads("routes: {}")


def every_metric_of_the_catalogue_is_scraped_and_its_counts_add_up(live: Live) -> None:
    live.delivered(live.orders.version)

    samples = live.service.metrics()

    suffixes = {"histogram": "_bucket", "summary": "_sum"}
    expected = {metric.name + suffixes.get(metric.type, "") for metric in all_metrics()}
    assert expected <= samples.keys()
    for route in ORDERS:
        assert live.service.metric("cdf_route_state", route=route, state="running") == 1
        assert live.service.metric("cdf_route_state", route=route) == 1
        assert live.service.metric("cdf_source_version", route=route) == live.orders.version
        assert live.service.metric("cdf_delivered_version", route=route) == live.orders.version
        assert live.service.metric("cdf_lag_versions", route=route) == 0
        assert live.service.metric("cdf_batches_total", route=route, outcome="failed") == 0
        batches = live.service.metric("cdf_batches_total", route=route, outcome="delivered")
        assert live.service.metric("cdf_micro_batch_duration_seconds_count", route=route) == batches
        assert live.service.metric("cdf_last_delivery_timestamp_seconds", route=route) > 0
        became = ("applied", "superseded", "stale", "noop", "rejected")
        received = live.service.metric("cdf_changes_received_total", route=route)
        assert received == sum(live.service.metric(f"cdf_changes_{name}_total", route=route) for name in became)
        assert live.service.metric("cdf_delivery_latency_seconds_count", route=route) > 0
        assert live.service.metric("cdf_bootstrap_progress_ratio", route=route) == 1
    assert live.service.metric("cdf_jvm_heap_used_bytes") > 0
    audit = {"route": "live_audit"}
    assert live.service.metric("cdf_changes_applied_total", **audit) == live.service.metric(
        "cdf_changes_received_total", **audit
    )
    (build,) = samples["cdf_build_info"]
    assert dict(build)["spark_version"].startswith("4.")
    assert live.service.metric("cdf_sink_up", sink="search") == 1
    assert live.service.metric("cdf_sink_bytes_total", sink="search") > 0
    assert live.service.metric("cdf_sink_request_duration_seconds_count", sink="cache") > 0
    assert live.service.metric("cdf_jvm_process_resident_memory_bytes") > 0


def its_page_and_the_status_command_show_the_routes(live: Live) -> None:
    page = live.service.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "live_search" in page.text
    table = command(live.service.given, "status")
    assert (table.code, table.log) == (0, f"service: {live.service.url}\n")
    assert "live_search" in table.output
    status = json.loads(command(live.service.given, "status", "--format", "json").output)
    assert status["routes"][0].keys() == live.service.status()["routes"][0].keys()


def it_answers_a_command_that_reads_so_that_no_further_jvm_starts(live: Live) -> None:
    """A command that starts Spark says so on stderr, and fails here, since Spark finds no jars."""
    given = {name: value for name, value in live.service.given.items() if name != "CDF_HTTP__BIND_PORT"}
    listed = command(given | {"CDF_SPARK__JARS": str(live.folder)}, "dead-letters", "list")
    assert (listed.code, listed.log, listed.output) == (0, "", "No open dead letters.\n")


def a_redis_that_goes_away_holds_up_its_own_route_only_and_is_caught_up_with(live: Live) -> None:
    live.service.wait_delivered("stock_fragile", live.stock.version)

    live.fragile.stop()
    missed = live.stock.change("UPDATE {} SET amount = -1 WHERE id < 5")
    live.delivered(live.orders.change("UPDATE {} SET amount = -1 WHERE id = 1"))
    live.service.wait_state("stock_fragile", "retrying")
    live.delivered(live.orders.change("UPDATE {} SET amount = -2 WHERE id = 1"))

    route = live.service.route("stock_fragile")
    assert route["lag_versions"] == 1
    assert route["lag_seconds"] > 0
    assert "unreachable" in route["reason"]
    assert live.service.metric("cdf_sink_up", sink="fragile") == 0
    assert live.service.metric("cdf_retries_total", route="stock_fragile", reason="unreachable") > 0
    assert [live.service.route(name)["lag_versions"] for name in ORDERS] == [0, 0, 0]
    assert live.service.get("/livez").status_code == 200
    assert live.service.get("/readyz").status_code == 503

    live.stock.change("DELETE FROM {} WHERE id = 9")
    live.fragile.restart()
    live.service.wait_delivered("stock_fragile", missed + 1)
    assert entries(live.fragile.url, "stock:") == live.stock.rows
    live.service.wait_state("stock_fragile", "running")
    assert live.service.metric("cdf_sink_up", sink="fragile") == 1
    entries_of_log = Ended(0, "", live.service.log.read_text()).entries
    assert [entry for entry in entries_of_log if "Traceback" in str(entry)] == []


def a_second_instance_on_the_same_state_is_told_who_holds_it(live: Live) -> None:
    second = command(live.service.given, "run")

    assert second.code == 75
    (entry,) = second.entries
    assert live.service.url in entry["message"]
    assert "Stop it first, or name another CDF_STATE_PATH" in entry["message"]


def a_replay_asked_for_beside_the_service_brings_lost_entries_back(live: Live) -> None:
    live.delivered(live.orders.version)
    with redis.Redis.from_url(live.redis.url) as client:
        client.delete("live:1", "live:101")

    ended = command(live.service.given, "replay", "live_cache", "--starting-version", "1", "--yes")

    assert ended.code == 0, ended.log
    live.equal_everywhere()
    assert live.service.route("live_cache")["generation"] == 1


def a_replay_with_an_end_appends_what_the_audit_table_lacks(live: Live) -> None:
    live.delivered(live.orders.version)
    audit = live.orders.spark.read.format("delta").load(str(live.folder / "audit" / "live"))
    data = ["id", "name", "amount", "change_type", "commit_version"]
    before = sorted(audit.select(data).collect())
    lost = live.orders.version
    live.orders.spark.sql(f"DELETE FROM delta.`{live.folder / 'audit' / 'live'}` WHERE commit_version = {lost}")
    assert sorted(audit.select(data).collect()) != before

    ended = command(
        live.service.given, "replay", "live_audit", "--starting-version", "2", "--ending-version", f"{lost}", "--yes"
    )

    assert ended.code == 0, ended.log
    again = live.orders.spark.read.format("delta").load(str(live.folder / "audit" / "live"))
    assert sorted(again.select(data).collect()) == before


def a_resync_asked_for_beside_the_service_rebuilds_an_index_and_removes_orphans(live: Live) -> None:
    orphan = {"id": 999, "name": "orphan", "amount": 0}
    with httpx.Client(base_url=live.elasticsearch.url, trust_env=False) as client:
        client.put("/live/_doc/999?version=3&version_type=external", json=orphan).raise_for_status()
        client.delete("/live/_doc/1").raise_for_status()

    ended = command(live.service.given, "resync", "live_search", "--yes")

    assert ended.code == 0, ended.log
    live.equal_everywhere()
    assert live.service.route("live_search")["epoch"] == 2


def a_request_the_table_can_not_fulfil_is_refused_and_the_route_goes_on(live: Live) -> None:
    ended = command(live.service.given, "replay", "live_cache", "--starting-version", "5000", "--yes")

    assert ended.code == 1
    assert f"versions 0 to {live.orders.version} are available" in ended.log
    live.service.wait_state("live_cache", "running")
    live.delivered(live.orders.change("UPDATE {} SET amount = 7 WHERE id = 1"))


def a_reload_by_command_and_by_signal_restarts_one_route(live: Live) -> None:
    """The file holds what may change; the environment of the process is that of its start."""
    file, differs = live.folder / "cdf.yaml", "routes.live_cache.schema_changes: add -> ignore"
    batches = {route: live.service.metric("cdf_batches_total", route=route) for route in ORDERS}
    assert batches["live_cache"] > 0
    file.write_text("routes: {live_cache: {schema_changes: sometimes}}")
    wrong = command(live.service.given, "reload")
    assert (wrong.code, wrong.output) == (78, "")
    assert "CDF_ROUTES__LIVE_CACHE__SCHEMA_CHANGES" in wrong.log
    assert live.service.metric("cdf_config_last_reload_successful") == 0

    taken = "routes: {live_cache: {schema_changes: ignore}}"
    file.write_text(taken)
    planned = command(live.service.given, "reload", "--dry-run")
    assert (planned.code, planned.output) == (0, f"live_cache  restart  {differs}\nNothing was changed.\n")
    live.reloads(taken)
    assert live.service.metric("cdf_config_last_reload_successful") == 1
    entry = Ended(0, "", live.service.log.read_text()).entry(message="route reloaded")
    assert (entry["route"], entry["action"], entry["differs"]) == ("live_cache", "restart", differs)
    live.delivered(live.orders.change("UPDATE {} SET amount = 9 WHERE id = 1"))
    live.equal_everywhere()
    for route in ("live_audit", "live_search"):
        assert live.service.metric("cdf_batches_total", route=route) > batches[route], "counted on"


def after_sigterm_it_ends_well(live: Live) -> None:
    """``test_chaos`` tests the start after a stop."""
    live.delivered(live.orders.change("UPDATE {} SET amount = 8 WHERE id = 1"))

    assert live.service.end() == 0
    live.equal_everywhere()
