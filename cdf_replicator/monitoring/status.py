"""Define the status of the service as immutable values, which ``status_store`` creates and ``/status`` returns.

``Status`` is the JSON of ``/status`` and the input of the page and of the ``status`` command. ``schema`` increases when
a field is removed or changes its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from cdf_replicator.monitoring.metrics import BatchOutcome, State
    from cdf_replicator.settings.effective import Setting
    from connectors.sink import Mode

ServiceState = Literal["starting", "healthy", "degraded", "failed", "stopping"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """A micro-batch that ended.

    ``versions`` are the first and the last commit in it. ``seconds`` is the duration by phase, without total.
    """

    batch_id: int
    versions: tuple[int, int] | None
    received: dict[str, int]
    seconds: dict[str, float]
    outcome: BatchOutcome
    at: datetime
    applied: dict[str, int] = field(default_factory=dict)
    stale: int = 0
    noop: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", sum(self.received.values()))


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start of the service.

    ``received`` and ``applied`` are by change type, ``rejected`` is by the sink's code.
    """

    received: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    stale: int = 0
    noop: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def plus(self, batch: BatchStatus) -> Totals:
        """Return the totals plus a batch. Of a batch that was not delivered, only the received rows count."""
        received = _sum(self.received, batch.received)
        if batch.outcome != "delivered":
            return replace(self, received=received)
        return Totals(
            received=received,
            applied=_sum(self.applied, batch.applied),
            stale=self.stale + batch.stale,
            noop=self.noop + batch.noop,
            rejected=_sum(self.rejected, batch.rejected),
        )


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """The last error of a route or a sink.

    ``condition`` is the error's class or code, equal for each repetition. ``next_step`` is the action or command for
    the operator.
    """

    what: str
    condition: str
    next_step: str
    first_seen: datetime
    last_seen: datetime
    count: int


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """A running replay with inclusive versions. ``ratio`` is its progress from 0 to 1."""

    starting_version: int
    ending_version: int
    ratio: float
    since: datetime


@dataclass(frozen=True, slots=True)
class Definition:
    """The configuration of a route.

    ``source`` is a path or a catalog name. ``columns`` is None if all columns are delivered.
    """

    source: str
    target: str
    mode: Mode
    keys: tuple[str, ...]
    filter: str | None
    columns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """The status of a route.

    ``reason`` explains the state where needed. ``lag_*`` is None until the source version and the delivered version are
    known. ``checkpoint`` is the folder of the present generation's checkpoint; empty before the first start.
    """

    route: str
    table: str
    sink: str
    state: State
    since: datetime
    reason: str = ""
    source_version: int | None = None
    delivered_version: int | None = None
    oldest_undelivered_commit_at: datetime | None = None
    lag_versions: int | None = None
    lag_seconds: float | None = None
    headroom_seconds: float | None = None
    headroom_versions: int | None = None
    generation: int = 0
    epoch: int = 0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    totals: Totals = field(default_factory=Totals)
    last_delivery_at: datetime | None = None
    batches: tuple[BatchStatus, ...] = ()
    last_error: ErrorStatus | None = None
    dead_letters: int = 0
    restarts: int = 0
    replay: ReplayStatus | None = None
    definition: Definition | None = None
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of a sink.

    ``up`` is None until the first request. ``since`` is the time of the last change of ``up``. ``request_seconds_*`` are
    quantiles of the latest requests; None before the first request, and for sinks that write through Spark.
    """

    sink: str
    type: str
    endpoint: str
    up: bool | None
    since: datetime
    last_error: ErrorStatus | None = None
    retries: int = 0
    request_seconds_p50: float | None = None
    request_seconds_p95: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An event. ``route`` is empty for an event of the service or of a sink."""

    at: datetime
    what: str
    route: str = ""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The status of the service.

    ``summary`` explains the state in one or more sentences. ``runtime`` has the versions of Spark, Delta and Java after
    their start. ``owner`` and ``state_path`` identify the service. ``standing_by`` is true while it waits for the lease.
    """

    version: str
    instance: str
    started_at: datetime
    uptime_seconds: float
    state: ServiceState
    summary: str
    runtime: dict[str, str]
    errors_last_hour: int = 0
    service: str = "cdf-replicator"
    owner: str | None = None
    state_path: str | None = None
    standing_by: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """The status of the service at one moment.

    Routes are sorted worst first, batches and events newest first, and configured settings before defaults.
    """

    at: datetime
    service: ServiceStatus
    routes: tuple[RouteStatus, ...]
    sinks: tuple[SinkStatus, ...]
    events: tuple[Event, ...]
    configuration: tuple[Setting, ...] = ()
    schema: int = 1


def unready_routes(status: Status) -> list[RouteStatus]:
    """Return the routes that keep the service from being ready: no query runs, or the sink has not answered.

    A paused route does not count, because an operator paused it.
    """
    answered = {sink.sink for sink in status.sinks if sink.up}
    return [
        route
        for route in status.routes
        if route.state != "paused" and (route.state != "running" or route.sink not in answered)
    ]


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (one | other)}
