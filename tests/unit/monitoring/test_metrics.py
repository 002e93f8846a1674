"""Metrics as a scraper sees them."""

import math
import os
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import PySparkException

from cdf_replicator import __version__
from cdf_replicator.errors import condition_table
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.monitoring.metrics import (
    OUTCOMES,
    PHASES,
    REJECTION_CODES_LIMIT,
    RESTART_REASONS,
    RETRY_REASONS,
    STATES,
    Metrics,
    RouteMetrics,
    all_metrics,
)
from connectors import RetryableError
from connectors.change import CHANGE_TYPES

# These names are published: dashboards and alerts use them.
PROMISED = {
    "cdf_build_info": {"version", "spark_version", "delta_version", "java_version", "python_version"},
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
            "cdf_changes_stale_total": [],
            "cdf_changes_noop_total": [],
            "cdf_changes_rejected_total": ["reason"],
            "cdf_dead_letters": [],
            "cdf_batches_total": ["outcome"],
            "cdf_batch_duration_seconds": ["phase"],
            "cdf_retries_total": ["reason"],
            "cdf_restarts_total": ["reason"],
            "cdf_input_rows_per_second": [],
            "cdf_processed_rows_per_second": [],
            "cdf_last_delivery_timestamp_seconds": [],
            "cdf_headroom_seconds": [],
            "cdf_headroom_versions": [],
            "cdf_replay_progress_ratio": [],
        }.items()
    },
    "cdf_sink_up": {"sink"},
    "cdf_sink_request_duration_seconds": {"sink"},
    "cdf_sink_bytes_total": {"sink"},
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def route(metrics: Metrics) -> RouteMetrics:
    return metrics.route("orders_search", "orders", "search", ["mapping"])


def scraped(metrics: Metrics) -> dict[str, dict[frozenset, float]]:
    """Sample name -> further labels -> value, for the cdf_ samples."""
    samples: dict[str, dict[frozenset, float]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if sample.name.startswith("cdf_"):
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return samples


def value(metrics: Metrics, name: str, **labels: str) -> float:
    bound = (
        {}
        if name.startswith(("cdf_sink", "cdf_build"))
        else {"route": "orders_search", "table": "orders", "sink": "search"}
    )
    return scraped(metrics)[name][frozenset({**bound, **labels}.items())]


def test_the_promised_names_and_labels_are_scraped(metrics, route):
    metrics.sink("search")
    samples = scraped(metrics)
    for name, labels in PROMISED.items():
        found = samples.get(name) or samples[f"{name}_count"]
        assert {label for label, _ in next(iter(found))} == labels, name


def test_the_catalogue_lists_what_is_promised_and_the_jvm(metrics):
    described = {row.name: row for row in all_metrics()}
    assert {name: set(row.labels) for name, row in described.items() if "jvm" not in name} == PROMISED
    assert described["cdf_jvm_process_cpu_seconds_total"].type == "counter"
    assert described["cdf_batch_duration_seconds"].type == "histogram"
    assert all(row.help for row in described.values())


def test_every_known_series_starts_at_zero(metrics, route):
    metrics.sink("search")
    samples = scraped(metrics)
    not_zero = {name for name, series in samples.items() if any(series.values())}
    assert not_zero == {"cdf_build_info", "cdf_headroom_seconds", "cdf_headroom_versions", "cdf_sink_up"}
    assert len(samples["cdf_route_state"]) == len(STATES)
    assert len(samples["cdf_changes_received_total"]) == len(CHANGE_TYPES)
    assert len(samples["cdf_changes_applied_total"]) == len(CHANGE_TYPES)
    assert len(samples["cdf_batches_total"]) == len(OUTCOMES)
    assert len(samples["cdf_batch_duration_seconds_count"]) == len(PHASES)
    assert len(samples["cdf_retries_total"]) == len(RETRY_REASONS)
    assert len(samples["cdf_restarts_total"]) == len(RESTART_REASONS)
    assert value(metrics, "cdf_changes_rejected_total", reason="mapping") == 0


def test_unknown_headroom_is_not_mistaken_for_none_left(metrics, route):
    assert value(metrics, "cdf_headroom_seconds") == math.inf
    route.headroom(3600, 12)
    assert (value(metrics, "cdf_headroom_seconds"), value(metrics, "cdf_headroom_versions")) == (3600, 12)
    route.headroom(None, None)
    assert value(metrics, "cdf_headroom_versions") == math.inf


def test_a_route_is_in_exactly_one_state(metrics, route):
    for state in STATES:
        route.state(state)
        states = scraped(metrics)["cdf_route_state"]
        assert [dict(labels)["state"] for labels, on in states.items() if on] == [state]


def test_a_route_at_rest_moves_no_rows(metrics, route):
    route.rates(10, 20)
    assert value(metrics, "cdf_processed_rows_per_second") == 20
    route.state("paused")
    assert value(metrics, "cdf_input_rows_per_second") == 0
    assert value(metrics, "cdf_processed_rows_per_second") == 0


def test_counts_add_up(metrics, route):
    for _ in range(2):
        route.received({"insert": 3, "delete": 1})
        route.applied({"insert": 2})
        route.stale(1)
        route.noop(4)
        route.rejected({"mapping": 1})
        route.retries("timeout", 5)
        route.restart("table_missing")
    assert value(metrics, "cdf_changes_received_total", change_type="insert") == 6
    assert value(metrics, "cdf_changes_received_total", change_type="delete") == 2
    assert value(metrics, "cdf_changes_applied_total", change_type="insert") == 4
    assert value(metrics, "cdf_changes_stale_total") == 2
    assert value(metrics, "cdf_changes_noop_total") == 8
    assert value(metrics, "cdf_changes_rejected_total", reason="mapping") == 2
    assert value(metrics, "cdf_retries_total", reason="timeout") == 10
    assert value(metrics, "cdf_restarts_total", reason="table_missing") == 2


def test_positions_are_set(metrics, route):
    at = datetime(2026, 5, 1, tzinfo=timezone.utc)
    route.versions(source=12, delivered=9)
    route.lag(3, at.timestamp())
    route.dead_letters(7)
    route.last_delivery(at)
    route.replay_progress(0.25)
    assert value(metrics, "cdf_source_version") == 12
    assert value(metrics, "cdf_delivered_version") == 9
    assert value(metrics, "cdf_lag_versions") == 3
    assert value(metrics, "cdf_dead_letters") == 7
    assert value(metrics, "cdf_last_delivery_timestamp_seconds") == at.timestamp()
    assert value(metrics, "cdf_replay_progress_ratio") == 0.25


def test_the_lag_ages_while_nobody_looks(metrics, route, monkeypatch):
    clock = SimpleNamespace(time=lambda: clock.now, now=1000.0)
    monkeypatch.setattr("cdf_replicator.monitoring.metrics.time", clock)
    route.lag(3, 938.5)
    assert value(metrics, "cdf_lag_seconds") == 61.5
    clock.now += 60
    assert value(metrics, "cdf_lag_seconds") == 121.5
    route.lag(1, 1e9)
    assert value(metrics, "cdf_lag_seconds") == 0, "of a commit from the future"
    route.lag(0, None)
    assert value(metrics, "cdf_lag_seconds") == 0


def test_a_batch_is_timed_by_phase_and_in_total(metrics, route):
    route.batch("delivered", {"prepare": 0.5, "write": 1.5})
    route.batch("failed", {"prepare": 0.25})
    assert value(metrics, "cdf_batches_total", outcome="delivered") == 1
    assert value(metrics, "cdf_batches_total", outcome="failed") == 1
    assert value(metrics, "cdf_batch_duration_seconds_sum", phase="write") == 1.5
    assert value(metrics, "cdf_batch_duration_seconds_sum", phase="total") == 2.25
    assert value(metrics, "cdf_batch_duration_seconds_count", phase="total") == 2
    assert value(metrics, "cdf_batch_duration_seconds_bucket", phase="write", le="2.5") == 1


def test_an_unforeseen_reason_is_counted_as_other(metrics, route):
    route.retries("http_599")
    route.restart("gremlins")
    assert value(metrics, "cdf_retries_total", reason="other") == 1
    assert value(metrics, "cdf_restarts_total", reason="other") == 1


def test_every_restart_is_counted_under_the_reason_that_was_told(metrics, route):
    reasons = {row.reason for row in condition_table.ERROR_CONDITIONS if row.action != "halt"}
    errors = [*map(RetryableError, RETRY_REASONS[:-1]), PySparkException("no condition we know")]
    reasons |= {classify_error(error, route="r").reason for error in errors} | {"request"}
    for reason in reasons:
        route.restart(reason)
    assert {reason: value(metrics, "cdf_restarts_total", reason=reason) for reason in reasons} == dict.fromkeys(
        reasons, 1
    )


def test_a_sink_that_invents_codes_without_end_cannot_flood_the_registry(metrics, route):
    route.rejected({f"code_{n}": 1 for n in range(500)})
    series = scraped(metrics)["cdf_changes_rejected_total"]
    assert len(series) == REJECTION_CODES_LIMIT
    assert sum(series.values()) == 500


def test_asking_twice_gives_the_same_handle(metrics, route):
    assert metrics.route("orders_search", "orders", "search") is route
    assert metrics.sink("search") is metrics.sink("search")


def test_a_sink_says_how_it_answers(metrics):
    sink = metrics.sink("search")
    assert math.isnan(value(metrics, "cdf_sink_up", sink="search")), "no alert before the first request"
    sink.up(True)
    sink.requests([0.004, 0.2])
    sink.sent(1000)
    assert value(metrics, "cdf_sink_up", sink="search") == 1
    assert value(metrics, "cdf_sink_request_duration_seconds_count", sink="search") == 2
    assert value(metrics, "cdf_sink_bytes_total", sink="search") == 1000
    sink.up(False)
    assert value(metrics, "cdf_sink_up", sink="search") == 0


def test_the_build_is_named_once(metrics):
    metrics.build_info(spark_version="4.2.0", delta_version="4.4.0", java_version="17")
    (labels,) = scraped(metrics)["cdf_build_info"]
    assert dict(labels)["spark_version"] == "4.2.0"
    assert dict(labels)["version"] == __version__


def test_the_jvm_is_watched_by_its_process_id(metrics):
    assert not any(name.startswith("cdf_jvm") for name in scraped(metrics))
    metrics.watch_jvm(os.getpid())
    assert scraped(metrics)["cdf_jvm_process_resident_memory_bytes"][frozenset()] > 0
    families = {f.name for f in text_string_to_metric_families(generate_latest(metrics.registry).decode())}
    assert {"process_resident_memory_bytes", "python_gc_collections"} <= families


def test_a_jvm_that_is_gone_does_not_fail_the_scrape(metrics, route):
    metrics.watch_jvm(2**22 + 1)  # above the kernel's highest process id
    assert "cdf_route_state" in scraped(metrics)


def test_no_created_series_are_exposed(metrics, route):
    assert b"_created" not in as_openmetrics(metrics.registry)
