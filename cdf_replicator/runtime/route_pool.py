"""Run the threads of all routes until they end, the service stops, or the JVM is gone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.runtime import exit_codes
from cdf_replicator.runtime.command_dispatcher import CommandDispatcher
from cdf_replicator.spark import session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cdf_replicator.runtime.route_runner import RouteRunner
    from cdf_replicator.state.store import StateStore
    from cdf_replicator.verification import BackgroundVerifier

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 0.5
CANCEL_SECONDS: Final = 5.0
"""Longest wait for the end of a cancelled comparison."""
JVM_GONE: Final = "the JVM is gone; exiting so that the process manager restarts the service"
SILENT_SECONDS: Final = 30
"""The service is not alive if its main loop has not ticked for this time."""


class Heartbeat:
    """The ticks of the main loop, which the liveness probe reads from another thread."""

    def __init__(self) -> None:
        self._last: float | None = None

    def tick(self) -> None:
        self._last = time.monotonic()

    def failure(self) -> str | None:
        """Return why the main loop is not alive; None while it is, and before its first tick."""
        silent = 0.0 if self._last is None else time.monotonic() - self._last
        return None if silent < SILENT_SECONDS else f"the main loop has not ticked for {silent:.0f} s"


@dataclass(frozen=True, slots=True)
class RoutePool:
    """The threads of the routes, the thread that dispatches commands to them, and the thread that compares their targets."""

    spark: SparkSession
    runners: Sequence[RouteRunner]
    stop: threading.Event
    heartbeat: Heartbeat
    verifier: BackgroundVerifier | None = None

    def run(self, state_store: StateStore) -> int | None:
        """Run the routes to their end, and return the exit code; None if the service stops first."""
        dispatcher = CommandDispatcher({runner.route.name: runner for runner in self.runners}, state_store)
        dispatcher.poll()  # before the start: with --once a runner may end soon
        for runner in self.runners:
            runner.start()
        over = threading.Event()
        threading.Thread(target=dispatcher.run, args=(over,), name="requests", daemon=True).start()
        verifying = (
            threading.Thread(target=self.verifier.run, args=(over,), name="verify", daemon=True)
            if self.verifier
            else None
        )
        if verifying:
            verifying.start()
        while session.jvm_alive(self.spark) and not self.stop.is_set() and self._any_alive():
            self.heartbeat.tick()
            self.stop.wait(TICK_SECONDS)
        over.set()
        if verifying:
            verifying.join(CANCEL_SECONDS)
        if not session.jvm_alive(self.spark):
            log.error(JVM_GONE)
            return exit_codes.FAILED
        return None if self.stop.is_set() else self._exit_code()

    def drain(self, seconds: float) -> None:
        """Wait for running micro-batches; cancel those that exceed the limit, which the next run delivers again."""
        log.info("stopping after the running micro-batches", seconds=seconds)
        deadline = time.monotonic() + seconds
        for runner in self.runners:
            runner.wake()
        while self._any_alive() and time.monotonic() < deadline:
            self.heartbeat.tick()
            time.sleep(TICK_SECONDS / 10)
        if self._any_alive():
            self.spark.sparkContext.cancelAllJobs()
            for runner in self.runners:
                runner.join(TICK_SECONDS * 10)
        log.info("stopped")

    def _any_alive(self) -> bool:
        return any(runner.is_alive() for runner in self.runners)

    def _exit_code(self) -> int:
        failures = [runner.failure for runner in self.runners if runner.failure is not None]
        if any(failure.action != "wait" for failure in failures):
            return exit_codes.FAILED
        return exit_codes.TEMPORARY if failures else exit_codes.DONE
