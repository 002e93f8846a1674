"""Report the lag of one route: while its query runs, while it loads a snapshot, and between two runs."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdf_replicator.monitoring.progress import BatchCount, ProgressTracker, StreamPosition
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

BOOTSTRAP_SECONDS: Final = 5.0
"""Interval of reports during a bootstrap."""
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
        has_committed: Whether this run has committed a micro-batch, so that earlier failures no longer count.
    """

    start_version: int
    source_version: int | None
    delivered_version: int
    has_committed: bool

    @classmethod
    def of(cls, position: StreamPosition, tracker: ProgressTracker) -> Progress:
        return cls(position.first_version, tracker.source_version, tracker.delivered_version, tracker.has_committed)


@dataclass(slots=True)
class LagMonitor:
    """The trackers of one route, each of which continues from the former tracker in the same generation."""

    spark: SparkSession
    route: Route
    state_store: StateStore
    report: RouteReporter
    retention: RetentionMonitor
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
    def polled_in_background(self) -> Iterator[None]:
        """Report the lag and the progress from another thread while the route's own thread loads a snapshot."""
        ended, load = threading.Event(), jobs.TaggedJobs(self.spark, jobs.load_tag(self.route.name))
        name = f"lag-{self.route.name}"
        thread = threading.Thread(target=self._poll_until, args=(ended, load), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()  # its last report must precede the reports of the query's tracker
            self.reopen()  # an earlier tracker does not know the version that the bootstrap has pinned

    def _poll_until(self, ended: threading.Event, load: jobs.TaggedJobs) -> None:
        reached = 0.0
        source = None  # not shared with the route's thread: an object of a commit log belongs to a single thread
        while not ended.wait(BOOTSTRAP_SECONDS):
            with suppress(Exception):  # the bootstrap reports a fault of the table or of the state path
                source = source or SourceTable(self.spark, self.route.source)
                tracker = self._saved(source)  # reads the state again: the bootstrap may pin a newer snapshot
                if tracker is not None:
                    tracker.poll_source()
                reached = max(reached, min(load.finished_share(), MOST_PROGRESS))
                self.report.bootstrap(reached)

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
