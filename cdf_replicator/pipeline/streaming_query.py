"""Start, poll and restart the streaming query of a route, and stop it between two micro-batches."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from cdf_replicator.errors.exceptions import QueryStalledError
from cdf_replicator.monitoring.progress import ProgressTracker
from cdf_replicator.monitoring.retention import RetentionMonitor
from cdf_replicator.monitoring.stalls import StallDetector, movement
from cdf_replicator.pipeline import intervals
from cdf_replicator.spark import callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.pipeline.context import ServiceContext
    from cdf_replicator.pipeline.maintenance import MaintenanceRunner
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.checkpoint import Offset
    from cdf_replicator.state.route_state import RouteState

POLL_SECONDS: Final = 0.5


class StopRequestedError(Exception):
    """Raised in foreachBatch instead of a write: after a normal return Spark would commit the micro-batch."""


class StreamingQueryRunner:
    """The streaming queries of a route, one after the other.

    Args:
        service: The objects that all routes share.
        route: The route.
        report: Receives the route's position and state.
        should_stop: Returns true if the query must stop after the running micro-batch.
        ``on_progress``: Receives the watch and the route's state after each poll.
    """

    def __init__(
        self,
        service: ServiceContext,
        route: Route,
        report: RouteReporter,
        should_stop: Callable[[], bool],
        on_progress: Callable[[ProgressTracker, RouteState], None],
    ) -> None:
        self._service = service
        self._route = route
        self._report = report
        self.should_stop = should_stop
        self._on_progress = on_progress
        settings = service.settings
        self._headroom = RetentionMonitor(report, settings.trigger_seconds)
        self._look_seconds = intervals.look_seconds(len(settings.routes))
        self._in_batch = threading.Event()
        self._standstill = StallDetector(settings.delivery.stall_seconds, settings.trigger_seconds)
        self._stalled = False
        self._batches = 0
        self._batch_error: BaseException | None = None
        self._close_callback: Callable[[], None] | None = None
        self._former: tuple[int, ProgressTracker] | None = None

    def follow(
        self,
        changes: DataFrame,
        deliver: Callable[[DataFrame, int], None],
        source: SourceTable,
        state: RouteState,
        committed: Offset | None,
        upkeep: MaintenanceRunner,
        wake: threading.Event,
    ) -> None:
        """Run the query: pass each micro-batch and its number to ``deliver``.

        Returns after an interruption or, with ``once``, after the last available micro-batch. Raises the error that
        ended the query, and ``QueryStalledError`` if the query must restart.
        """
        query = self._started(changes, deliver, state, free=source.log.is_local)
        self._report.state("running")
        self._stalled = False
        watch = self._watch(query, source, state, committed)
        try:
            self._poll(query, watch, state, upkeep, wake)
        finally:
            watch.release()
            _ended(query)
            if self._close_callback is not None and not query.isActive and not self._in_batch.is_set():
                self._close_callback()

    def await_commit(self, source: SourceTable, state: RouteState, wake: threading.Event) -> bool:
        """Wait for the first commit to follow; returns False after an interruption or, with ``once``, at once.

        Raises the error that a query raises for an absent table, and ``RouteHaltError`` if another table has replaced it.
        """
        first = state.start_version or 0
        if source.log.latest_version() >= first:
            return True
        self._report.state("running")
        watch = self.lag_tracker(source, state, None)
        compare_at = 0.0
        while source.log.latest_version() < first:
            if time.monotonic() >= compare_at:
                source.newest_of(state.table_id)
                compare_at = time.monotonic() + self._service.settings.trigger_seconds
            watch.poll_source()
            self._on_progress(watch, state)
            if self.should_stop() or self._service.once:
                return False
            wake.wait(POLL_SECONDS)
            wake.clear()
        return True

    def lag_tracker(self, source: SourceTable, state: RouteState, committed: Offset | None) -> ProgressTracker:
        """Return a watch of the source table alone, for the time without a query."""
        return self._watch(None, source, state, committed)

    def _watch(
        self, query: StreamingQuery | None, source: SourceTable, state: RouteState, committed: Offset | None
    ) -> ProgressTracker:
        """Return a watch that continues from the generation's previous watch: the checkpoint alone may know less."""
        began, headroom = lambda: self._batches, self._headroom
        watch = ProgressTracker(query, source, self._report, state, committed, batches=began, headroom=headroom)
        if self._former is not None and self._former[0] == state.generation:
            watch.delivered_version = max(watch.delivered_version, self._former[1].delivered_version)
        self._former = state.generation, watch
        return watch

    def _poll(
        self,
        query: StreamingQuery,
        watch: ProgressTracker,
        state: RouteState,
        upkeep: MaintenanceRunner,
        wake: threading.Event,
    ) -> None:
        """Poll the query until it ends; raises the error that ended it."""
        while query.isActive:
            if self.should_stop():
                self._stop_after_batch(query)
                break
            watch.poll()
            self._on_progress(watch, state)
            self._check_stall(query, watch)
            if not self._service.once:
                upkeep.start_if_due()
            self._wait_next_poll(query, wake)
        if self.should_stop():
            return  # an error is the StopRequestedError of the next micro-batch
        error = query.exception()
        watch.poll(idle=error is None)
        self._on_progress(watch, state)
        if error is not None:
            raise self._batch_error or error

    def _wait_next_poll(self, query: StreamingQuery, wake: threading.Event) -> None:
        """Wait until the next poll; with ``once``, no longer than the query runs."""
        if self._service.once:
            with suppress(StreamingQueryException):
                query.awaitTermination(self._look_seconds)  # type: ignore[arg-type]  # it accepts fractions
        else:
            wake.wait(self._look_seconds)
        wake.clear()

    def _check_stall(self, query: StreamingQuery, watch: ProgressTracker) -> None:
        """Raise ``QueryStalledError`` if the query does not move; report a second stall until the query moves."""
        stands = self._standstill.is_stalled(movement(self._service.spark, query, watch), delivers=watch.has_committed)
        if stands != self._stalled:
            self._stalled = stands
            what = (
                f"version {watch.delivered_version} is delivered, the source is at {watch.source_version}, and nothing has "
                f"moved for {self._standstill.seconds:.0f} s"
            )
            self._report.state("stalled" if stands else "running", what if stands else "")
            if stands and not self._standstill.restarted:
                self._standstill.mark_restarted()
                raise QueryStalledError(what)

    def _started(
        self, changes: DataFrame, deliver: Callable[[DataFrame, int], None], state: RouteState, *, free: bool
    ) -> StreamingQuery:
        def on_batch(frame: DataFrame, number: int) -> None:
            self._in_batch.set()
            try:
                self._begin_batch()
                deliver(frame, number)
            except BaseException as error:
                self._batch_error = error  # Spark keeps only its text
                raise
            finally:
                self._in_batch.clear()

        self._close_callback = None
        self._batch_error = None  # forget the error of an earlier run
        settings = self._service.settings
        folder = self._service.state_path.checkpoint(self._route.name, state.generation)
        seconds = intervals.trigger_seconds(settings.trigger_seconds, len(settings.routes), free=free)
        trigger = (
            {"availableNow": True}
            if self._service.once
            else {"processingTime": f"{round(seconds * 1000)} milliseconds"}
        )
        writer = changes.writeStream.queryName(self._route.name).option("checkpointLocation", str(folder))
        return writer.trigger(**trigger).foreachBatch(on_batch).start()

    def _begin_batch(self) -> None:
        """Count the micro-batch; raises ``StopRequestedError`` if the query must stop."""
        self._close_callback = self._close_callback or callback.callback_closer(self._service.spark)
        if self.should_stop():
            raise StopRequestedError
        self._batches += 1

    def _stop_after_batch(self, query: StreamingQuery) -> None:
        """Stop the query after the running micro-batch is committed; the next micro-batch raises before it writes."""
        deadline = time.monotonic() + self._service.settings.shutdown_seconds
        while query.isActive and time.monotonic() < deadline:
            if not self._in_batch.is_set() and not query.status["isTriggerActive"]:
                break
            time.sleep(POLL_SECONDS / 10)
        query.stop()


def _ended(query: StreamingQuery) -> None:
    """Stop a query that is still active; if it does not end in time, the next start waits for the query's name."""
    if query.isActive:
        with suppress(PySparkException, Py4JJavaError):
            query.stop()
