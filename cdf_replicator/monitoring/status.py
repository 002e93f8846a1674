"""Define the status of the service as immutable values, which ``status_store`` creates and ``/status`` returns.

``Status`` is the JSON of ``/status`` and the input of the page and of the ``status`` command. ``schema`` increases when
a field is removed or changes its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from cdf_replicator.monitoring.totals import Totals
from cdf_replicator.spark.memory import JvmMemory

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from cdf_replicator.monitoring.totals import BatchStatus, ReloadStatus
    from cdf_replicator.settings.effective import Setting
    from connectors.sink import Mode

State = Literal["starting", "bootstrapping", "running", "retrying", "stalled", "paused", "halted", "stopped"]
STATES: Final[tuple[State, ...]] = get_args(State)
AT_REST: Final[tuple[State, ...]] = ("paused", "halted", "stopped")  # no query runs
ServiceState = Literal["starting", "healthy", "degraded", "failed", "stopping"]


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

    @classmethod
    def after(cls, last: ErrorStatus | None, what: str, condition: str, next_step: str, now: datetime) -> ErrorStatus:
        """Return the error that follows ``last``. The same condition again is a repetition and increases the count."""
        if last is not None and last.condition == condition:
            return replace(last, what=what, next_step=next_step, last_seen=now, count=last.count + 1)
        return cls(what, condition, next_step, first_seen=now, last_seen=now, count=1)


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
class VerificationStatus:
    """The last comparison of a route's target with its source table, beside the stream.

    ``version`` is the compared version of the table, ``left_out`` the number of keys that changed meanwhile and were left
    out, ``differences`` the number of different entries by kind.
    """

    version: int
    at: datetime
    seconds: float
    left_out: int
    differences: dict[str, int]


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """The status of a route.

    ``reason`` explains the state where needed. ``lag_*`` is None until the source version and the delivered version are
    known. ``lag_seconds`` is also None while the newest snapshot is loaded. ``checkpoint`` is the folder of the present generation's checkpoint; empty before the first start.
    ``bootstrap_progress`` is the ratio of the last load of a snapshot; 0 if there was none.
    ``replay_progress`` is that of the last replay; 0 if there was none or it failed. ``verify_deadline`` is the time
    at which no comparison has ended for two periods; None if the service compares the route with no period.
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
    restarts: int = field(init=False)
    replay: ReplayStatus | None = None
    bootstrap_progress: float = 0.0
    replay_progress: float = 0.0
    definition: Definition | None = None
    checkpoint: str = ""
    verification: VerificationStatus | None = None
    verify_deadline: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "restarts", sum(self.totals.restarts.values()))

    @property
    def is_undisturbed(self) -> bool:
        """Return whether the route follows its table, without a replay, and has delivered a version."""
        delivered = self.delivered_version
        return self.state == "running" and self.replay is None and delivered is not None and delivered >= 0

    def with_replay(self, starting: int, ending: int, ratio: float, now: datetime) -> RouteStatus:
        """Return the status with the progress of a replay. Ratio 1 ends it."""
        since = self.replay.since if self.replay else now
        replay = ReplayStatus(starting, ending, ratio, since) if ratio < 1 else None
        return replace(self, replay=replay, replay_progress=ratio)

    def with_lag(self, now: datetime) -> RouteStatus:
        """Return the status with the lag at ``now``, which grows while nothing is delivered."""
        if self.source_version is None or self.delivered_version is None:
            return self
        versions = max(0, self.source_version - self.delivered_version)
        oldest = self.oldest_undelivered_commit_at
        age = None if oldest is None else max(0.0, (now - oldest).total_seconds())
        return replace(self, lag_versions=versions, lag_seconds=age if versions else 0.0)


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of a sink.

    ``up`` is None until the first request, and after a failure if all routes of the sink are paused. ``since`` is the time of the last change of ``up``. ``request_seconds_*`` are
    quantiles of the latest requests; None before the first request, and for sinks that write through Spark.
    """

    sink: str
    type: str
    endpoint: str
    up: bool | None
    since: datetime
    last_error: ErrorStatus | None = None
    retries: int = 0
    sent_bytes: int = 0
    request_seconds_p50: float | None = None
    request_seconds_p95: float | None = None

    def with_request_times(self, seconds: Collection[float]) -> SinkStatus:
        """Return the status with the quantiles of request durations."""
        if not seconds:
            return self
        ordered, last = sorted(seconds), len(seconds) - 1
        p50, p95 = ordered[round(0.5 * last)], ordered[round(0.95 * last)]
        return replace(self, request_seconds_p50=p50, request_seconds_p95=p95)


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
    their start. ``jvm_memory`` is a sample of the last seconds. ``owner`` and
    ``state_path`` identify the service. ``standing_by`` is true while it waits for the lease.
    """

    version: str
    instance: str
    started_at: datetime
    uptime_seconds: float
    state: ServiceState
    summary: str
    runtime: dict[str, str]
    reloads: ReloadStatus
    jvm_memory: JvmMemory = field(default_factory=JvmMemory)
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
