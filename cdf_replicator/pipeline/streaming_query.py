"""Start, poll and restart the streaming query of a route, and stop it between two micro-batches."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from cdf_replicator.errors.exceptions import StalledError
from cdf_replicator.monitoring.progress import Watch
from cdf_replicator.monitoring.retention import Headroom
from cdf_replicator.monitoring.stalls import Standstill, movement
from cdf_replicator.pipeline import intervals
from cdf_replicator.spark import callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.reporter import Report
    from cdf_replicator.pipeline.context import Service
    from cdf_replicator.pipeline.maintenance import Upkeep
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.checkpoint import Offset
    from cdf_replicator.state.route_state import RouteState

POLL_SECONDS: Final = 0.5


class StoppedError(Exception):
    """Raised in foreachBatch instead of a write: after a normal return Spark would commit the micro-batch."""


class Query:
    """The streaming queries of a route, one after the other.

    Args:
        service: The objects that all routes share.
        route: The route.
        report: Receives the route's position and state.
        interrupted: Returns true if the query must stop after the running micro-batch.
        ``looked``: Receives the watch and the route's state after each poll.
    """

    def __init__(
        self,
        service: Service,
        route: Route,
        report: Report,
        interrupted: Callable[[], bool],
        looked: Callable[[Watch, RouteState], None],
    ) -> None:
        self._service = service
        self._route = route
        self._report = report
        self.interrupted = interrupted
        self._looked = looked
        settings = service.settings
        self._headroom = Headroom(report, settings.trigger_seconds)
        self._look_seconds = intervals.look_seconds(len(settings.resolved))
        self._in_batch = threading.Event()
        self._standstill = Standstill(settings.delivery.stall_seconds, settings.trigger_seconds)
        self._stalled = False
        self._batches = 0
        self._batch_error: BaseException | None = None
        self._hang_up: Callable[[], None] | None = None
        self._former: tuple[int, Watch] | None = None

    def follow(
        self,
        changes: DataFrame,
        deliver: Callable[[DataFrame, int], None],
        source: SourceTable,
        state: RouteState,
        committed: Offset | None,
        upkeep: Upkeep,
        wake: threading.Event,
    ) -> None:
        """Run the query: pass each micro-batch and its number to ``deliver``.

        Returns after an interruption or, with ``once``, after the last available micro-batch. Raises the error that
        ended the query, and ``StalledError`` if the query must restart.
        """
        query = self._started(changes, deliver, state, free=source.log.is_local)
        self._report.state("running")
        self._stalled = False
        watch = self._watch(query, source, state, committed)
        try:
            self._watched(query, watch, state, upkeep, wake)
        finally:
            watch.end()
            _ended(query)
            if self._hang_up is not None and not query.isActive and not self._in_batch.is_set():
                self._hang_up()

    def await_commit(self, source: SourceTable, state: RouteState, wake: threading.Event) -> bool:
        """Wait for the first commit to follow; returns False after an interruption or, with ``once``, at once.

        Raises the error that a query raises for an absent table, and ``HaltError`` if another table has replaced it.
        """
        first = state.start_version or 0
        if source.log.latest_version() >= first:
            return True
        self._report.state("running")
        watch = self.onlooker(source, state, None)
        compare_at = 0.0
        while source.log.latest_version() < first:
            if time.monotonic() >= compare_at:
                source.newest_of(state.table_id)
                compare_at = time.monotonic() + self._service.settings.trigger_seconds
            watch.look_at_source()
            self._looked(watch, state)
            if self.interrupted() or self._service.once:
                return False
            wake.wait(POLL_SECONDS)
            wake.clear()
        return True

    def onlooker(self, source: SourceTable, state: RouteState, committed: Offset | None) -> Watch:
        """Return a watch of the source table alone, for the time without a query."""
        return self._watch(None, source, state, committed)

    def _watch(
        self, query: StreamingQuery | None, source: SourceTable, state: RouteState, committed: Offset | None
    ) -> Watch:
        """Return a watch that continues from the generation's previous watch: the checkpoint alone may know less."""
        began, headroom = lambda: self._batches, self._headroom
        watch = Watch(query, source, self._report, state, committed, batches=began, headroom=headroom)
        if self._former is not None and self._former[0] == state.generation:
            watch.delivered_version = max(watch.delivered_version, self._former[1].delivered_version)
        self._former = state.generation, watch
        return watch

    def _watched(
        self, query: StreamingQuery, watch: Watch, state: RouteState, upkeep: Upkeep, wake: threading.Event
    ) -> None:
        """Poll the query until it ends; raises the error that ended it."""
        while query.isActive:
            if self.interrupted():
                self._finish(query)
                break
            watch.look()
            self._looked(watch, state)
            self._check_movement(query, watch)
            if not self._service.once:
                upkeep.look()
            self._rest(query, wake)
        if self.interrupted():
            return  # an error is the StoppedError of the next micro-batch
        error = query.exception()
        watch.look(idle=error is None)
        self._looked(watch, state)
        if error is not None:
            raise self._batch_error or error

    def _rest(self, query: StreamingQuery, wake: threading.Event) -> None:
        """Wait until the next poll; with ``once``, no longer than the query runs."""
        if self._service.once:
            with suppress(StreamingQueryException):
                query.awaitTermination(self._look_seconds)  # type: ignore[arg-type]  # it accepts fractions
        else:
            wake.wait(self._look_seconds)
        wake.clear()

    def _check_movement(self, query: StreamingQuery, watch: Watch) -> None:
        """Raise ``StalledError`` if the query does not move; report a second stall until the query moves."""
        stands = self._standstill.look(movement(self._service.spark, query, watch), delivers=watch.healthy)
        if stands != self._stalled:
            self._stalled = stands
            what = (
                f"version {watch.delivered_version} is delivered, the source is at {watch.source_version}, and nothing has "
                f"moved for {self._standstill.seconds:.0f} s"
            )
            self._report.state("stalled" if stands else "running", what if stands else "")
            if stands and not self._standstill.begun_anew:
                self._standstill.begin_anew()
                raise StalledError(what)

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

        self._hang_up = None
        self._batch_error = None  # forget the error of an earlier run
        settings = self._service.settings
        folder = self._service.state_path.checkpoint(self._route.name, state.generation)
        seconds = intervals.trigger_seconds(settings.trigger_seconds, len(settings.resolved), free=free)
        trigger = (
            {"availableNow": True}
            if self._service.once
            else {"processingTime": f"{round(seconds * 1000)} milliseconds"}
        )
        writer = changes.writeStream.queryName(self._route.name).option("checkpointLocation", str(folder))
        return writer.trigger(**trigger).foreachBatch(on_batch).start()

    def _begin_batch(self) -> None:
        """Count the micro-batch; raises ``StoppedError`` if the query must stop."""
        self._hang_up = self._hang_up or callback.hanging_up(self._service.spark)
        if self.interrupted():
            raise StoppedError
        self._batches += 1

    def _finish(self, query: StreamingQuery) -> None:
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
