"""Compare the target of each route with its source table periodically, beside the streams.

One comparison runs at a time. It reads with one task, in a scheduler pool of weight 0, so that a stream waits for at most
one core. It has its own sink, and never halts or restarts a route.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.monitoring.status import VerificationStatus
from cdf_replicator.monitoring.totals import DIFFERENCES
from cdf_replicator.spark.session import is_jvm_exit
from cdf_replicator.state.store import write_json
from cdf_replicator.verification.verify import verify
from connectors import Verifiable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.status import RouteStatus
    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore
    from cdf_replicator.verification.result import Verification
    from connectors import Sink

log = structlog.get_logger(__name__)

POOL: Final = "cdf-verify"
"""Name of the scheduler pool (``spark/conf/fairscheduler.xml``) and of the job group."""
POLL_SECONDS: Final = 0.2
FEWEST_CORES: Final = 2
"""With one core, a stream would wait until the whole target is read."""
REQUEST: Final = "request"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The time at which each route's comparison is due, in epoch seconds.

    Args:
        period: Seconds between two comparisons of a route.
        due: Time by route.
    """

    period: float
    due: dict[str, float]

    @classmethod
    def spread(cls, period: float, now: float, compared: Mapping[str, float | None]) -> Schedule:
        """Return the schedule after a start: routes that were never compared are spread over the first period.

        ``compared`` has the time of each route's last comparison.
        """
        never = [name for name, at in compared.items() if at is None]
        due = {name: now + period * place / len(never) for place, name in enumerate(never)}
        return cls(period, due | {name: at + period for name, at in compared.items() if at is not None})

    def first_due(self, now: float, ready: Collection[str]) -> str | None:
        """Return the route of ``ready`` that has been due for the longest time; None if none is due."""
        due = [name for name in ready if self.due[name] <= now]
        return min(due, key=lambda name: self.due[name], default=None)

    def postpone(self, name: str, now: float) -> None:
        """Make a route due a period after ``now``."""
        self.due[name] = now + self.period


class BackgroundVerifier:
    """Compares the verifiable routes of a service, in the thread that calls ``run``."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        state_store: StateStore,
        board: StatusStore,
        routes: Collection[Route],
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._state_store = state_store
        self._board = board
        self._routes = {route.name: route for route in routes if self._is_verifiable(route)}
        assert settings.verify.every_hours is not None  # else nothing creates this object
        self._period = 3600 * settings.verify.every_hours
        self._requests: dict[str, int] = {}
        """The operator's commands on each route whose target differed, by their number at that time."""

    def _is_verifiable(self, route: Route) -> bool:
        return isinstance(self._settings.sink(route.sink), Verifiable) and not route.filter_is_joined

    def run(self, over: threading.Event) -> None:
        """Compare each route when it is due, until ``over`` is set."""
        if self._spark.sparkContext.defaultParallelism < FEWEST_CORES:
            self._warn("", f"targets are not compared: that needs {FEWEST_CORES} cores (CDF_SPARK__MASTER)")
            return
        schedule = self._restored(time.time())
        while not over.wait(POLL_SECONDS):
            try:
                self._compare_first_due(schedule, over)
            except OSError as error:
                log.warning("result of a comparison not stored", reason=error.strerror)
            except Exception as error:
                if not is_jvm_exit(self._spark, error):  # else the main loop reports it and ends the service
                    log.exception("comparison beside the streams")

    def _restored(self, now: float) -> Schedule:
        """Publish the results of the last run of the service, and return the schedule that follows from them."""
        last = {name: self._last(name) for name in self._routes}
        compared = {name: found.at.timestamp() if found else None for name, found in last.items()}
        for name, found in last.items():
            self._publish(name, found, compared[name] or now)
        return Schedule.spread(self._period, now, compared)

    def _last(self, name: str) -> VerificationStatus | None:
        """Return the stored result of a route; None if there is none or it can't be read."""
        try:
            stored = json.loads(self._state_store.verified_file(name).read_text(encoding="utf-8"))
            return VerificationStatus(**{**stored, "at": datetime.fromisoformat(stored["at"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _publish(self, name: str, found: VerificationStatus | None, compared_at: float, requests: int = 0) -> None:
        deadline = datetime.fromtimestamp(compared_at, timezone.utc) + timedelta(seconds=2 * self._period)
        self._board.update(name, verification=found, verify_deadline=deadline)
        self._requests.pop(name, None)
        if found and any(found.differences.values()):
            self._requests[name] = requests

    def _compare_first_due(self, schedule: Schedule, over: threading.Event) -> None:
        ready = {route.route: route for route in self._board.snapshot().routes if self._is_ready(route)}
        for differing, requests in self._requests.items():
            if differing in ready and ready[differing].totals.restarts[REQUEST] != requests:
                schedule.due[differing] = -math.inf  # a command may have corrected the target
        name = schedule.first_due(time.time(), ready)
        if name is None:
            return
        outcome = self._outcome(ready[name], over)
        if outcome is None:
            return
        schedule.postpone(name, time.time())
        if isinstance(outcome, Exception):
            self._requests.pop(name, None)
            self._warn(name, f"verify failed, next comparison in a period: {_message(name, outcome)}")
        else:
            self._report(outcome, ready[name].totals.restarts[REQUEST])

    def _is_ready(self, route: RouteStatus) -> bool:
        return route.route in self._routes and is_undisturbed(route)

    def _outcome(self, before: RouteStatus, over: threading.Event) -> Verification | Exception | None:
        """Compare a route; return None if the service stopped, or the route's stream stopped or restarted meanwhile."""
        route = self._routes[before.route]
        work = _Work(self._spark, route, self._settings.sink(route.sink), self._state_store)
        work.start()
        disturbed = False
        while work.is_alive():
            work.join(POLL_SECONDS)
            rows = self._board.snapshot().routes  # a reload may remove the row of this route
            continues = any(
                now.route == before.route and is_undisturbed(now) and now.restarts == before.restarts for now in rows
            )
            disturbed = disturbed or over.is_set() or not continues
            if disturbed:
                self._spark.sparkContext.cancelJobGroup(POOL)
        return None if disturbed else work.outcome

    def _report(self, outcome: Verification, requests: int) -> None:
        counts = {kind: outcome.comparison.kinds.get(kind, 0) for kind in DIFFERENCES}
        at = datetime.now(timezone.utc)
        found = VerificationStatus(outcome.version, at, outcome.seconds, outcome.changed, counts)
        self._publish(outcome.route, found, at.timestamp(), requests)
        if not outcome.comparison.equal:
            texts = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
            where = f"target differs from version {outcome.version} of the table ({texts})"
            self._warn(outcome.route, f"{where}. Run: cdf-replicator verify {outcome.route}")
        log.info("verified", route=outcome.route, version=outcome.version, seconds=round(outcome.seconds, 1))
        write_json(self._state_store.verified_file(outcome.route), {**asdict(found), "at": at.isoformat()})

    def _warn(self, name: str, what: str) -> None:
        self._board.event(what, name)
        log.warning(what, route=name or None)


class _Work(threading.Thread):
    """A comparison in a thread of its own, so that the thread that waits for it can cancel its jobs.

    ``outcome`` is its result or its error, after the end of the thread.
    """

    def __init__(self, spark: SparkSession, route: Route, sink: Sink, state_store: StateStore) -> None:
        super().__init__(name=f"verify-{route.name}", daemon=True)
        self.outcome: Verification | Exception | None = None
        self._given = (spark, route, sink, state_store)

    def run(self) -> None:
        context = self._given[0].sparkContext
        try:
            context.setJobGroup(POOL, self.name, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", POOL)
            self.outcome = verify(*self._given, limit=0, gently=True)
        except Exception as error:  # noqa: BLE001 - a failed comparison must not halt a route
            self.outcome = error


def is_undisturbed(route: RouteStatus) -> bool:
    """Return whether a route follows its table, without a replay, and has delivered a version."""
    delivered = route.delivered_version
    return route.state == "running" and route.replay is None and delivered is not None and delivered >= 0


def _message(name: str, error: Exception) -> str:
    return classify_error(error, route=name).message
