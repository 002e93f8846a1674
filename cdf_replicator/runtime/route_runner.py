"""One thread per route: runs the stream, classifies its errors, and restarts it until the service stops.

Each route has its own streaming query, so a slow or failed sink never delays another route.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.errors.classifier import classify_error, clear_traceback_frames
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.pipeline.route_stream import RouteStream
from cdf_replicator.pipeline.streaming_query import POLL_SECONDS, StreamingQueryRunner
from cdf_replicator.runtime.command_handler import CommandHandler
from cdf_replicator.source.table import SourceTable
from cdf_replicator.spark.session import clear_delta_cache, is_jvm_exit
from cdf_replicator.state.command_queue import Command, CommandStatus
from connectors import RetryableError

if TYPE_CHECKING:
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.monitoring.progress import ProgressTracker
    from cdf_replicator.pipeline.context import ServiceContext
    from cdf_replicator.route import Route
    from cdf_replicator.state.route_state import RouteState

FAST_RESTARTS: Final = 5
"""Restarts per minute without a back-off; a tracked schema change needs several."""
MINUTE: Final = 60.0
LOOK_ON_SECONDS: Final = 60.0
"""Interval of retries for an unavailable source while its route is paused."""
BETWEEN_RUNS: Final = RetryPolicy(first_seconds=1.0, cap_seconds=30.0)


class RouteRunner:
    """The thread of one route.

    ``requested_start_version`` is the operator's starting version for the route, or None. ``failure`` is the error that ended the thread, or None.
    """

    def __init__(self, service: ServiceContext, route: Route, requested_start_version: int | None) -> None:
        self.route = route
        self.failure: ErrorDecision | None = None
        self._thread = threading.Thread(target=self._run, name=f"route-{route.name}", daemon=True)
        self._service = service
        self._requested_start_version = requested_start_version
        self._report = RouteReporter(route, service.metrics, service.board, type(service.settings.sink(route.sink)))
        query = StreamingQueryRunner(service, route, self._report, self._interrupted, self._on_progress)
        self._stream = RouteStream(service, route, self._report, query)
        self._command_handler = CommandHandler(service, route, self._stream, self._report)
        self._requests: deque[Command] = deque()
        self._wake = threading.Event()
        self._watch: ProgressTracker | None = None
        self._failures = 0
        self._what = ""
        self._restarts: deque[float] = deque(maxlen=FAST_RESTARTS)

    # Called by other threads.

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def submit(self, request: Command) -> None:
        """Queue a command for this route's thread."""
        self._requests.append(request)
        self._wake.set()

    def wake(self) -> None:
        """Wake the thread, so that it checks the stop flag."""
        self._wake.set()

    # Called by the route's thread.

    def _run(self) -> None:
        while not self._service.stop.is_set():
            try:
                if self._requests:
                    self._carry_out(self._requests.popleft())
                if self._service.state_path.is_paused(self.route.name):
                    self._run_paused()
                else:
                    self._run_stream()
            except Exception as error:  # noqa: BLE001 - every error is classified, none ends the thread unseen
                if is_jvm_exit(self._service.spark, error):  # the main loop reports it and ends the service
                    break
                goes_on = not self._service.stop.is_set() and self.handle_failure(
                    classify_error(error, route=self.route.name), error
                )
                clear_traceback_frames(error)
                if not goes_on:
                    break
            else:
                if self._service.once and not self._requests:
                    break
        if self.failure is None:
            self._report.state("stopped")

    def _run_stream(self) -> None:
        if not self._failures:  # a retrying route keeps its state
            self._report.state("starting")
        source = SourceTable(self._service.spark, self.route.source)
        sink = self._service.settings.sink(self.route.sink)
        try:
            self._stream.run(source, sink, self._requested_start_version, self._wake)
        finally:
            sink.close()

    def _carry_out(self, request: Command) -> None:
        try:
            if self._command_handler.handle(request):
                self._requested_start_version = None
        except OSError:  # the state path does not answer
            self._requests.appendleft(request)
            self._service.stop.wait(BETWEEN_RUNS.first_seconds)
            raise

    def _run_paused(self) -> None:
        """Deliver nothing until an operator sends a command; with ``once``, end. The lag is still reported."""
        self._report.state("paused", f"Run: cdf-replicator resume {self.route.name}")
        self._failures = 0
        self._watch = None  # the watch has not polled the source since the last micro-batch ended
        self._track_lag()
        while not (self._service.once or self._interrupted()):
            if self._watch is None:
                self._track_lag()
            self._wait(LOOK_ON_SECONDS)

    def _track_lag(self) -> None:
        with suppress(Exception):  # the source is unavailable too; the error is reported when the route continues
            self._watch = self._stream.lag_tracker(SourceTable(self._service.spark, self.route.source))

    def _interrupted(self) -> bool:
        return self._service.stop.is_set() or bool(self._requests)

    def _on_progress(self, watch: ProgressTracker, state: RouteState) -> None:
        self._watch = watch
        if watch.has_committed:
            self._failures = 0
        self._command_handler.progress(watch, state)

    # Failure handling.

    def handle_failure(self, verdict: ErrorDecision, error: BaseException) -> bool:
        """Act on a verdict; return False if the thread must end (``--once`` only)."""
        another_change = verdict.reason == "schema_change" and verdict.message != self._what
        self._failures = 1 if another_change else self._failures + 1  # a failure at a later version is progress
        self._what = verdict.message
        if verdict.reason == "schema_change" and verdict.action != "halt" and self._failures == 1:
            self._report.event("the table's schema changed: the stream restarts with the new schema")
        else:
            self._report.failed(verdict, detail=error)
        if verdict.from_sink:
            self._report.sink_down(verdict)
        if verdict.reason == UNKNOWN_SPARK_ERROR:
            clear_delta_cache(self._service.spark)
        if verdict.action == "retry_then_halt" and self._failures >= verdict.max_failures:
            verdict = replace(verdict, action="halt")
        if verdict.action == "halt":
            back = self._command_handler.given_up(verdict)
            if back is None or self._service.once:  # the next run continues
                return self._await_operator(back or verdict)
            self._failures = 0
            return True
        if self._service.once and verdict.action == "wait":
            self.failure = verdict  # the retry budget is spent; the process manager restarts the service
            self._report.state("stopped", verdict.message)
            return False
        self._report.restarted(verdict.reason)
        if not (verdict.action == "restart" and self._immediate_restart_allowed()):
            self._report.state("retrying", verdict.message)
            asked = error.retry_after if isinstance(error, RetryableError) else None
            self._wait(max(asked or 0.0, BETWEEN_RUNS.backoff(self._failures)))
        return True

    def _await_operator(self, verdict: ErrorDecision) -> bool:
        """Wait for an operator's command or for the end of the service."""
        what = f"{verdict.message} {verdict.remedy}"
        with suppress(OSError):  # the operator sees the error in the route's state
            self._command_handler.answer(CommandStatus("failed", what))
        self._report.state("halted", what)
        self.failure = verdict
        while not self._service.once and not self._service.stop.is_set():
            if self._requests:
                self.failure = None
                self._failures = 0
                return True
            self._wait(POLL_SECONDS)
        return False

    def _wait(self, seconds: float) -> None:
        """Wait for the given time or until a command or stop arrives; report the lag meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._interrupted() and (left := deadline - time.monotonic()) > 0:
            self._update_lag()
            self._wake.wait(min(left, POLL_SECONDS))
            self._wake.clear()

    def _update_lag(self) -> None:
        if self._watch is None:
            return
        try:
            self._watch.poll_source()
        except Exception:  # noqa: BLE001 - the source is unavailable too; the error is reported when the stream starts
            self._watch = None

    def _immediate_restart_allowed(self) -> bool:
        now = time.monotonic()
        recent = len(self._restarts) == FAST_RESTARTS and now - self._restarts[0] < MINUTE
        self._restarts.append(now)
        return not recent
