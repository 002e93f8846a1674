"""Hold the present status of the service. Route threads write it; the HTTP server reads immutable snapshots.

A read never calls py4j, Delta or a sink, so a hung store can't block a probe. Texts of errors and events are kept without
credentials, which any library's message may contain, since the pages need no token to read by default.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator import __version__
from cdf_replicator.monitoring.health import service_health, severity
from cdf_replicator.monitoring.history import EventLog, History
from cdf_replicator.monitoring.status import AT_REST, ErrorStatus, Event, RouteStatus, ServiceStatus, SinkStatus, Status
from cdf_replicator.monitoring.totals import OTHER, ReloadStatus, Totals
from cdf_replicator.settings.redact import masked, reported_state_path, without_credentials
from cdf_replicator.spark.memory import JvmMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from cdf_replicator.monitoring.status import State
    from cdf_replicator.monitoring.totals import BatchStatus
    from cdf_replicator.settings.effective import Setting

BATCHES_KEPT: Final = 60
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
        self.events = EventLog()
        self._failed_at: deque[datetime] = deque(maxlen=ERRORS_KEPT)
        self._request_seconds: dict[str, deque[float]] = {}
        self._runtime: dict[str, str] = {}
        self._memory = JvmMemory()
        self.history = History()
        self._stopping = False
        self._holder: str | None = None
        self._configuration: tuple[Setting, ...] = ()
        self._reloads = ReloadStatus(self._started_at)
        self._identity: dict[str, str] = {}

    def belongs_to(self, owner: str, state_path: str) -> None:
        """Set the identity of the state path, by which a command recognises the service of its configuration."""
        with self._lock:
            self._identity = {"owner": owner, "state_path": reported_state_path(state_path)}

    @property
    def identity(self) -> dict[str, str]:
        """Return ``owner`` and ``state_path``; empty before the state path is opened."""
        with self._lock:
            return self._identity

    def add_route(self, route: str, table: str, sink: str, rejection_codes: Iterable[str] = ()) -> None:
        """Add a route. The known codes of its sink are counted from 0, so that an alert sees the first rejection."""
        totals = Totals(rejected=dict.fromkeys((*rejection_codes, OTHER), 0))
        with self._lock:
            self._routes[route] = RouteStatus(route, table, sink, state="starting", since=self._now(), totals=totals)

    def remove_route(self, route: str) -> None:
        with self._lock:
            sink = self._routes.pop(route).sink
            self._forget_failure(sink)

    def add_sink(self, sink: str, type_: str, endpoint: str) -> None:
        """Add a sink. A user and password in ``endpoint`` are removed."""
        with self._lock:
            self._sinks[sink] = SinkStatus(sink, type_, without_credentials(endpoint), up=None, since=self._now())
            self._request_seconds[sink] = deque(maxlen=REQUESTS_KEPT)

    def remove_sink(self, sink: str) -> None:
        with self._lock:
            del self._sinks[sink], self._request_seconds[sink]

    def runtime(self, **versions: str) -> None:
        """Set the versions of ``spark``, ``delta`` and ``java``."""
        with self._lock:
            self._runtime = versions

    def jvm_memory(self, memory: JvmMemory) -> None:
        with self._lock:
            self._memory = memory

    def set_settings(self, settings: Iterable[Setting]) -> None:
        """Set the effective settings, without secrets."""
        with self._lock:
            self._configuration = tuple(settings)

    def reloaded(self, *, successful: bool) -> None:
        with self._lock:
            self._reloads = self._reloads.after(self._now(), successful=successful)

    def event(self, what: str, route: str = "") -> None:
        with self._lock:
            self.events.add(Event(self._now(), masked(what), route))

    def set_standby(self, holder: str | None) -> None:
        """Set the holder of the lease that this instance waits for; None when this instance holds the lease."""
        with self._lock:
            self._holder = holder
            if holder is not None:
                self.events.add(Event(self._now(), f"standby: another instance holds the lease ({holder})"))

    def stopping(self) -> None:
        """Record that the service received SIGTERM."""
        with self._lock:
            self._stopping = True
            self.events.add(Event(self._now(), "stopping after the running micro-batches finish"))

    def update(self, route: str, **fields: Any) -> None:
        """Set fields of a route's ``RouteStatus``."""
        with self._lock:
            self._routes[route] = replace(self._routes[route], **fields)

    def state(self, route: str, state: State, reason: str = "") -> None:
        """Set a route's state and reason. A change of state adds an event."""
        with self._lock:
            was, reason = self._routes[route], masked(reason)
            now = replace(was, state=state, reason=reason)
            if state in AT_REST:
                now = replace(now, input_rows_per_second=0.0, processed_rows_per_second=0.0)
            if was.state != state:
                now = replace(now, since=self._now())
                what = f"{was.state} → {state}" + (f": {reason}" if reason else "")
                self.events.add(Event(now.since, what, route))
            self._routes[route] = now
            if state == "paused":
                self._forget_failure(now.sink)

    def _forget_failure(self, sink: str) -> None:
        """Set a sink that was down to unknown if all of its routes are paused: no request finds that it answers again."""
        was = self._sinks.get(sink)
        paused = all(route.state == "paused" for route in self._routes.values() if route.sink == sink)
        if was is not None and was.up is False and paused:
            self._sinks[sink] = replace(was, up=None, since=self._now())

    def replay(self, route: str, starting: int, ending: int, ratio: float) -> None:
        """Set the progress of a replay. Ratio 1 ends it."""
        with self._lock:
            self._routes[route] = self._routes[route].with_replay(starting, ending, ratio, self._now())

    def batch(self, route: str, batch: BatchStatus) -> None:
        """Record a micro-batch that ended and add its counts to the totals."""
        with self._lock:
            was = self._routes[route]
            batches = (batch, *was.batches[: BATCHES_KEPT - 1])
            at = batch.at if batch.outcome == "delivered" else was.last_delivery_at
            self._routes[route] = replace(
                was, batches=batches, totals=was.totals.plus_batch(batch), last_delivery_at=at
            )

    def failed(self, route: str, what: str, condition: str, next_step: str) -> None:
        """Record an error of a route. A repetition of the same ``condition`` increases its count."""
        with self._lock:
            was = self._routes[route]
            error = ErrorStatus.after(was.last_error, masked(what), condition, masked(next_step), self._now())
            self._routes[route] = replace(was, last_error=error)
            self._failed_at.append(error.last_seen)

    def restarted(self, route: str, reason: str) -> None:
        """Count a restart by the reason of its error (``conditions``), or ``request`` for an operator command."""
        with self._lock:
            was = self._routes[route]
            self._routes[route] = replace(was, totals=was.totals.plus_restart(reason))

    def requests(self, route: str, seconds: Collection[float], retries: Mapping[str, int], sent_bytes: int) -> None:
        """Record requests to a route's sink: their durations, the retries by reason and the number of sent bytes."""
        with self._lock:
            was = self._routes[route]
            self._routes[route] = replace(was, totals=was.totals.plus_retries(retries))
            sink = self._sinks[was.sink]
            retried, sent = sink.retries + sum(retries.values()), sink.sent_bytes + sent_bytes
            self._sinks[was.sink] = replace(sink, retries=retried, sent_bytes=sent)
            self._request_seconds[was.sink].extend(seconds)

    def sink_up(self, sink: str) -> None:
        """Record that a sink answered. If it was down, this adds an event."""
        with self._lock:
            was = self._sinks[sink]
            if was.up:
                return
            self._sinks[sink] = replace(was, up=True, since=self._now())
            if was.up is False:
                self.events.add(Event(self._now(), f"sink {sink} answers again"))

    def sink_down(self, sink: str, what: str, condition: str, next_step: str = "") -> None:
        """Record that a sink did not answer or refused access. If it was not down before, this adds an event."""
        with self._lock:
            was, now, what = self._sinks[sink], self._now(), masked(what)
            error = ErrorStatus.after(was.last_error, what, condition, masked(next_step), now)
            since = was.since if was.up is False else now
            self._sinks[sink] = replace(was, up=False, since=since, last_error=error)
            if was.up is not False:
                self.events.add(Event(now, f"sink {sink} is down: {what}"))

    def snapshot(self) -> Status:
        """Return the present status. Lag in seconds is computed here, so that it grows while nothing is delivered."""
        with self._lock:
            now = self._now()
            routes = tuple(route.with_lag(now) for route in self._routes.values())
            sinks = tuple(self._sinks.values())
            request_seconds = {sink: tuple(seconds) for sink, seconds in self._request_seconds.items()}
            events, configuration, identity = self.events.newest(), self._configuration, self._identity
            memory, reloads, runtime = self._memory, self._reloads, self._runtime
            stopping, holder, failed_at = self._stopping, self._holder, tuple(self._failed_at)
        state, summary = service_health(routes, sinks, stopping=stopping, holder=holder)
        service = ServiceStatus(
            version=__version__,
            instance=socket.gethostname(),
            started_at=self._started_at,
            uptime_seconds=(now - self._started_at).total_seconds(),
            state=state,
            summary=summary,
            runtime=runtime,
            reloads=reloads,
            jvm_memory=memory,
            errors_last_hour=sum(now - at < HOUR for at in failed_at),
            standing_by=holder is not None,
            **identity,
        )
        sinks = tuple(sink.with_request_times(request_seconds[sink.sink]) for sink in sinks)
        return Status(now, service, tuple(sorted(routes, key=severity)), sinks, events, configuration)
