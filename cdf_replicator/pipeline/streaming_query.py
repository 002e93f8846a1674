"""Start, poll and restart the streaming query of a route, and stop it between two micro-batches."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from cdf_replicator.errors.exceptions import QueryStalledError
from cdf_replicator.monitoring.lag import Progress
from cdf_replicator.monitoring.stalls import StallDetector, movement
from cdf_replicator.pipeline.generation import EndRecord
from cdf_replicator.source import continuity
from cdf_replicator.source.table_watch import IdleQuery, free_poll_seconds
from cdf_replicator.spark import callback

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.lag import LagMonitor
    from cdf_replicator.monitoring.progress import BatchCount, ProgressTracker, StreamPosition
    from cdf_replicator.pipeline.context import Interrupt, RouteContext
    from cdf_replicator.pipeline.maintenance import MaintenanceRunner
    from cdf_replicator.source.table_watch import TableWatch

    Deliver = Callable[[DataFrame, int], None]

POLL_SECONDS: Final = 0.5
STATUS_SECONDS: Final = 0.05
SOONER: Final = 10
TRIGGERS_PER_SECOND: Final = 50
"""Limit for all routes together. A trigger without a commit takes Spark about half a millisecond of processor time."""
FILES_PER_SECOND: Final = 10_000
"""Limit for the files of the log that a query lists, about a fifth of a core. Delta lists the whole folder at each trigger."""
POLLS_PER_SECOND: Final = 25
SLEEPING_POLL_SECONDS: Final = 30.0
"""Interval of the polls of a query that sleeps, each of which takes about a millisecond of processor time."""
POLL_RANGE: Final = (0.5, 2.0)


class StopRequestedError(Exception):
    """Raised in foreachBatch instead of a write: after a normal return Spark would commit the micro-batch."""


@dataclass(slots=True)
class ForeachBatch:
    """The function that Spark calls with each micro-batch of one query.

    ``running`` is set during a micro-batch. ``error`` is the error that ended the query, of which Spark keeps only the
    text.
    """

    spark: SparkSession
    deliver: Deliver
    interrupt: Interrupt
    batches: BatchCount
    running: threading.Event = field(default_factory=threading.Event, init=False)
    error: BaseException | None = field(default=None, init=False)
    _close: Callable[[], None] | None = field(default=None, init=False)

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.running.set()
        try:
            self._begin()
            self.deliver(frame, number)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.running.clear()

    def _begin(self) -> None:
        """Count the micro-batch; raises ``StopRequestedError`` if the query must stop."""
        self._close = self._close or callback.callback_closer(self.spark)
        if self.interrupt.requested:
            raise StopRequestedError
        self.batches.started += 1

    def close(self) -> None:
        """Close the connection of an ended query, over which Spark has called this object."""
        if self._close is not None and not self.running.is_set():
            self._close()


class StreamingQueryRunner:
    """The streaming queries of a route, one after the other."""

    def __init__(self, context: RouteContext, interrupt: Interrupt, lag: LagMonitor, tables: TableWatch) -> None:
        self._context = context
        self._tables = tables
        self._interrupt = interrupt
        self._lag = lag
        self._settings = settings = context.settings
        self._poll_seconds = poll_seconds(len(settings.routes))
        self._stalls = StallDetector(settings.delivery.stall_seconds, settings.trigger_seconds)
        self._stalled = False

    def follow(
        self, position: StreamPosition, changes: DataFrame, deliver: Deliver, maintenance: MaintenanceRunner
    ) -> Iterator[Progress]:
        """Run the query: pass each micro-batch and its number to ``deliver``, and yield the progress of each poll.

        Ends after an interrupt or, with ``once``, after the last available micro-batch. Raises the error that ended the
        query, and ``QueryStalledError`` if the query must restart.
        """
        on_batch = ForeachBatch(self._context.spark, deliver, self._interrupt, self._lag.batches)
        query = self._started(position, changes, on_batch)
        if self._stalled:
            self._context.report.state("running")
        self._stalled = False
        tracker = self._lag.tracker(position, query)
        idle = IdleQuery(self._tables, position.source, query)
        end = EndRecord(self._context.state_store, position.state)
        try:
            while query.isActive and not self._interrupt.requested:
                tracker.poll()
                yield Progress.of(position, tracker)
                end.update(tracker)
                self._check_stall(query, tracker)
                if mark := idle.take_replaced():
                    continuity.verify_mark(position.source, mark, position.state.table_id)
                if not self._context.once:
                    idle.poll(tracker.delivered_version if tracker.has_read_all else None)
                    maintenance.start_if_due()
                self._wait_next_poll(query, idle)
            if self._interrupt.requested:  # an error is the StopRequestedError of the next micro-batch
                self._await_batch(query, on_batch)
            else:
                error = query.exception()
                tracker.poll(idle=error is None)
                yield Progress.of(position, tracker)
                if error is not None:
                    raise on_batch.error or error
            end.update(tracker, ends=True)
        finally:
            tracker.release()
            idle.close()
            _stop(query)
            if not query.isActive:
                on_batch.close()

    def await_commit(self, position: StreamPosition) -> Generator[Progress, None, bool]:
        """Wait for the first commit to follow, and yield progress; return False if it is absent.

        It is absent after an interrupt and, with ``once``, at once. Raises the error that a query raises for an absent
        table, and ``RouteHaltError`` if another table or a copy has replaced it.
        """
        source, first = position.source, position.first_version
        if source.log.latest_version() < first:
            tracker = self._lag.tracker(position)
            compare_at = 0.0
            while source.log.latest_version() < first:
                if time.monotonic() >= compare_at:
                    source.newest_of(position.state.table_id)
                    continuity.verify_last_read(source, position.state)
                    compare_at = time.monotonic() + self._settings.trigger_seconds
                tracker.poll_source()
                yield replace(Progress.of(position, tracker), has_committed=True)  # there is nothing to commit
                if self._interrupt.requested or self._context.once:
                    return False
                self._interrupt.wait(POLL_SECONDS)
        return True

    def _wait_next_poll(self, query: StreamingQuery, idle: IdleQuery) -> None:
        """Wait until the next poll, longer while the query sleeps; with ``once``, no longer than the query runs."""
        if self._context.once:
            with suppress(StreamingQueryException):
                query.awaitTermination(self._poll_seconds)  # type: ignore[arg-type]  # it accepts fractions
        else:
            deadline = time.monotonic() + SLEEPING_POLL_SECONDS
            self._interrupt.wait(self._poll_seconds)
            while idle.sleeps and time.monotonic() < deadline and not self._interrupt.requested:
                self._interrupt.wait(self._poll_seconds)

    def _check_stall(self, query: StreamingQuery, tracker: ProgressTracker) -> None:
        """Raise ``QueryStalledError`` if the query does not move; report a second stall until the query moves."""
        if not self._stalled and not self._stalls.is_due():
            return
        activity = movement(self._context.spark, query, tracker)
        stalled = self._stalls.is_stalled(activity, delivers=tracker.has_committed)
        if stalled != self._stalled:
            self._stalled = stalled
            what = (
                f"version {tracker.delivered_version} is delivered, the source is at {tracker.source_version}, and nothing has "
                f"moved for {self._stalls.seconds:.0f} s"
            )
            self._context.report.state("stalled" if stalled else "running", what if stalled else "")
            if stalled and not self._stalls.restarted:
                self._stalls.mark_restarted()
                raise QueryStalledError(what)

    def _started(self, position: StreamPosition, changes: DataFrame, on_batch: ForeachBatch) -> StreamingQuery:
        settings, log = self._settings, position.source.log
        listed = log.listed_files if log.is_local else None
        seconds = trigger_seconds(settings.trigger_seconds, len(settings.routes), listed)
        milliseconds = f"{round(seconds * 1000)} milliseconds"
        trigger = {"availableNow": True} if self._context.once else {"processingTime": milliseconds}
        writer = changes.writeStream.queryName(self._context.route.name)
        writer = writer.option("checkpointLocation", str(position.checkpoint))
        return writer.trigger(**trigger).foreachBatch(on_batch).start()

    def _await_batch(self, query: StreamingQuery, on_batch: ForeachBatch) -> None:
        """Wait until the running micro-batch is committed; the next micro-batch raises before it writes."""
        deadline = time.monotonic() + self._settings.shutdown_seconds
        while query.isActive and time.monotonic() < deadline:
            if not on_batch.running.is_set() and not query.status["isTriggerActive"]:
                break
            time.sleep(STATUS_SECONDS)


def _stop(query: StreamingQuery) -> None:
    """Stop a query that is still active; if it does not end in time, the next start waits for the query's name."""
    if query.isActive:
        with suppress(PySparkException, Py4JJavaError):
            query.stop()


def trigger_seconds(longest: float, routes: int, listed: int | None) -> float:
    """Return the trigger interval of a route's query in seconds: down to a tenth of ``longest`` for free polls.

    Args:
        longest: The configured interval.
        routes: Number of routes of the service.
        listed: Number of files of the log, in a local file system; None for an object store, where a poll is a paid request.
    """
    if listed is None:
        return longest
    return free_poll_seconds(longest, longest / SOONER, routes / TRIGGERS_PER_SECOND, listed / FILES_PER_SECOND)


def poll_seconds(routes: int) -> float:
    """Return the seconds between two polls of a query by its route's thread."""
    least, most = POLL_RANGE
    return max(least, min(most, routes / POLLS_PER_SECOND))
