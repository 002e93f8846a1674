"""Detect a running query that makes no progress while its source is ahead, and a load that makes none.

The cause is a hung connection or a lost wake-up. The query is restarted once. If it stalls again, and for a load at once,
the route is reported as stalled until it progresses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.progress import ProgressTracker

TRIGGERS: Final = 2
"""Minimum limit in trigger intervals: a commit may wait for a running trigger and for the next trigger."""

COMPARISONS: Final = 20
"""Comparisons in the longest time without progress. One costs up to a hundred requests to the JVM."""


@dataclass(frozen=True, slots=True)
class QueryActivity:
    """The progress of a query that is behind its source.

    ``job`` is the id of Spark's newest job of the query. ``tasks`` is the number of its completed tasks.
    """

    delivered_version: int
    batches: int
    job: int | None
    tasks: int


class StallDetector:
    """The stall detector of one route.

    ``restarted`` is true if the query was restarted and has delivered nothing since. ``seconds`` is the longest time
    without progress. ``trigger_seconds`` is the trigger interval of the query.
    """

    def __init__(self, seconds: float, trigger_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds = max(seconds, TRIGGERS * trigger_seconds)
        self._now = now
        self._seen: Hashable = None
        self._since = self._due_at = now()
        self.restarted = False

    def is_due(self) -> bool:
        """Return whether the progress has to be compared again; the caller does so at once."""
        if (now := self._now()) < self._due_at:
            return False
        self._due_at = now + self.seconds / COMPARISONS
        return True

    def is_stalled(self, seen: Hashable, *, delivers: bool) -> bool:
        """Return whether the query or the load has made no progress for too long.

        Args:
            seen: Present progress; None if the query is not behind its source, or if no job of the load runs.
            delivers: True if this run of the query has committed a micro-batch, so that a restart has helped.
        """
        if seen is None or seen != self._seen:
            self._seen, self._since = seen, self._now()
        self.restarted = self.restarted and not delivers
        return seen is not None and self._now() - self._since >= self.seconds

    def mark_restarted(self) -> None:
        """Record a restart and reset the time limit for the next run of the query."""
        self._seen, self.restarted = None, True


def movement(spark: SparkSession, query: StreamingQuery, watch: ProgressTracker) -> QueryActivity | None:
    """Return the progress of a query; None if the query is not behind its source."""
    if watch.source_version is None or watch.delivered_version >= watch.source_version:
        return None
    tracker = spark.sparkContext.statusTracker()
    job = max(tracker.getJobIdsForGroup(str(query.runId)), default=None)
    info = None if job is None else tracker.getJobInfo(job)
    stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
    done = sum(stage.numCompletedTasks for stage in stages if stage)
    return QueryActivity(watch.delivered_version, watch.batches.started, job, done)
