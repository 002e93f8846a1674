"""Run the sink's periodic maintenance of a target in a thread beside the stream, so that deliveries continue."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from connectors import Maintained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.pipeline.context import Interrupt
    from connectors import RouteSpec, Sink

PAUSE_AFTER_FAILURE_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.2
CANCEL_SECONDS: Final = 20.0
"""Longest wait for a cancelled thread. A thread that waits for a file system, not for a job, ignores the cancel."""


class MaintenanceRunner:
    """The maintenance of one target at the times that the sink returns. A failure is a warning, and a retry follows."""

    def __init__(self, spark: SparkSession, sink: Sink, spec: RouteSpec, report: RouteReporter) -> None:
        self._spark = spark
        self._sink = type(sink)(sink.settings)  # the route's sink may hold a connection of another thread
        self._spec = spec
        self._report = report
        self._check_at = 0.0
        self._cancelled = False
        self._thread: threading.Thread | None = None

    def start_if_due(self) -> None:
        """Start the maintenance if it is due and none runs."""
        sink = self._sink
        if isinstance(sink, Maintained) and not self._running() and time.time() >= self._check_at:
            self._thread = threading.Thread(
                target=self._run, args=(sink,), name=f"upkeep-{self._spec.name}", daemon=True
            )
            self._thread.start()

    def finish(self, interrupt: Interrupt) -> None:
        """Run the maintenance if it is due, and wait for its end or for an interrupt."""
        self.start_if_due()
        while self._thread is not None and self._running() and not interrupt.requested:
            self._thread.join(POLL_SECONDS)

    def cancel(self) -> None:
        """Cancel the Spark jobs of a running maintenance; an uncommitted change of the target is discarded."""
        self._cancelled = True
        deadline = time.monotonic() + CANCEL_SECONDS
        while self._thread is not None and self._running() and time.monotonic() < deadline:
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(POLL_SECONDS)
        self._sink.close()

    @property
    def _group(self) -> str:
        return f"cdf-{self._spec.name}-upkeep"

    def _running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self, sink: Maintained) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
            due = sink.next_maintenance_at(self._spec)
            if due is not None and time.time() >= due:
                if done := sink.run_maintenance(self._spec):
                    self._report.event(f"upkeep: {done}")
                due = sink.next_maintenance_at(self._spec)
            self._check_at = math.inf if due is None else due
        except Exception as error:  # noqa: BLE001 - a failed maintenance must not halt the route
            self._check_at = time.time() + PAUSE_AFTER_FAILURE_SECONDS
            if not self._cancelled:
                self._report.warning(f"upkeep failed, retrying later: {(str(error).splitlines() or [''])[0][:500]}")
