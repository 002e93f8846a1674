"""Define every metric with its labels. The names are published; ``all_metrics`` lists them.

Metrics count on the driver only: code inside a Spark task runs in other processes and must return its counts as values.
A label value is a configured name or a member of a small set below; never a key, a version, a path or an error text.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from cdf_replicator import __version__
from cdf_replicator.errors import condition_table
from connectors.change import CHANGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

State = Literal["starting", "bootstrapping", "running", "retrying", "stalled", "paused", "halted", "stopped"]
BatchOutcome = Literal["delivered", "failed", "cancelled"]

STATES: Final[tuple[State, ...]] = get_args(State)
AT_REST: Final[tuple[State, ...]] = ("paused", "halted", "stopped")  # no query runs
OUTCOMES: Final[tuple[BatchOutcome, ...]] = get_args(BatchOutcome)
PHASES: Final = ("prepare", "write", "record", "total")
OTHER: Final = "other"
RETRY_REASONS: Final = (
    "unreachable",
    "timeout",
    "overloaded",
    "unavailable",
    "out_of_memory",
    "read_only",
    "conflict",
    "certificate_expired",
    "lost",
    OTHER,
)
RESTART_REASONS: Final = (*dict.fromkeys((*condition_table.RESTART_REASONS, *RETRY_REASONS[:-1], "request")), OTHER)
REJECTION_CODES_LIMIT: Final = 32

BATCH_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
REQUEST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_ROUTE: Final = ("route", "table", "sink")


class MetricSpec(NamedTuple):
    """A row of docs/metrics.md. ``name`` is the scraped name."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """All metrics of one service in one ``registry``, which the HTTP server exposes."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.described: list[MetricSpec] = []
        self._routes: dict[str, RouteMetrics] = {}
        self._sinks: dict[str, SinkMetrics] = {}
        self._build = self._gauge(
            "cdf_build_info",
            "Always 1; labels are the versions in use, empty until Spark has started.",
            ("version", "spark_version", "delta_version", "java_version", "python_version"),
        )
        self._make_positions()
        self._make_counts()
        self._make_sinks()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.build_info()

    def build_info(self, spark_version: str = "", delta_version: str = "", java_version: str = "") -> None:
        """Set the versions in use. The driver calls this again after Spark has started."""
        self._build.clear()
        self._build.labels(__version__, spark_version, delta_version, java_version, platform.python_version()).set(1)

    def watch_jvm(self, pid: int) -> None:
        """Expose memory, CPU and open files of Spark's JVM as ``cdf_jvm_process_*``; once per service."""
        ProcessCollector(namespace="cdf_jvm", pid=lambda: pid, registry=self.registry)

    def route(self, name: str, table: str, sink: str, rejection_codes: Iterable[str] = ()) -> RouteMetrics:
        """Return the metrics of a route, created on the first call with each series at 0.

        Args:
            name: Name of the route.
            table: Name of the source table.
            sink: Name of the sink.
            rejection_codes: Known codes of the sink. Their series exist before the first rejection.
        """
        if name not in self._routes:
            self._routes[name] = RouteMetrics(self, (name, table, sink), rejection_codes)
        return self._routes[name]

    def sink(self, name: str) -> SinkMetrics:
        """Return the metrics of a sink, created with all series on the first call."""
        if name not in self._sinks:
            self._sinks[name] = SinkMetrics(self, name)
        return self._sinks[name]

    def _make_positions(self) -> None:
        gauge = self._gauge
        self.state = gauge("cdf_route_state", "1 for the state the route is in, 0 for the others.", (*_ROUTE, "state"))
        self.source_version = gauge("cdf_source_version", "Newest commit version of the source table.", _ROUTE)
        self.delivered_version = gauge(
            "cdf_delivered_version",
            "Commit version up to which everything is delivered; -1 until the first delivery and while a snapshot is loaded.",
            _ROUTE,
        )
        self.lag_versions = gauge("cdf_lag_versions", "Newest source version minus last delivered version.", _ROUTE)
        self.lag_seconds = gauge(
            "cdf_lag_seconds", "Age of the oldest commit that is not delivered; 0 if all are delivered.", _ROUTE
        )
        self.last_delivery = gauge(
            "cdf_last_delivery_timestamp_seconds", "Unix time of the last delivered micro-batch; 0 if none.", _ROUTE
        )
        self.headroom_seconds = gauge(
            "cdf_headroom_seconds",
            "Time until files that the route still needs may be removed; +Inf if not known.",
            _ROUTE,
        )
        self.headroom_versions = gauge(
            "cdf_headroom_versions",
            "Versions between the oldest readable version and the next version to deliver; +Inf if not known.",
            _ROUTE,
        )
        self.replay_progress = gauge(
            "cdf_replay_progress_ratio", "Progress of the last replay, 0 to 1; 0 if there was none.", _ROUTE
        )

    def _make_counts(self) -> None:
        counter, gauge = self._counter, self._gauge
        self.received = counter(
            "cdf_changes_received_total",
            "Changes read from the feed, including repeated reads; excludes update_preimage for an append sink without INCLUDE_PREIMAGES.",
            (*_ROUTE, "change_type"),
        )
        self.applied = counter("cdf_changes_applied_total", "Changes that the sink applied.", (*_ROUTE, "change_type"))
        self.stale = counter(
            "cdf_changes_stale_total", "Changes older than the sink's entry; counted as a success.", _ROUTE
        )
        self.noop = counter(
            "cdf_changes_noop_total",
            "Changes without an effect, such as a delete of an absent key; counted as a success.",
            _ROUTE,
        )
        self.rejected = counter(
            "cdf_changes_rejected_total",
            "Changes that the sink rejected; kept as dead letters.",
            (*_ROUTE, "reason"),
        )
        self.dead_letters = gauge("cdf_dead_letters", "Number of open dead letters.", _ROUTE)
        self.batches = counter("cdf_batches_total", "Micro-batches by outcome.", (*_ROUTE, "outcome"))
        self.batch_duration = self._histogram(
            "cdf_batch_duration_seconds",
            "Duration of a micro-batch by phase; phase total is the sum of the others.",
            (*_ROUTE, "phase"),
            BATCH_SECONDS,
        )
        self.retries = counter(
            "cdf_retries_total",
            "Writes repeated because the sink was unavailable or requested a retry.",
            (*_ROUTE, "reason"),
        )
        self.restarts = counter("cdf_restarts_total", "Restarts of the route's query.", (*_ROUTE, "reason"))
        self.input_rows = gauge(
            "cdf_input_rows_per_second", "Spark's inputRowsPerSecond of the last micro-batch.", _ROUTE
        )
        self.processed_rows = gauge(
            "cdf_processed_rows_per_second", "Spark's processedRowsPerSecond of the last micro-batch.", _ROUTE
        )

    def _make_sinks(self) -> None:
        self.sink_up = self._gauge(
            "cdf_sink_up",
            "1 if the sink answered the last request, 0 if it did not, NaN before the first request.",
            ("sink",),
        )
        self.sink_requests = self._histogram(
            "cdf_sink_request_duration_seconds", "Duration of a request to the sink.", ("sink",), REQUEST_SECONDS
        )
        self.sink_bytes = self._counter("cdf_sink_bytes_total", "Bytes sent to the sink.", ("sink",))

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        self.described.append(MetricSpec(name, "gauge", labels, text))
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        self.described.append(MetricSpec(name, "counter", labels, text))
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        self.described.append(MetricSpec(name, "histogram", labels, text))
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)


class RouteMetrics:
    """The metrics of one route, bound to its labels; called by the route's thread on the driver."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str, str], rejection_codes: Iterable[str]) -> None:
        self._labels = labels
        self._state = {state: metrics.state.labels(*labels, state) for state in STATES}
        self._source_version = metrics.source_version.labels(*labels)
        self._delivered_version = metrics.delivered_version.labels(*labels)
        self._lag_versions = metrics.lag_versions.labels(*labels)
        self._lag_seconds = metrics.lag_seconds.labels(*labels)
        self._received = {kind: metrics.received.labels(*labels, kind) for kind in CHANGE_TYPES}
        self._applied = {kind: metrics.applied.labels(*labels, kind) for kind in CHANGE_TYPES}
        self._stale = metrics.stale.labels(*labels)
        self._noop = metrics.noop.labels(*labels)
        self._all_rejected = metrics.rejected
        self._rejected = {code: metrics.rejected.labels(*labels, code) for code in (*rejection_codes, OTHER)}
        self._dead_letters = metrics.dead_letters.labels(*labels)
        self._batches = {outcome: metrics.batches.labels(*labels, outcome) for outcome in OUTCOMES}
        self._seconds = {phase: metrics.batch_duration.labels(*labels, phase) for phase in PHASES}
        self._retries = {reason: metrics.retries.labels(*labels, reason) for reason in RETRY_REASONS}
        self._restarts = {reason: metrics.restarts.labels(*labels, reason) for reason in RESTART_REASONS}
        self._input_rows = metrics.input_rows.labels(*labels)
        self._processed_rows = metrics.processed_rows.labels(*labels)
        self._last_delivery = metrics.last_delivery.labels(*labels)
        self._headroom_seconds = metrics.headroom_seconds.labels(*labels)
        self._headroom_versions = metrics.headroom_versions.labels(*labels)
        self._replay_progress = metrics.replay_progress.labels(*labels)
        # The initial value 0 would report that the source table is losing history now.
        self.headroom(None, None)

    def state(self, state: State) -> None:
        """Set the present state of the route to 1 and the others to 0."""
        self._state[state].set(1)
        for other, gauge in self._state.items():
            if other != state:
                gauge.set(0)
        if state in AT_REST:
            self.rates(0, 0)

    def versions(self, source: int, delivered: int) -> None:
        self._source_version.set(source)
        self._delivered_version.set(delivered)

    def lag(self, versions: int, oldest: float | None) -> None:
        """Set the lag. The lag in seconds grows from scrape to scrape.

        Args:
            versions: Number of commits that are not delivered.
            oldest: Time of the oldest commit that is not delivered, in epoch seconds; None if all are delivered.
        """
        self._lag_versions.set(versions)
        self._lag_seconds.set_function(lambda: 0.0 if oldest is None else max(0.0, time.time() - oldest))

    def received(self, counts: Mapping[str, int]) -> None:
        """Count received rows by change type."""
        for kind, count in counts.items():
            self._received[kind].inc(count)

    def applied(self, counts: Mapping[str, int]) -> None:
        """Count applied rows by change type."""
        for kind, count in counts.items():
            self._applied[kind].inc(count)

    def stale(self, count: int) -> None:
        self._stale.inc(count)

    def noop(self, count: int) -> None:
        self._noop.inc(count)

    def rejected(self, counts: Mapping[str, int]) -> None:
        """Count rejected rows by the sink's code; codes beyond ``REJECTION_CODES_LIMIT`` count as other."""
        for code, count in counts.items():
            if code not in self._rejected and len(self._rejected) < REJECTION_CODES_LIMIT:
                self._rejected[code] = self._all_rejected.labels(*self._labels, code)
            self._rejected.get(code, self._rejected[OTHER]).inc(count)

    def dead_letters(self, count: int) -> None:
        """Set the number of open dead letters."""
        self._dead_letters.set(count)

    def batch(self, outcome: BatchOutcome, seconds: Mapping[str, float]) -> None:
        """Count a micro-batch that ended.

        Args:
            outcome: Result of the micro-batch.
            seconds: Duration by phase (prepare, write, record), without total.
        """
        self._batches[outcome].inc()
        for phase, duration in seconds.items():
            self._seconds[phase].observe(duration)
        self._seconds["total"].observe(sum(seconds.values()))

    def retries(self, reason: str, count: int = 1) -> None:
        """Count retries by the reason of ``RetryableError``."""
        self._retries.get(reason, self._retries[OTHER]).inc(count)

    def restart(self, reason: str) -> None:
        """Count a restart by the reason of the verdict (``conditions``), or ``request`` for an operator command."""
        self._restarts.get(reason, self._restarts[OTHER]).inc()

    def rates(self, input_rows: float, processed_rows: float) -> None:
        """Set the rows per second as reported by Spark."""
        self._input_rows.set(input_rows)
        self._processed_rows.set(processed_rows)

    def last_delivery(self, at: datetime) -> None:
        self._last_delivery.set(at.timestamp())

    def headroom(self, seconds: float | None, versions: int | None) -> None:
        """Set the headroom; None if it is unlimited or not read yet."""
        self._headroom_seconds.set(float("inf") if seconds is None else seconds)
        self._headroom_versions.set(float("inf") if versions is None else versions)

    def replay_progress(self, ratio: float) -> None:
        self._replay_progress.set(ratio)


class SinkMetrics:
    """The metrics of one sink, called by the threads of several routes."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._up = metrics.sink_up.labels(name)
        self._up.set(float("nan"))  # 0 would raise an alert before the first request to the sink
        self._requests = metrics.sink_requests.labels(name)
        self._bytes = metrics.sink_bytes.labels(name)

    def up(self, up: bool) -> None:
        self._up.set(1 if up else 0)

    def requests(self, seconds: Iterable[float]) -> None:
        """Observe the duration of each request."""
        for duration in seconds:
            self._requests.observe(duration)

    def sent(self, count: int) -> None:
        """Count sent bytes."""
        self._bytes.inc(count)


def all_metrics() -> list[MetricSpec]:
    """Return every metric of the service in the order of docs/metrics.md."""
    jvm = ProcessCollector(namespace="cdf_jvm", registry=None).collect()
    return [
        *Metrics().described,
        *(
            MetricSpec(
                f"{family.name}_total" if family.type == "counter" else family.name,
                family.type,
                (),
                f"Spark's JVM: {family.documentation}",
            )
            for family in jvm
        ),
    ]
