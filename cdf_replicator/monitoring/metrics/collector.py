"""Collect the metrics of a scrape from one snapshot of the status, so that ``/metrics`` can't differ from ``/status``.

Only histograms and summaries are instruments, since a status has no distributions. They count on the driver only: code inside a Spark
task runs in other processes and must return its durations as values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from cdf_replicator.monitoring.metrics.catalog import (
    BATCH_DURATION,
    DELIVERY_LATENCY,
    METRICS,
    MICRO_BATCH_DURATION,
    REQUEST_DURATION,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from cdf_replicator.monitoring.metrics.spec import MetricSpec
    from cdf_replicator.monitoring.status_store import StatusStore


class Metrics(Collector):
    """The collector of one service's metrics, with the ``registry`` that the HTTP server exposes.

    It reads the status store ``board``.
    """

    def __init__(self, board: StatusStore) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.board = board
        self.batch_duration = Summary(BATCH_DURATION.name, BATCH_DURATION.help, BATCH_DURATION.labels, registry=None)
        self.micro_batch_duration = _histogram(MICRO_BATCH_DURATION)
        self.delivery_latency = _histogram(DELIVERY_LATENCY)
        self.request_duration = _histogram(REQUEST_DURATION)
        self._instruments = {
            BATCH_DURATION.name: self.batch_duration,
            MICRO_BATCH_DURATION.name: self.micro_batch_duration,
            DELIVERY_LATENCY.name: self.delivery_latency,
            REQUEST_DURATION.name: self.request_duration,
        }
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def watch_jvm(self, pid: int) -> None:
        """Expose memory, CPU and open files of Spark's JVM as ``cdf_jvm_process_*``; once per service."""
        ProcessCollector(namespace="cdf_jvm", pid=lambda: pid, registry=self.registry)

    def remove_route(self, route: str, table: str, sink: str, phases: Iterable[str]) -> None:
        """Remove the series of a route, its row, and the series of its sink if no other route uses it."""
        labels = (route, table, sink)
        for phase in phases:
            self.batch_duration.remove(*labels, phase)
        self.micro_batch_duration.remove(*labels)
        self.delivery_latency.remove(*labels)
        self.board.remove_route(route)
        if all(other.sink != sink for other in self.board.snapshot().routes):
            self.request_duration.remove(sink)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the series of all routes and sinks."""
        status = self.board.snapshot()
        for spec in METRICS:
            if spec.buckets is not None:
                yield from self._instruments[spec.name].collect()
                continue
            kind = CounterMetricFamily if spec.type == "counter" else GaugeMetricFamily
            family = kind(spec.name, spec.help, labels=spec.labels)
            for labels, value in spec.read(status):
                family.add_metric(labels, value)
            yield family


def _histogram(spec: MetricSpec) -> Histogram:
    return Histogram(spec.name, spec.help, spec.labels, registry=None, buckets=spec.buckets or ())
