"""Compare the target of each route with its source table, periodically or on request, beside the streams.

One comparison runs at a time. It reads with one task, in a scheduler pool of weight 0, and pauses for most of the time unless
an operator waits for it. It has its own sink, and never halts or restarts a route.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.monitoring.status import VerificationStatus
from cdf_replicator.monitoring.totals import DIFFERENCES
from cdf_replicator.spark.jobs import TaggedJobs, tagged
from cdf_replicator.spark.session import is_spark_exit
from cdf_replicator.state.command_queue import CommandStatus
from cdf_replicator.state.store import write_json
from cdf_replicator.verification.requests import kinds, progress, result
from cdf_replicator.verification.result import Verification
from cdf_replicator.verification.schedule import Schedule, restored
from cdf_replicator.verification.verify import verify
from connectors import Verifiable
from connectors.view import PACED

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.status import RouteStatus
    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore
    from cdf_replicator.verification.requests import ComparisonRequest, ComparisonRequests
    from connectors import Sink

log = structlog.get_logger(__name__)

POOL: Final = "cdf-verify"
"""Name of the scheduler pool (``spark/conf/fairscheduler.xml``) and of the job group."""
POLL_SECONDS: Final = 0.2
FEWEST_CORES: Final = 2
"""With one core, a stream would wait until the whole target is read."""
CORES: Final = f"that needs {FEWEST_CORES} cores (CDF_SPARK__MASTER)"
REQUEST: Final = "request"
NOT_READY: Final = "The target is compared while the route runs, without a replay."


class BackgroundVerifier:
    """Compares the targets of a service's routes, in the thread that calls ``run``.

    The configuration may have a period, for the routes whose entries can be read back. An operator may request any route.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        state_store: StateStore,
        board: StatusStore,
        routes: Collection[Route],
        requests: ComparisonRequests,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._state_store = state_store
        self._board = board
        self._routes = {route.name: route for route in routes}
        hours = settings.verify.every_hours
        self._period = None if hours is None else 3600 * hours
        self._requests = requests
        self._differing: dict[str, int] = {}
        """The operator's commands on each route whose target differed, by their number at that time."""

    def _is_periodic(self, route: Route) -> bool:
        verifiable = isinstance(self._settings.sink(route.sink), Verifiable) and not route.filter_is_joined
        return self._period is not None and verifiable

    def run(self, over: threading.Event) -> None:
        """Compare each route when it is due or requested, until ``over`` is set."""
        few = self._spark.sparkContext.defaultParallelism < FEWEST_CORES
        if few and self._period is not None:
            self._warn("", f"targets are not compared: {CORES}")
            self._period = None
        schedule = self._restored(time.time())
        while not over.wait(POLL_SECONDS):
            try:
                if (request := self._requests.present) is not None:
                    self._compare_requested(request, schedule, over, CORES if few else "")
                elif schedule.due or self._differing:
                    self._compare_first_due(schedule, over)
            except OSError as error:
                log.warning("result of a comparison not stored", reason=error.strerror)
            except Exception as error:
                if not is_spark_exit(self._spark, error):  # else the main loop reports it and ends the service
                    log.exception("comparison beside the streams")

    def _restored(self, now: float) -> Schedule:
        """Publish the periodic results of the last run of the service, and return the schedule that follows from them.

        A result on request ends with the row of its route.
        """
        periodic = [name for name, route in self._routes.items() if self._is_periodic(route)]
        last = {name: restored(self._state_store.verified_file(name), now) for name in periodic}
        for name, (found, at) in last.items():
            self._publish(name, found, at)
        for row in self._board.snapshot().routes:
            if row.route in self._routes and row.route not in last:
                self._remember(row.route, row.verification, row.totals.restarts[REQUEST])
        compared = {name: at for name, (found, at) in last.items() if found}
        scheduled = {name: at for name, (found, at) in last.items() if not found}
        return Schedule.spread(self._period or 0.0, compared, scheduled)

    def _publish(
        self, name: str, found: VerificationStatus | None, compared_at: float | None, commands: int = 0
    ) -> None:
        """Publish a result; ``compared_at`` is the time from which the next comparison is due, None if it never is."""
        deadline = None
        if compared_at is not None and self._period is not None:
            deadline = datetime.fromtimestamp(compared_at, timezone.utc) + timedelta(seconds=2 * self._period)
        self._board.update(name, verification=found, verify_deadline=deadline)
        self._remember(name, found, commands)

    def _remember(self, name: str, found: VerificationStatus | None, commands: int) -> None:
        self._differing.pop(name, None)
        if found and any(found.differences.values()):
            self._differing[name] = commands

    def _compare_first_due(self, schedule: Schedule, over: threading.Event) -> None:
        ready = {now.route: now for now in self._board.snapshot().routes if self._is_ready(now)}
        corrected = (  # a command may have corrected the target
            name
            for name, commands in self._differing.items()
            if name in ready and ready[name].totals.restarts[REQUEST] != commands
        )
        name = next(corrected, None) or schedule.first_due(time.time(), ready)
        outcome = None if name is None else self._outcome(ready[name], over, None)
        if name is None or outcome is None:
            return
        schedule.postpone(name, time.time())
        if isinstance(outcome, Exception):
            self._differing.pop(name, None)
            reason = classify_error(outcome, route=name).message
            self._warn(name, f"verify failed, next comparison in a period: {reason}")
        else:
            self._report(outcome, ready[name])

    def _compare_requested(
        self, request: ComparisonRequest, schedule: Schedule, over: threading.Event, refusal: str
    ) -> None:
        """Compare the target of a requested route and answer; with ``refusal``, answer that alone."""
        answer = CommandStatus("failed", "The comparison failed; see the log.")
        try:
            before = next((now for now in self._board.snapshot().routes if now.route == request.route), None)
            if refusal or before is None or not self._is_ready(before):
                answer = CommandStatus("failed", refusal or NOT_READY)
                return
            outcome = self._outcome(before, over, request)
            answer = result(request, outcome)
            if isinstance(outcome, Verification):
                schedule.postpone(request.route, time.time())
                self._report(outcome, before)
        finally:
            self._requests.answer(request, answer)

    def _is_ready(self, route: RouteStatus) -> bool:
        return route.route in self._routes and route.is_undisturbed

    def _outcome(
        self, before: RouteStatus, over: threading.Event, request: ComparisonRequest | None
    ) -> Verification | Exception | None:
        """Compare a route; return None if the service stopped, or the route's stream stopped or restarted meanwhile.

        An operator's ``request`` gets the progress. It takes the place of a periodic comparison, which begins again later.
        """
        route = self._routes[before.route]
        work = _Work(self._spark, route, self._settings.sink(route.sink), self._state_store, paced=request is None)
        work.start()
        began, disturbed = time.monotonic(), False
        while work.is_alive():
            work.join(POLL_SECONDS)
            rows = self._board.snapshot().routes  # a reload may remove the row of this route
            continues = any(
                now.route == before.route and now.is_undisturbed and now.restarts == before.restarts for now in rows
            )
            disturbed = disturbed or over.is_set() or not continues or self._requests.present != request
            if disturbed:
                self._spark.sparkContext.cancelJobGroup(POOL)
                if request is not None:  # at once, since a request to a sink can't be cancelled
                    self._requests.answer(request, result(request, None))
            elif request is not None:
                seconds = time.monotonic() - began
                self._requests.answer(request, progress(work.jobs.rows_read(), seconds, before.verification))
        return None if disturbed else work.outcome

    def _report(self, outcome: Verification, before: RouteStatus) -> None:
        counts = {kind: outcome.comparison.kinds.get(kind, 0) for kind in DIFFERENCES}
        at = datetime.now(timezone.utc)
        found = VerificationStatus(outcome.version, at, outcome.seconds, outcome.changed, counts)
        due_from = None if before.verify_deadline is None else at.timestamp()
        self._publish(outcome.route, found, due_from, before.totals.restarts[REQUEST])
        if not outcome.comparison.equal:
            where = f"target differs from version {outcome.version} of the table ({kinds(counts)})"
            self._warn(outcome.route, f"{where}. Run: cdf-replicator verify {outcome.route}")
        log.info("verified", route=outcome.route, version=outcome.version, seconds=round(outcome.seconds, 1))
        if due_from is not None:
            write_json(self._state_store.verified_file(outcome.route), {**asdict(found), "at": at.isoformat()})

    def _warn(self, name: str, what: str) -> None:
        self._board.event(what, name)
        log.warning(what, route=name or None)


class _Work(threading.Thread):
    """A comparison in a thread of its own, so that the thread that waits for it can cancel its jobs.

    ``outcome`` is its result or its error, after the end of the thread.
    """

    def __init__(self, spark: SparkSession, route: Route, sink: Sink, state_store: StateStore, *, paced: bool) -> None:
        super().__init__(name=f"verify-{route.name}", daemon=True)
        self.outcome: Verification | Exception | None = None
        self.jobs = TaggedJobs(spark, self.name)
        self._given, self._paced = (spark, route, sink, state_store), paced

    def run(self) -> None:
        context = self._given[0].sparkContext
        try:
            context.setJobGroup(POOL, self.name, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", POOL)
            context.setLocalProperty(PACED, "true" if self._paced else None)  # type: ignore[arg-type]
            with tagged(self._given[0], self.name):
                self.outcome = verify(*self._given, limit=0, gently=True)
        except Exception as error:  # noqa: BLE001 - a failed comparison must not halt a route
            self.outcome = error
