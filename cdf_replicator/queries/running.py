"""Run a query in a thread of its own, so that its reader can report progress and cancel its Spark jobs.

The thread waits while its reader is behind, so that an answer of any size needs little memory.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JNetworkError

from cdf_replicator.errors.classifier import clear_traceback_frames
from cdf_replicator.queries.answer import End, Failure, Progress, Values
from cdf_replicator.queries.execution import describe_error
from cdf_replicator.spark.session import is_spark_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.queries.answer import Event

POOL: Final = "cdf-queries"
"""Name of the scheduler pool (``spark/conf/fairscheduler.xml``): all queries together get the share of one route."""
PROGRESS_SECONDS: Final = 0.5
CANCEL_SECONDS: Final = 0.2
"""Time between two attempts to cancel, since a query may start a further job after the first one."""
MOST_VALUES: Final = 100
"""Largest number of values in an event."""
LONGEST_SECONDS: Final = 0.5
"""Time after which an event is given with the values that it has."""
AHEAD: Final = 2
"""Number of events that wait for the reader."""
JVM_GONE: Final = (Py4JNetworkError, ConnectionError)


class CancelledError(Exception):
    """The reader has cancelled the query."""


class RunningQuery:
    """A query whose thread has started."""

    def __init__(self, spark: SparkSession, work: Callable[[], Iterator[Any]], name: str, route: str = "") -> None:
        self._spark = spark
        self._work = work
        self._group = f"cdf-query-{uuid.uuid4().hex}"
        self._route = route
        self._events: queue.Queue[Event] = queue.Queue(AHEAD)
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"query-{name}", daemon=True)
        self._thread.start()

    def events(self) -> Iterator[Event]:
        """Yield the values, and the progress while there is none; at last an error or the end.

        Both are absent if the query was cancelled, or if the JVM has ended.
        """
        while True:
            try:
                event = self._events.get(timeout=PROGRESS_SECONDS)
            except queue.Empty:
                if not self._thread.is_alive() and self._events.empty():
                    return
                with suppress(*JVM_GONE):
                    yield self._progress()
                continue
            yield event
            if isinstance(event, Failure | End):
                return

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def cancel(self, seconds: float = 0.0) -> None:
        """Cancel the query, and wait for its end.

        A request to a sink can't be cancelled, and the thread then ends after it.

        Args:
            seconds: Longest time to wait.
        """
        self._cancelled.set()
        deadline = time.monotonic() + seconds
        while True:
            self._thread.join(CANCEL_SECONDS)
            if not self._thread.is_alive():
                return
            with suppress(*JVM_GONE):
                self._spark.sparkContext.cancelJobGroup(self._group)
            if time.monotonic() > deadline:
                return

    def _run(self) -> None:
        context = self._spark.sparkContext
        try:
            context.setJobGroup(self._group, self._thread.name, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", POOL)
            for values in _batches(self._work()):
                self._put(Values(values))
            self._put(End())
        except CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - every error is described for the operator
            if is_spark_exit(self._spark, error):
                return
            failure = Failure(*describe_error(error, self._route))
            clear_traceback_frames(error)
            with suppress(CancelledError):
                self._put(failure)

    def _put(self, event: Event) -> None:
        """Hand an event to the reader; raise ``CancelledError`` if it has cancelled the query."""
        while not self._cancelled.is_set():
            try:
                self._events.put(event, timeout=CANCEL_SECONDS)
            except queue.Full:
                continue
            return
        raise CancelledError

    def _progress(self) -> Progress:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        numbers = {stage for job in jobs if job and job.status == "RUNNING" for stage in job.stageIds}
        stages = [tracker.getStageInfo(stage) for stage in numbers & set(tracker.getActiveStageIds())]
        return Progress(
            sum(stage.numCompletedTasks for stage in stages if stage), sum(stage.numTasks for stage in stages if stage)
        )


def _batches(values: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the values in groups."""
    group: list[Any] = []
    began = time.monotonic()
    for value in values:
        group.append(value)
        if len(group) == MOST_VALUES or time.monotonic() - began > LONGEST_SECONDS:
            yield tuple(group)
            group, began = [], time.monotonic()
    if group:
        yield tuple(group)
