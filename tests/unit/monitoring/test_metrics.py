"""Metrics as a scraper sees them."""

import math
import os
import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest
from prometheus_client import Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import PySparkException

from cdf_replicator import __version__
from cdf_replicator.delivery import DeliveryResult
from cdf_replicator.errors import condition_table
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.monitoring.metrics import Metrics, all_metrics
from cdf_replicator.monitoring.reporter import PLANNING, RouteReporter
from cdf_replicator.monitoring.status import STATES, VerificationStatus
from cdf_replicator.monitoring.totals import (
    DIFFERENCES,
    OUTCOMES,
    PHASES,
    REJECTION_CODES_LIMIT,
    RESTART_LABELS,
    RETRY_LABELS,
    RETRY_REASONS,
)
from cdf_replicator.spark.memory import JvmMemory
from connectors import Capabilities, RetryableError, registry
from connectors.change import CHANGE_TYPES
from tests.unit.boards import START

# These names are published: dashboards and alerts use them.
PROMISED = {
    "cdf_build_info": {"version", "spark_version", "delta_version", "java_version", "python_version"},
    "cdf_config_reloads_total": {"result"},
    "cdf_config_last_reload_successful": set(),
    "cdf_config_last_reload_success_timestamp_seconds": set(),
    **{
        name: {"route", "table", "sink", *further}
        for name, further in {
            "cdf_route_state": ["state"],
            "cdf_source_version": [],
            "cdf_delivered_version": [],
            "cdf_lag_versions": [],
            "cdf_lag_seconds": [],
            "cdf_changes_received_total": ["change_type"],
            "cdf_changes_applied_total": ["change_type"],
            "cdf_changes_superseded_total": [],
            "cdf_changes_stale_total": [],
            "cdf_changes_noop_total": [],
            "cdf_changes_rejected_total": ["reason"],
            "cdf_dead_letters": [],
            "cdf_batches_total": ["outcome"],
            "cdf_batch_duration_seconds": ["phase"],
            "cdf_micro_batch_duration_seconds": [],
            "cdf_retries_total": ["reason"],
            "cdf_restarts_total": ["reason"],
            "cdf_input_rows_per_second": [],
            "cdf_processed_rows_per_second": [],
            "cdf_last_delivery_timestamp_seconds": [],
            "cdf_headroom_seconds": [],
            "cdf_headroom_versions": [],
            "cdf_bootstrap_progress_ratio": [],
            "cdf_replay_progress_ratio": [],
            "cdf_delivery_latency_seconds": [],
            "cdf_verified_version": [],
            "cdf_verified_timestamp_seconds": [],
            "cdf_verify_differences": ["kind"],
            "cdf_verify_left_out": [],
            "cdf_verify_duration_seconds": [],
            "cdf_verify_deadline_timestamp_seconds": [],
        }.items()
    },
    "cdf_sink_up": {"sink"},
    "cdf_sink_request_duration_seconds": {"sink"},
    "cdf_sink_bytes_total": {"sink"},
    **{
        f"cdf_jvm_{name}": set()
        for name in ("heap_used_bytes", "heap_max_bytes", "gc_collections_total", "gc_seconds_total")
    },
}


ROUTE = "orders_search"
SINK = SimpleNamespace(mode="append", capabilities=Capabilities(rejection_codes=("mapping",)))


@pytest.fixture
def route(board, metrics):
    board.add_sink("search", "elasticsearch", "search:9200")
    return RouteReporter(
        SimpleNamespace(name=ROUTE, sink="search", source=SimpleNamespace(slug="orders")), metrics, SINK
    )


def scraped(metrics: Metrics) -> dict[str, dict[frozenset, float]]:
    """Sample name -> further labels -> value, for the cdf_ samples."""
    samples: dict[str, dict[frozenset, float]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if sample.name.startswith("cdf_"):
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return samples


def value(metrics: Metrics, name: str, **labels: str) -> float:
    bound = {} if name.startswith(("cdf_sink", "cdf_build")) else {"route": ROUTE, "table": "orders", "sink": "search"}
    return scraped(metrics)[name][frozenset({**bound, **labels}.items())]


def test_the_promised_names_and_labels_are_scraped(metrics, route):
    samples = scraped(metrics)
    for name, labels in PROMISED.items():
        found = samples.get(name) or samples[f"{name}_count"]
        assert {label for label, _ in next(iter(found))} == labels, name


def test_the_catalogue_lists_what_is_promised_and_the_jvm():
    described = {row.name: row for row in all_metrics()}
    assert {name: set(row.labels) for name, row in described.items() if "jvm_process" not in name} == PROMISED
    assert described["cdf_jvm_process_cpu_seconds_total"].type == "counter"
    assert described["cdf_batch_duration_seconds"].type == "summary"
    assert described["cdf_delivery_latency_seconds"].type == "histogram"
    assert all(row.help for row in described.values())


@pytest.mark.parametrize("name", PROMISED)
def test_a_name_can_not_be_registered_twice(metrics, name):
    with pytest.raises(ValueError, match="Duplicated"):
        Gauge(name, "of another collector", registry=metrics.registry)


def test_every_known_series_starts_at_zero(metrics, route):
    samples = scraped(metrics)
    unknown = {name for name, series in samples.items() if all(map(math.isnan, series.values()))}
    assert unknown == {
        "cdf_source_version",
        "cdf_delivered_version",
        "cdf_lag_versions",
        "cdf_lag_seconds",
        "cdf_sink_up",
    }, "0 would say that all is delivered, and raise an alert before the first request"
    not_zero = {name for name, series in samples.items() if name not in unknown and any(series.values())}
    assert not_zero == {
        "cdf_build_info",
        "cdf_config_last_reload_success_timestamp_seconds",
        "cdf_config_last_reload_successful",
        "cdf_headroom_seconds",
        "cdf_headroom_versions",
        "cdf_route_state",
        "cdf_verify_deadline_timestamp_seconds",
    }
    assert len(samples["cdf_verify_differences"]) == len(DIFFERENCES)
    assert value(metrics, "cdf_verify_deadline_timestamp_seconds") == math.inf
    assert len(samples["cdf_route_state"]) == len(STATES)
    assert len(samples["cdf_changes_received_total"]) == len(CHANGE_TYPES)
    assert len(samples["cdf_changes_applied_total"]) == len(CHANGE_TYPES)
    assert len(samples["cdf_batches_total"]) == len(OUTCOMES)
    assert len(samples["cdf_batch_duration_seconds_count"]) == len((PLANNING, *PHASES))
    assert len(samples["cdf_retries_total"]) == len({*RETRY_LABELS.values()})
    assert len(samples["cdf_restarts_total"]) == len({*RESTART_LABELS.values()})
    assert value(metrics, "cdf_route_state", state="starting") == 1
    assert value(metrics, "cdf_changes_rejected_total", reason="mapping") == 0


def test_a_sink_without_a_route_has_no_series(metrics, route, board):
    """Its state stays unknown, and one NaN would make the sum over all sinks unknown."""
    board.add_sink("cache", "redis", "cache:6379")
    assert list(scraped(metrics)["cdf_sink_up"]) == [frozenset({("sink", "search")})]


def test_unknown_headroom_differs_from_zero_headroom(metrics, route, board):
    assert value(metrics, "cdf_headroom_seconds") == math.inf
    route.headroom(3600, 12)
    assert (value(metrics, "cdf_headroom_seconds"), value(metrics, "cdf_headroom_versions")) == (3600, 12)
    board.update(ROUTE, headroom_seconds=None, headroom_versions=None)
    assert value(metrics, "cdf_headroom_versions") == math.inf


def test_last_comparison_is_scraped(metrics, route, board):
    kinds = {"missing": 2, "extra": 0, "different": 1, "foreign": 0}
    last = VerificationStatus(41, START, 12.5, 7, kinds)
    board.update(ROUTE, verification=last, verify_deadline=START + timedelta(days=2))
    assert value(metrics, "cdf_verified_version") == 41
    assert value(metrics, "cdf_verified_timestamp_seconds") == START.timestamp()
    assert {kind: value(metrics, "cdf_verify_differences", kind=kind) for kind in DIFFERENCES} == kinds
    assert value(metrics, "cdf_verify_left_out") == 7
    assert value(metrics, "cdf_verify_duration_seconds") == 12.5
    assert value(metrics, "cdf_verify_deadline_timestamp_seconds") == START.timestamp() + 2 * 86_400


def test_a_route_is_in_exactly_one_state(metrics, route):
    for state in STATES:
        route.state(state)
        states = scraped(metrics)["cdf_route_state"]
        assert [dict(labels)["state"] for labels, on in states.items() if on] == [state]


def test_the_lag_ages_from_scrape_to_scrape(metrics, route, clock):
    route.versions(12, 9, START.timestamp() - 61.5)
    assert (value(metrics, "cdf_lag_versions"), value(metrics, "cdf_lag_seconds")) == (3, 61.5)
    clock.at += timedelta(seconds=60)
    assert value(metrics, "cdf_lag_seconds") == 121.5
    route.versions(12, 12, None)
    assert value(metrics, "cdf_lag_seconds") == 0


@pytest.mark.parametrize("type_name", registry.installed())
def test_a_route_has_at_most_a_hundred_series(metrics, board, type_name):
    board.add_sink("target", type_name, "")
    source = SimpleNamespace(slug="orders")
    RouteReporter(SimpleNamespace(name="r", sink="target", source=source), metrics, registry.load(type_name))
    series = sum(("route", "r") in labels for samples in scraped(metrics).values() for labels in samples)
    assert 80 < series <= 100


def test_progress_of_a_load_is_scraped(metrics, route):
    for ratio in (0.25, 1.0, 0.0):
        route.bootstrap(ratio)
        assert value(metrics, "cdf_bootstrap_progress_ratio") == ratio


def test_removed_route_leaves_no_series(metrics, board, route):
    other = SimpleNamespace(name="other", sink="search", source=SimpleNamespace(slug="orders"))
    board.add_sink("search", "elasticsearch", "")
    last = RouteReporter(other, metrics, registry.load("elasticsearch"))
    outcome = DeliveryResult(request_seconds=[0.5])
    for each in (route, last):
        each.batch(1, outcome, versions=None, seconds={"write": 1.5}, ended="delivered")
        each.requests(outcome)
        each.planning(0.1)

    route.remove()
    labels = [set(labels) for samples in scraped(metrics).values() for labels in samples]
    assert not any(("route", "orders_search") in each for each in labels)
    assert any(("route", "other") in each for each in labels)
    assert scraped(metrics)["cdf_sink_request_duration_seconds_count"] == {frozenset({("sink", "search")}): 2}
    last.remove()
    assert "cdf_sink_request_duration_seconds_count" not in scraped(metrics)


def test_reloads_are_counted_and_the_last_one_is_scraped(metrics, board, clock):
    def values():
        samples = scraped(metrics)
        reloads = {dict(labels)["result"]: count for labels, count in samples["cdf_config_reloads_total"].items()}
        last = samples["cdf_config_last_reload_successful"], samples["cdf_config_last_reload_success_timestamp_seconds"]
        return reloads, *(each[frozenset()] for each in last)

    started = START.timestamp()
    assert values() == ({"success": 0, "failed": 0}, 1, started)
    clock.tick(60)
    board.reloaded(successful=False)
    assert values() == ({"success": 0, "failed": 1}, 0, started)
    board.reloaded(successful=True)
    assert values() == ({"success": 1, "failed": 1}, 1, started + 60)


def test_memory_of_the_jvm_is_scraped(metrics, board):
    board.jvm_memory(JvmMemory(heap_used=5, heap_max=8, collections=3, collection_seconds=0.25))
    names = ("heap_used_bytes", "heap_max_bytes", "gc_collections_total", "gc_seconds_total")
    assert [scraped(metrics)[f"cdf_jvm_{name}"][frozenset()] for name in names] == [5, 8, 3, 0.25]


def test_a_batch_is_timed_by_phase_and_in_total(metrics, route):
    route.batch(1, DeliveryResult(), versions=None, seconds={"prepare": 0.5, "write": 1.5}, ended="delivered")
    route.batch(2, DeliveryResult(), versions=None, seconds={"prepare": 0.25}, ended="failed")
    assert value(metrics, "cdf_batches_total", outcome="delivered") == 1
    assert value(metrics, "cdf_batches_total", outcome="failed") == 1
    assert value(metrics, "cdf_batch_duration_seconds_sum", phase="write") == 1.5
    assert value(metrics, "cdf_micro_batch_duration_seconds_sum") == 2.25
    assert value(metrics, "cdf_micro_batch_duration_seconds_count") == 2
    assert value(metrics, "cdf_micro_batch_duration_seconds_bucket", le="0.5") == 1
    route.planning(0.125)
    assert value(metrics, "cdf_batch_duration_seconds_sum", phase="planning") == 0.125


def test_every_restart_is_counted_by_its_reported_reason(metrics, route):
    reasons = {row.reason for row in condition_table.ERROR_CONDITIONS if row.action != "halt"}
    errors = [*map(RetryableError, RETRY_REASONS[:-1]), PySparkException("no condition we know")]
    reasons |= {classify_error(error, route="r").reason for error in errors} | {"request"}
    for reason in reasons:
        route.restarted(reason)
    wanted = Counter(RESTART_LABELS[reason] for reason in reasons)
    assert {label: value(metrics, "cdf_restarts_total", reason=label) for label in wanted} == wanted
    assert wanted["sink"] == len(RETRY_REASONS) - 1


def test_a_sink_that_invents_codes_without_end_cannot_flood_the_scrape(metrics, route):
    outcome = DeliveryResult(rejected=Counter({f"code_{n}": 1 for n in range(500)}))
    route.batch(1, outcome, versions=None, seconds={}, ended="delivered")
    series = scraped(metrics)["cdf_changes_rejected_total"]
    assert len(series) == REJECTION_CODES_LIMIT
    assert sum(series.values()) == 500


def test_scrape_reads_one_snapshot(metrics, route):
    """A batch adds to several counters at once: no scrape has it in one of them only."""
    outcome = DeliveryResult(received=Counter(insert=3), applied=Counter(insert=2), stale=1)
    over = threading.Event()

    def deliver():
        while not over.is_set():
            route.batch(1, outcome, versions=None, seconds={}, ended="delivered")

    threads = [threading.Thread(target=deliver) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        scrapes = [scraped(metrics) for _ in range(20)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    counts = [
        [sum(samples[f"cdf_{name}_total"].values()) for name in ("batches", "changes_received", "changes_applied")]
        for samples in scrapes
    ]
    assert counts[-1][0] > 0
    assert all((received, applied) == (3 * batches, 2 * batches) for batches, received, applied in counts)


def test_the_build_is_named_once(metrics, board):
    board.runtime(spark="4.2.0", delta="4.4.0", java="17")
    (labels,) = scraped(metrics)["cdf_build_info"]
    assert dict(labels)["spark_version"] == "4.2.0"
    assert dict(labels)["version"] == __version__


def test_jvm_is_measured_by_its_process_id(metrics):
    assert not any(name.startswith("cdf_jvm_process") for name in scraped(metrics))
    metrics.watch_jvm(os.getpid())
    assert scraped(metrics)["cdf_jvm_process_resident_memory_bytes"][frozenset()] > 0
    families = {f.name for f in text_string_to_metric_families(generate_latest(metrics.registry).decode())}
    assert {"process_resident_memory_bytes", "python_gc_collections"} <= families


def test_scrape_succeeds_after_the_jvm_has_ended(metrics, route):
    metrics.watch_jvm(2**22 + 1)  # above the kernel's highest process id
    assert "cdf_route_state" in scraped(metrics)


def test_no_created_series_are_exposed(metrics, route):
    assert b"_created" not in as_openmetrics(metrics.registry)
