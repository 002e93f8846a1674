"""List every metric: its name, labels and help, and the value that its series have in a status."""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector

from cdf_replicator.monitoring.metrics.spec import (
    ROUTE_LABELS,
    MetricSpec,
    of_jvm,
    per_comparison,
    per_route,
    per_service,
    per_sink,
)
from cdf_replicator.monitoring.status import STATES
from cdf_replicator.monitoring.totals import DIFFERENCES, RESTART_LABELS, RETRY_LABELS, labelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdf_replicator.monitoring.metrics.spec import Series
    from cdf_replicator.monitoring.status import Status


def _versions(status: Status) -> Iterator[Series]:
    spark, delta, java = (status.service.runtime.get(name, "") for name in ("spark", "delta", "java"))
    yield (status.service.version, spark, delta, java, platform.python_version()), 1


def _known(value: float | None) -> float:
    """Return NaN for an unknown value: 0 would say that everything is delivered."""
    return math.nan if value is None else value


BATCH_DURATION: Final = MetricSpec(
    "cdf_batch_duration_seconds",
    "Duration of the phases of a micro-batch: planning by Spark, then prepare, write and record.",
    (*ROUTE_LABELS, "phase"),
    buckets=(),
)
MICRO_BATCH_DURATION: Final = MetricSpec(
    "cdf_micro_batch_duration_seconds",
    "Duration of a micro-batch from prepare to record.",
    ROUTE_LABELS,
    buckets=(0.5, 2.5, 10.0, 60.0),
)
DELIVERY_LATENCY: Final = MetricSpec(
    "cdf_delivery_latency_seconds",
    "Time from each commit of the source table until its changes are in the sink; only of commits made while the route follows the table.",
    ROUTE_LABELS,
    buckets=(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
REQUEST_DURATION: Final = MetricSpec(
    "cdf_sink_request_duration_seconds",
    "Duration of a request to the sink.",
    ("sink",),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
METRICS: Final = (
    MetricSpec(
        "cdf_build_info",
        "Always 1; labels are the versions in use, empty until Spark has started.",
        ("version", "spark_version", "delta_version", "java_version", "python_version"),
        _versions,
    ),
    per_route(
        "cdf_route_state",
        "1 for the state the route is in, 0 for the others.",
        lambda route: {state: state == route.state for state in STATES},
        "state",
    ),
    per_route(
        "cdf_source_version",
        "Newest commit version of the source table; NaN if not known.",
        lambda route: _known(route.source_version),
    ),
    per_route(
        "cdf_delivered_version",
        "Commit version up to which everything is delivered; -1 until the first delivery and while a snapshot is loaded; NaN if not known.",
        lambda route: _known(route.delivered_version),
    ),
    per_route(
        "cdf_lag_versions",
        "Newest source version minus last delivered version; NaN if not known.",
        lambda route: _known(route.lag_versions),
    ),
    per_route(
        "cdf_lag_seconds",
        "Age of the oldest commit that is not delivered, while a snapshot is loaded of the first commit after it; 0 if all are delivered; NaN if not known, or while the newest snapshot is loaded.",
        lambda route: _known(route.lag_seconds),
    ),
    per_route(
        "cdf_last_delivery_timestamp_seconds",
        "Unix time of the last delivered micro-batch; 0 if none.",
        lambda route: route.last_delivery_at.timestamp() if route.last_delivery_at else 0,
    ),
    per_route(
        "cdf_headroom_seconds",
        "Time until files that the route still needs may be removed; +Inf if not known.",
        lambda route: math.inf if route.headroom_seconds is None else route.headroom_seconds,
    ),
    per_route(
        "cdf_headroom_versions",
        "Versions between the oldest readable version and the next version to deliver; +Inf if not known.",
        lambda route: math.inf if route.headroom_versions is None else route.headroom_versions,
    ),
    per_route(
        "cdf_bootstrap_progress_ratio",
        "Progress of the last load of a snapshot, by a bootstrap or a resync, 0 to 1: the share of finished Spark tasks; 0 if there was none.",
        lambda route: route.bootstrap_progress,
    ),
    per_route(
        "cdf_replay_progress_ratio",
        "Progress of the last replay, 0 to 1; 0 if there was none.",
        lambda route: route.replay_progress,
    ),
    per_route(
        "cdf_changes_received_total",
        "Changes of delivered micro-batches that pass the route's filter; excludes update_preimage for an append sink without INCLUDE_PREIMAGES.",
        lambda route: route.totals.received,
        "change_type",
    ),
    per_route(
        "cdf_changes_applied_total",
        "Changes that the sink applied.",
        lambda route: route.totals.applied,
        "change_type",
    ),
    per_route(
        "cdf_changes_superseded_total",
        "Changes that a later change of the same key in the micro-batch replaced before the write.",
        lambda route: route.totals.superseded,
    ),
    per_route(
        "cdf_changes_stale_total",
        "Changes older than the sink's entry; counted as a success.",
        lambda route: route.totals.stale,
    ),
    per_route(
        "cdf_changes_noop_total",
        "Changes without an effect, such as a delete of an absent key; counted as a success.",
        lambda route: route.totals.noop,
    ),
    per_route(
        "cdf_changes_rejected_total",
        "Changes that the sink rejected; kept as dead letters.",
        lambda route: route.totals.rejected,
        "reason",
    ),
    DELIVERY_LATENCY,
    per_route("cdf_dead_letters", "Number of open dead letters.", lambda route: route.dead_letters),
    per_route("cdf_batches_total", "Micro-batches by outcome.", lambda route: route.totals.batches, "outcome"),
    BATCH_DURATION,
    MICRO_BATCH_DURATION,
    per_route(
        "cdf_retries_total",
        "Writes repeated because the sink was unavailable or requested a retry.",
        lambda route: labelled(route.totals.retries, RETRY_LABELS),
        "reason",
    ),
    per_route(
        "cdf_restarts_total",
        "Restarts of the route's query.",
        lambda route: labelled(route.totals.restarts, RESTART_LABELS),
        "reason",
    ),
    per_route(
        "cdf_input_rows_per_second",
        "Spark's inputRowsPerSecond of the last micro-batch.",
        lambda route: route.input_rows_per_second,
    ),
    per_route(
        "cdf_processed_rows_per_second",
        "Spark's processedRowsPerSecond of the last micro-batch.",
        lambda route: route.processed_rows_per_second,
    ),
    per_comparison(
        "cdf_verified_version",
        "Commit version of the source table with which the target was last compared; 0 if never.",
        lambda last: last.version,
    ),
    per_comparison(
        "cdf_verified_timestamp_seconds",
        "Unix time at which that comparison ended; 0 if never.",
        lambda last: last.at.timestamp(),
    ),
    per_route(
        "cdf_verify_differences",
        "Entries of the target that differed in that comparison.",
        lambda route: route.verification.differences if route.verification else dict.fromkeys(DIFFERENCES, 0),
        "kind",
    ),
    per_comparison(
        "cdf_verify_left_out",
        "Keys that changed during that comparison, and were left out.",
        lambda last: last.left_out,
    ),
    per_comparison("cdf_verify_duration_seconds", "Duration of that comparison.", lambda last: last.seconds),
    per_route(
        "cdf_verify_deadline_timestamp_seconds",
        "Unix time at which no comparison has ended for two periods of CDF_VERIFY__EVERY_HOURS; +Inf if the route is not compared periodically.",
        lambda route: route.verify_deadline.timestamp() if route.verify_deadline else math.inf,
    ),
    per_sink(
        "cdf_sink_up",
        "1 if the sink answered the last request, 0 if it did not or refuses the service, until a write succeeds or there is nothing to write; NaN before the first request, and after a failure if all routes of the sink are paused.",
        lambda sink: math.nan if sink.up is None else sink.up,  # 0 would raise an alert before the first request
    ),
    REQUEST_DURATION,
    per_sink("cdf_sink_bytes_total", "Bytes sent to the sink.", lambda sink: sink.sent_bytes),
    per_service(
        "cdf_config_reloads_total",
        "Reloads of the configuration; a dry run does not count.",
        lambda service: {"success": service.reloads.succeeded, "failed": service.reloads.failed},
        "result",
    ),
    per_service(
        "cdf_config_last_reload_successful",
        "1 if the last reload succeeded, or there was none; 0 if the configuration was wrong and the former one is in force.",
        lambda service: service.reloads.successful,
    ),
    per_service(
        "cdf_config_last_reload_success_timestamp_seconds",
        "Unix time of the last successful reload, or of the start.",
        lambda service: service.reloads.succeeded_at.timestamp(),
    ),
    of_jvm("cdf_jvm_heap_used_bytes", "used heap.", lambda memory: memory.heap_used),
    of_jvm("cdf_jvm_heap_max_bytes", "largest heap that it may use.", lambda memory: memory.heap_max),
    of_jvm("cdf_jvm_gc_collections_total", "garbage collections.", lambda memory: memory.collections),
    of_jvm("cdf_jvm_gc_seconds_total", "time in garbage collections.", lambda memory: memory.collection_seconds),
)


def all_metrics() -> list[MetricSpec]:
    """Return every metric of the service in the order of docs/metrics.md."""
    jvm = ProcessCollector(namespace="cdf_jvm", registry=None).collect()
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in jvm]
    texts = [f"Spark's JVM: {family.documentation}" for family in jvm]
    return [*METRICS, *(MetricSpec(name, text, ()) for name, text in zip(names, texts, strict=True))]
