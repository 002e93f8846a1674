"""Define a metric, and how its series are read from a status: a series per route, per sink, or of the JVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cdf_replicator.monitoring.status import RouteStatus, ServiceStatus, SinkStatus, Status, VerificationStatus
    from cdf_replicator.spark.memory import JvmMemory

    Series = tuple[tuple[str, ...], float]
    """The label values and the value of a series."""

ROUTE_LABELS: Final = ("route", "table", "sink")


class MetricSpec(NamedTuple):
    """A row of docs/metrics.md.

    ``name`` is the scraped name. ``read`` returns the series of a status. A histogram or a summary is an instrument: a
    histogram has ``buckets``, a summary has none.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Status], Iterable[Series]] = lambda _: ()
    buckets: tuple[float, ...] | None = None

    @property
    def type(self) -> str:
        """Return the type in the sense of Prometheus."""
        if self.buckets is not None:
            return "histogram" if self.buckets else "summary"
        return "counter" if self.name.endswith("_total") else "gauge"


def per_route(
    name: str, text: str, read: Callable[[RouteStatus], float | Mapping[str, float]], *label: str
) -> MetricSpec:
    """Return a gauge or counter with a series per route, or with one per route and value of ``label``."""

    def series(status: Status) -> Iterator[Series]:
        for route in sorted(status.routes, key=lambda route: route.route):
            names, value = (route.route, route.table, route.sink), read(route)
            if isinstance(value, Mapping):
                yield from (((*names, each), count) for each, count in value.items())
            else:
                yield names, value

    return MetricSpec(name, text, (*ROUTE_LABELS, *label), series)


def per_comparison(name: str, text: str, read: Callable[[VerificationStatus], float]) -> MetricSpec:
    """Return a gauge of the last comparison of each route; 0 before the first."""
    return per_route(name, text, lambda route: read(route.verification) if route.verification else 0)


def per_sink(name: str, text: str, read: Callable[[SinkStatus], float]) -> MetricSpec:
    """Return a gauge or counter with a series per sink that a route uses."""

    def series(status: Status) -> Iterator[Series]:
        used = {route.sink for route in status.routes}
        return (((sink.sink,), read(sink)) for sink in status.sinks if sink.sink in used)

    return MetricSpec(name, text, ("sink",), series)


def per_service(
    name: str, text: str, read: Callable[[ServiceStatus], float | Mapping[str, float]], *label: str
) -> MetricSpec:
    """Return a gauge or counter of the service, with one series or with one per value of ``label``."""

    def series(status: Status) -> Iterator[Series]:
        value = read(status.service)
        if isinstance(value, Mapping):
            yield from (((each,), count) for each, count in value.items())
        else:
            yield (), value

    return MetricSpec(name, text, label, series)


def of_jvm(name: str, text: str, read: Callable[[JvmMemory], float]) -> MetricSpec:
    """Return a gauge or counter of the JVM; 0 until Spark has started."""
    return per_service(name, f"Spark's JVM: {text}", lambda service: read(service.jvm_memory))
