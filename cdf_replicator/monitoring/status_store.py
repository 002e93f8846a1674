"""Hold the present status of the service. Route threads write it; the HTTP server reads immutable snapshots.

A read never calls py4j, Delta or a sink, so a hung store can't block a probe.
"""

from __future__ import annotations

import re
import socket
from collections import deque
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator import __version__
from cdf_replicator.monitoring.health import service_health, severity
from cdf_replicator.monitoring.metrics import AT_REST
from cdf_replicator.monitoring.status import ErrorStatus, Event, RouteStatus, ServiceStatus, SinkStatus, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cdf_replicator.monitoring.metrics import State
    from cdf_replicator.monitoring.status import BatchStatus, Definition, ReplayStatus
    from cdf_replicator.settings.effective import Setting

BATCHES_KEPT: Final = 60
EVENTS_KEPT: Final = 100
ERRORS_KEPT: Final = 10_000
"""Maximum number of error times in memory, and therefore the maximum of ``errors_last_hour``."""
REQUESTS_KEPT: Final = 1000
"""Number of latest request durations per sink, from which the quantiles are computed."""
HOUR: Final = timedelta(hours=1)


class StatusStore:
    """The present status of the service. Any thread may call any method. An unknown name raises ``KeyError``."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._now = now
        self._started_at = now()
        self._lock = Lock()
        self._routes: dict[str, RouteStatus] = {}
        self._sinks: dict[str, SinkStatus] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._failed_at: deque[datetime] = deque(maxlen=ERRORS_KEPT)
        self._request_seconds: dict[str, deque[float]] = {}
        self._runtime: dict[str, str] = {}
        self._stopping = False
        self._holder: str | None = None
        self._configuration: tuple[Setting, ...] = ()
        self._identity: dict[str, str] = {}

    def belongs_to(self, owner: str, state_path: str) -> None:
        """Set the identity of the state path, by which a command recognises the service of its configuration."""
        with self._lock:
            self._identity = {"owner": owner, "state_path": without_credentials(state_path).rstrip("/")}

    @property
    def identity(self) -> dict[str, str]:
        """Return ``owner`` and ``state_path``; empty before the state path is opened."""
        with self._lock:
            return self._identity

    def add_route(self, route: str, table: str, sink: str) -> None:
        with self._lock:
            self._routes[route] = RouteStatus(route, table, sink, state="starting", since=self._now())

    def add_sink(self, sink: str, type_: str, endpoint: str) -> None:
        """Add a sink. A user and password in ``endpoint`` are removed."""
        with self._lock:
            self._sinks[sink] = SinkStatus(sink, type_, without_credentials(endpoint), up=None, since=self._now())
            self._request_seconds[sink] = deque(maxlen=REQUESTS_KEPT)

    def set_definition(self, route: str, definition: Definition) -> None:
        """Set the configuration of a route."""
        self._set(route, definition=definition)

    def runtime(self, **versions: str) -> None:
        """Set the versions of ``spark``, ``delta`` and ``java``."""
        with self._lock:
            self._runtime = versions

    def set_settings(self, settings: Iterable[Setting]) -> None:
        """Set the effective settings, without secrets."""
        with self._lock:
            self._configuration = tuple(settings)

    def event(self, what: str, route: str = "") -> None:
        with self._lock:
            self._events.appendleft(Event(self._now(), what, route))

    def set_standby(self, holder: str | None) -> None:
        """Set the holder of the lease that this instance waits for; None when this instance holds the lease."""
        with self._lock:
            self._holder = holder
            if holder is not None:
                self._events.appendleft(Event(self._now(), f"standby: another instance holds the lease ({holder})"))

    def stopping(self) -> None:
        """Record that the service received SIGTERM."""
        with self._lock:
            self._stopping = True
            self._events.appendleft(Event(self._now(), "stopping after the running micro-batches finish"))

    def state(self, route: str, state: State, reason: str = "") -> None:
        """Set a route's state and reason. A change of state adds an event."""
        with self._lock:
            was = self._routes[route]
            if was.state == state:
                self._routes[route] = replace(was, reason=reason)
                return
            now = replace(was, state=state, since=self._now(), reason=reason)
            if state in AT_REST:
                now = replace(now, input_rows_per_second=0.0, processed_rows_per_second=0.0)
            self._routes[route] = now
            what = f"{was.state} → {state}" + (f": {reason}" if reason else "")
            self._events.appendleft(Event(now.since, what, route))

    def source(self, route: str, version: int, oldest_undelivered_commit_at: datetime | None) -> None:
        """Set the newest version of the source table.

        Args:
            route: Name of the route.
            version: Newest commit version.
            oldest_undelivered_commit_at: Time of the oldest undelivered commit; None if all commits are delivered.
        """
        self._set(route, source_version=version, oldest_undelivered_commit_at=oldest_undelivered_commit_at)

    def delivered(self, route: str, version: int) -> None:
        """Set the version up to and including which all changes are in the sink."""
        self._set(route, delivered_version=version)

    def position(self, route: str, generation: int, epoch: int, checkpoint: str) -> None:
        """Set the generation, the epoch and the folder of the generation's checkpoint."""
        self._set(route, generation=generation, epoch=epoch, checkpoint=checkpoint)

    def headroom(self, route: str, seconds: float | None, versions: int | None) -> None:
        """Set the headroom; None if it is not known or unlimited."""
        self._set(route, headroom_seconds=seconds, headroom_versions=versions)

    def rates(self, route: str, input_rows: float, processed_rows: float) -> None:
        """Set the rows per second as reported by Spark."""
        self._set(route, input_rows_per_second=input_rows, processed_rows_per_second=processed_rows)

    def dead_letters(self, route: str, count: int) -> None:
        """Set the number of open dead letters."""
        self._set(route, dead_letters=count)

    def replay(self, route: str, replay: ReplayStatus | None) -> None:
        """Set the progress of the replay; None when it has ended."""
        self._set(route, replay=replay)

    def batch(self, route: str, batch: BatchStatus) -> None:
        """Record a micro-batch that ended and add its counts to the totals."""
        with self._lock:
            was = self._routes[route]
            self._routes[route] = replace(
                was,
                batches=(batch, *was.batches[: BATCHES_KEPT - 1]),
                totals=was.totals.plus(batch),
                last_delivery_at=batch.at if batch.outcome == "delivered" else was.last_delivery_at,
            )

    def failed(self, route: str, what: str, condition: str, next_step: str) -> None:
        """Record an error of a route. A repetition of the same ``condition`` increases its count."""
        with self._lock:
            was = self._routes[route]
            error = _count_error(was.last_error, what, condition, next_step, self._now())
            self._routes[route] = replace(was, last_error=error)
            self._failed_at.append(error.last_seen)

    def restarted(self, route: str) -> None:
        with self._lock:
            was = self._routes[route]
            self._routes[route] = replace(was, restarts=was.restarts + 1)

    def requests(self, sink: str, seconds: Iterable[float], retries: int) -> None:
        """Record the durations of requests to a sink in seconds, and the number of retries."""
        with self._lock:
            was = self._sinks[sink]
            self._sinks[sink] = replace(was, retries=was.retries + retries)
            self._request_seconds[sink].extend(seconds)

    def sink_up(self, sink: str) -> None:
        """Record that a sink answered. If it was down, this adds an event."""
        with self._lock:
            was = self._sinks[sink]
            if was.up:
                return
            self._sinks[sink] = replace(was, up=True, since=self._now())
            if was.up is False:
                self._events.appendleft(Event(self._now(), f"sink {sink} answers again"))

    def sink_down(self, sink: str, what: str, condition: str, next_step: str = "") -> None:
        """Record that a sink did not answer or refused access. If it was not down before, this adds an event."""
        with self._lock:
            was, now = self._sinks[sink], self._now()
            error = _count_error(was.last_error, what, condition, next_step, now)
            since = was.since if was.up is False else now
            self._sinks[sink] = replace(was, up=False, since=since, last_error=error)
            if was.up is not False:
                self._events.appendleft(Event(now, f"sink {sink} is down: {what}"))

    def snapshot(self) -> Status:
        """Return the present status. Lag in seconds is computed here, so that it grows while nothing is delivered."""
        with self._lock:
            routes, sinks = tuple(self._routes.values()), tuple(self._sinks.values())
            events, runtime, stopping, holder = tuple(self._events), self._runtime, self._stopping, self._holder
            failed_at = tuple(self._failed_at)
            took = {sink: list(seconds) for sink, seconds in self._request_seconds.items()}
        now = self._now()
        state, sentence = service_health(routes, sinks, stopping=stopping, holder=holder)
        service = ServiceStatus(
            version=__version__,
            instance=socket.gethostname(),
            started_at=self._started_at,
            uptime_seconds=(now - self._started_at).total_seconds(),
            state=state,
            summary=sentence,
            runtime=runtime,
            errors_last_hour=sum(now - at < HOUR for at in failed_at),
            standing_by=holder is not None,
            **self.identity,
        )
        worst_first = tuple(sorted((_with_lag(route, now) for route in routes), key=severity))
        with_times = tuple(_with_times(sink, took[sink.sink]) for sink in sinks)
        return Status(now, service, worst_first, with_times, events, self._configuration)

    def _set(self, route: str, **fields: Any) -> None:
        with self._lock:
            self._routes[route] = replace(self._routes[route], **fields)


def without_credentials(endpoint: str) -> str:
    """Remove user and password from a URL: ``redis://u:p@cache`` -> ``redis://cache``.

    A container before an @ (``abfss://``) stays.
    """
    return re.sub(r"//[^/\s]*:[^/\s]*@", "//", endpoint)


def _with_lag(route: RouteStatus, now: datetime) -> RouteStatus:
    if route.source_version is None or route.delivered_version is None:
        versions = None
    else:
        versions = max(0, route.source_version - route.delivered_version)
    oldest = route.oldest_undelivered_commit_at
    if versions == 0:
        seconds: float | None = 0.0
    elif oldest is None:
        seconds = None
    else:
        seconds = max(0.0, (now - oldest).total_seconds())
    return replace(route, lag_versions=versions, lag_seconds=seconds)


def _with_times(sink: SinkStatus, seconds: list[float]) -> SinkStatus:
    """Return the sink's status with the quantiles of its latest request durations."""
    if not seconds:
        return sink
    ordered, last = sorted(seconds), len(seconds) - 1
    p50, p95 = ordered[round(0.5 * last)], ordered[round(0.95 * last)]
    return replace(sink, request_seconds_p50=p50, request_seconds_p95=p95)


def _count_error(last: ErrorStatus | None, what: str, condition: str, next_step: str, now: datetime) -> ErrorStatus:
    if last is not None and last.condition == condition:
        return replace(last, what=what, next_step=next_step, last_seen=now, count=last.count + 1)
    return ErrorStatus(what, condition, next_step, first_seen=now, last_seen=now, count=1)
