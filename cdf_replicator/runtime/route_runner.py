"""One thread per route: runs the stream, classifies its errors, and restarts it until the service stops.

Each route has its own streaming query, so a slow or failed sink never delays another route.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.errors.classifier import classify_error, clear_traceback_frames
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.spark.session import clear_delta_cache, is_spark_exit
from cdf_replicator.state.command_queue import SWITCHES, CommandStatus
from connectors import RetryableError

if TYPE_CHECKING:
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.pipeline.context import RouteContext
    from cdf_replicator.pipeline.route_stream import RouteStream
    from cdf_replicator.runtime.command_dispatcher import Inbox
    from cdf_replicator.runtime.command_handler import CommandHandler
    from cdf_replicator.state.command_queue import Command

log = structlog.get_logger(__name__)

FAST_RESTARTS: Final = 5
"""Restarts per minute without a back-off; a tracked schema change needs several."""
MINUTE: Final = 60.0
POLL_SECONDS: Final = 2.0
"""Interval of reports of the lag between two runs, each of which is a paid request in an object store."""
RELOADED: Final = (
    "a reload stopped the route: if it is still configured, it continues the command's work, see its status"
)
SHORT: Final = (*SWITCHES, "discard")
"""Commands that write nothing to the target."""
BETWEEN_RUNS: Final = RetryPolicy(first_seconds=1.0, cap_seconds=30.0)


class RouteRunner:
    """The thread of one route.

    ``requested_start_version`` is the operator's starting version for the route, or None, also after a command that
    replaces it. ``failure`` is the error that ended the thread, or None. ``fault`` is why the thread has ended although the
    route should run, and is empty otherwise; the pool then ends the service.
    """

    def __init__(
        self,
        context: RouteContext,
        stream: RouteStream,
        handler: CommandHandler,
        inbox: Inbox,
        requested_start_version: int | None,
    ) -> None:
        self.route = context.route
        self.failure: ErrorDecision | None = None
        self.fault = ""
        self._thread = threading.Thread(target=self._run, name=f"route-{context.route.name}", daemon=True)
        self._context = context
        self._report = context.report
        self._stream = stream
        self._handler = handler
        self._inbox = inbox
        self.requested_start_version = requested_start_version
        self._once, self._is_paused = context.once, False
        self._failures = self._same_failures = 0
        self._last_message = self._last_reason = ""
        self._restarts: deque[float] = deque(maxlen=FAST_RESTARTS)

    # Called by other threads.

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def submit(self, command: Command) -> None:
        """Queue a command for this route's thread."""
        self._inbox.submit(command)

    def wake(self) -> None:
        """Wake the thread, so that it checks the stop flag."""
        self._inbox.wake()

    def end(self) -> None:
        """Stop this route alone, after its running micro-batch; the thread ends later."""
        self._inbox.ended.set()
        self._inbox.wake()

    def cancel_jobs(self) -> None:
        """Cancel the Spark jobs of the thread. The query cancels its own."""
        self._context.spark.sparkContext.cancelJobGroup(self._context.job_group)

    def remove_status(self) -> None:
        """Remove the row and the series of the route, whose thread has ended."""
        self._report.remove()

    # Called by the route's thread.

    def _run(self) -> None:
        try:
            self._run_until_stop()
        except BaseException as error:  # an error in the handling of an error
            log.exception("the thread of a route has failed", route=self.route.name)
            self.fault = f"the thread of route {self.route.name} has failed: {type(error).__name__}"
        if self.failure is None and not (self._once and self._is_paused):
            self._report.state("stopped")
        if self._inbox.ended.is_set():
            self._handler.answer(CommandStatus("failed", RELOADED))
        self._handler.write_answers()

    def _run_until_stop(self) -> None:
        while not self._inbox.stopping:
            try:
                if command := self._inbox.take():
                    self._execute(command)
                self._is_paused = self._context.state_store.is_paused(self.route.name)
                if self._is_paused:
                    self._run_paused()
                else:
                    self._run_stream()
            except BaseException as error:  # noqa: BLE001 - every error is classified, also a sink's SystemExit
                if is_spark_exit(self._context.spark, error):  # the main loop reports it and ends the service
                    self.fault = "Spark has stopped"
                    break
                continues = not self._inbox.stopping and self.handle_failure(
                    classify_error(error, route=self.route.name), error
                )
                clear_traceback_frames(error)
                if not continues:
                    break
            else:
                if self._once and not self._inbox.has_command:
                    break

    def _run_stream(self) -> None:
        if not self._failures:  # a retrying route keeps its state
            self._report.state("starting")
        runs = False
        with closing(self._stream.run(self.requested_start_version, retries=self._failures > 0)) as run:
            for progress in run:
                if progress.has_committed and self._failures:
                    self._failures = 0
                    self._report.sink_up()
                if not runs and not self._failures:
                    runs = True
                    self._report.state("running")
                self._handler.report_progress(progress)

    def _execute(self, command: Command) -> None:
        writes = command.kind not in SHORT and not self._is_paused
        if writes:
            self._report.state("retrying" if self._failures else "running", f"executing {command.title}")
        try:
            with self._stream.lag.polled_in_background():
                if self._handler.handle(command, self.requested_start_version):
                    self.requested_start_version = None
        except OSError:  # the state path does not answer
            self._inbox.put_back(command)
            self._inbox.wait_stop(BETWEEN_RUNS.first_seconds)
            raise
        if writes and self._failures:
            self._report.state("retrying", self._last_message)

    def _run_paused(self) -> None:
        """Deliver nothing until an operator sends a command; with ``once``, end. The lag is still reported."""
        self._report.state("paused", f"Run: cdf-replicator resume {self.route.name}")
        self._failures = 0
        self._stream.lag.reopen()
        if not self._once:
            self._wait(math.inf)

    # Failure handling.

    def handle_failure(self, decision: ErrorDecision, error: BaseException) -> bool:
        """Act on the decision for an error; return False if the thread must end (``--once`` only)."""
        another_change = decision.reason == "schema_change" and decision.message != self._last_message
        is_same = self._failures > 0 and decision.reason == self._last_reason and not another_change
        self._same_failures = self._same_failures + 1 if is_same else 1
        self._failures = 1 if another_change else self._failures + 1  # a failure at a later version is progress
        self._last_message, self._last_reason = decision.message, decision.reason
        if decision.reason == "schema_change" and decision.action != "halt" and self._failures == 1:
            self._report.event("the table's schema changed: the stream restarts with the new schema")
        else:
            self._report.failed(decision, detail=error)
        if decision.from_sink and decision.action != "halt":
            self._report.sink_down(decision)
        if decision.reason == UNKNOWN_SPARK_ERROR and self._same_failures <= decision.max_failures:
            clear_delta_cache(self._context.spark)
        if decision.action == "retry_then_halt" and self._same_failures >= decision.max_failures:
            decision = replace(decision, action="halt")
        if decision.action == "halt":
            back = self._handler.abandon_replay(decision)
            if back is None or self._once:  # the next run continues
                return self._await_operator(back or decision)
            self._failures = 0
            return True
        if self._once and decision.action == "wait":
            self.failure = decision  # the retry budget is spent; the process manager restarts the service
            self._report.state("stopped", decision.message)
            return False
        self._report.restarted(decision.reason)
        if not (decision.action == "restart" and self._immediate_restart_allowed()):
            self._report.state("retrying", decision.message)
            retry_after = error.retry_after if isinstance(error, RetryableError) else None
            self._wait(max(retry_after or 0.0, BETWEEN_RUNS.backoff(self._failures)))
        return True

    def _await_operator(self, decision: ErrorDecision) -> bool:
        """Wait for an operator's command or for the end of the service."""
        what = f"{decision.message} {decision.remedy}"
        self._handler.answer(CommandStatus("failed", what))
        self._report.state("halted", what)
        self.failure = decision
        if decision.from_sink:
            self._stream.report_refusal()
        if not self._once:
            self._wait(math.inf)
        if self._once or self._inbox.stopping:
            return False
        self.failure, self._failures = None, 0
        return True

    def _wait(self, seconds: float) -> None:
        """Wait for the given time or until a command or stop arrives; report the dead letters and the lag meanwhile."""
        self._stream.report_letters()
        deadline = time.monotonic() + seconds
        while not self._inbox.requested and (left := deadline - time.monotonic()) > 0:
            self._stream.lag.poll()
            self._handler.write_answers()
            self._inbox.wait(min(left, POLL_SECONDS))

    def _immediate_restart_allowed(self) -> bool:
        now = time.monotonic()
        recent = len(self._restarts) == FAST_RESTARTS and now - self._restarts[0] < MINUTE
        self._restarts.append(now)
        return not recent
