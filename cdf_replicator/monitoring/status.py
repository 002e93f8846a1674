"""What the service is doing at one moment, as values: ``board`` takes them, the page and the metrics read them.

``Status`` is the JSON of ``/status``, the page and the ``status`` command; ``schema`` grows when a field changes its
meaning or goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from cdf_replicator.monitoring.metrics import Outcome, State
    from connectors.sink import Mode

ServiceState = Literal["starting", "healthy", "degraded", "failed", "stopping"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One micro-batch that ended. ``versions``: first and last commit in it. ``seconds``: by phase, without total."""

    batch_id: int
    versions: tuple[int, int] | None
    received: dict[str, int]
    seconds: dict[str, float]
    outcome: Outcome
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
    """Since the service started. ``received`` and ``applied``: by change type, ``rejected``: by the sink's code."""

    received: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    stale: int = 0
    noop: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def plus(self, batch: BatchStatus) -> Totals:
        """A batch that was not delivered comes again: only its reading counts."""
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
    """``condition``: the error's class or code, the same one each time it comes; ``next_step``: what to do or run."""

    what: str
    condition: str
    next_step: str
    first_seen: datetime
    last_seen: datetime
    count: int


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """A replay under way: versions, both inclusive; ``ratio``: how far, 0 to 1."""

    starting_version: int
    ending_version: int
    ratio: float
    since: datetime


@dataclass(frozen=True, slots=True)
class Definition:
    """What a route was configured to do. ``source``: path or catalog name. ``columns``: None means all."""

    source: str
    target: str
    mode: Mode
    keys: tuple[str, ...]
    filter: str | None
    columns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """``reason``: why it is in this state, where that needs saying. ``lag_*``: None until both ends are known.

    ``checkpoint``: where that of the present generation lies; empty before the first start.
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
    """``up``: None until it has been asked. ``since``: when that last changed.

    ``request_seconds_*``: of the latest requests; None before the first, and of sinks that speak through Spark.
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
    """``route``: empty where it concerns the service or a sink."""

    at: datetime
    what: str
    route: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value in force; ``value``: as text, secrets hidden. ``origin``: where it came from."""

    variable: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """``summary``: the state in plain words. ``runtime``: versions of Spark, Delta and Java once they run.

    ``owner``, ``state_path``: whose service it is. ``standing_by``: it waits for the lease.
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
    """One moment of the service. Routes worst first, batches and events newest first, settings that were given first."""

    at: datetime
    service: ServiceStatus
    routes: tuple[RouteStatus, ...]
    sinks: tuple[SinkStatus, ...]
    events: tuple[Event, ...]
    configuration: tuple[Setting, ...] = ()
    schema: int = 1


def waiting(status: Status) -> list[RouteStatus]:
    """The routes for which the service is not ready: no query runs, or the sink has not answered.

    A paused route waits for nobody: that is its operator's will.
    """
    answered = {sink.sink for sink in status.sinks if sink.up}
    return [
        route
        for route in status.routes
        if route.state != "paused" and (route.state != "running" or route.sink not in answered)
    ]


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (one | other)}
