"""Report the lag of one route: while its query runs, while it loads a snapshot or executes a command, and between runs."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdf_replicator.monitoring.progress import BatchCount, ProgressTracker, StreamPosition
from cdf_replicator.monitoring.stalls import StallDetector
from cdf_replicator.source.table import SourceTable
from cdf_replicator.spark import jobs
from cdf_replicator.state import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.monitoring.retention import RetentionMonitor
    from cdf_replicator.route import Route
    from cdf_replicator.state.store import StateStore

BACKGROUND_SECONDS: Final = 5.0
"""Interval of reports during a bootstrap or a command."""
MOST_PROGRESS: Final = 0.99
"""Most progress of a load that has not ended."""
REOPEN_SECONDS: Final = 60.0
"""Interval of retries for an unavailable source."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run after a poll.

    Args:
        start_version: First commit version of the generation.
        source_version: Newest commit version; None before the first poll of the source.
        delivered_version: Version up to which all changes are delivered.
        has_committed: Whether this run has committed a micro-batch or has none to commit, so that earlier failures no longer count.
    """

    start_version: int
    source_version: int | None
    delivered_version: int
    has_committed: bool

    @classmethod
    def of(cls, position: StreamPosition, tracker: ProgressTracker) -> Progress:
        return cls(position.first_version, tracker.source_version, tracker.delivered_version, tracker.has_committed)


class LoadMonitor:
    """Reports the progress of a load of a snapshot, and its state ``stalled`` while no task of it makes progress."""

    def __init__(self, load: jobs.TaggedJobs, report: RouteReporter, stall_seconds: float) -> None:
        self._load = load
        self._report = report
        self._stalls = StallDetector(stall_seconds, 0.0)
        self._stalled = False
        self._reached = 0.0

    def poll(self) -> None:
        self._reached = max(self._reached, min(self._load.finished_share(), MOST_PROGRESS))
        self._report.bootstrap(self._reached)
        if not self._stalled and not self._stalls.is_due():
            return
        stalled = self._stalls.is_stalled(self._load.movement(), delivers=False)
        if stalled != self._stalled:
            self._stalled = stalled
            what = f"no task of the load has read or finished anything for {self._stalls.seconds:.0f} s"
            self._report.state("stalled" if stalled else "bootstrapping", what if stalled else "")


@dataclass(slots=True)
class LagMonitor:
    """The trackers of one route, each of which continues from the former tracker in the same generation.

    ``stall_seconds`` is the longest time without progress of a load.
    """

    spark: SparkSession
    route: Route
    state_store: StateStore
    report: RouteReporter
    retention: RetentionMonitor
    stall_seconds: float
    batches: BatchCount = field(default_factory=BatchCount)
    _former: tuple[int, ProgressTracker] | None = field(default=None, init=False)
    _tracker: ProgressTracker | None = field(default=None, init=False)
    _reopen_at: float = field(default=0.0, init=False)  # a route with a saved position has a lag before its first run

    def tracker(self, position: StreamPosition, query: StreamingQuery | None = None) -> ProgressTracker:
        """Return a tracker of the query, or of the source table alone; ``poll`` uses it after the run."""
        self._tracker = self._continued(position, query)
        return self._tracker

    def reopen(self) -> None:
        """Have ``poll`` read the saved position: the last tracker has not polled since the last micro-batch ended."""
        self._tracker, self._reopen_at = None, 0.0

    def poll(self) -> None:
        """Report the lag while no query runs. After an error of the source, the source is opened again a minute later.

        The error itself is reported when the route continues.
        """
        try:
            if self._tracker is None and time.monotonic() >= self._reopen_at:
                self._reopen_at = time.monotonic() + REOPEN_SECONDS
                self._tracker = self._saved(SourceTable(self.spark, self.route.source))
            if self._tracker is not None:
                self._tracker.poll_source()
        except Exception:  # noqa: BLE001 - the lag must not end the thread of a route
            self._tracker, self._reopen_at = None, time.monotonic() + REOPEN_SECONDS

    @contextmanager
    def load_polled(self) -> Iterator[None]:
        """Report the lag and the progress from another thread while the route's own thread loads a snapshot."""
        load = jobs.TaggedJobs(self.spark, jobs.load_tag(self.route.name))
        with self.polled_in_background(LoadMonitor(load, self.report, self.stall_seconds)):
            yield

    @contextmanager
    def polled_in_background(self, load: LoadMonitor | None = None) -> Iterator[None]:
        """Report the lag from another thread while the route's own thread executes a command, or a load."""
        ended = threading.Event()
        name = f"lag-{self.route.name}"
        thread = threading.Thread(target=self._poll_until, args=(ended, load), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()  # its last report must precede the reports of the query's tracker
            self.reopen()  # an earlier tracker does not know the version that the bootstrap has pinned

    def _poll_until(self, ended: threading.Event, load: LoadMonitor | None) -> None:
        source = None  # not shared with the route's thread: an object of a commit log belongs to a single thread
        while not ended.wait(BACKGROUND_SECONDS):
            with suppress(Exception):  # the route's thread reports a fault of the table or of the state path
                source = source or SourceTable(self.spark, self.route.source)
                tracker = self._saved(source)  # reads the state again: the bootstrap may pin a newer snapshot
                if tracker is not None:
                    tracker.poll_source()
            if load is not None:
                with suppress(Exception):  # Spark may forget a job meanwhile
                    load.poll()

    def _saved(self, source: SourceTable) -> ProgressTracker | None:
        """Return a tracker of the source from the saved position on; None before the route's first start."""
        state = self.state_store.load(self.route.name)
        if state is None:
            return None
        folder = self.state_store.checkpoint(self.route.name, state.generation)
        return self._continued(StreamPosition(source, state, folder, checkpoint.last_committed(folder)), None)

    def _continued(self, position: StreamPosition, query: StreamingQuery | None) -> ProgressTracker:
        """Return a tracker that knows what the generation's former tracker knew: the checkpoint alone may know less."""
        tracker = ProgressTracker(query, position, self.report, self.batches, self.retention)
        generation = position.state.generation
        if self._former is not None and self._former[0] == generation:
            tracker.delivered_version = max(tracker.delivered_version, self._former[1].delivered_version)
        self._former = generation, tracker
        return tracker
