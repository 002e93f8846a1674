"""Notices a query that is alive but does not move, though its source is ahead: a hung connection, a lost wake-up.

Begun anew once; if that has not helped, somebody has to be told, and it may still move by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.progress import Watch

TRIGGERS: Final = 2
"""A commit waits for the next trigger and for one that is under way."""


@dataclass(frozen=True, slots=True)
class Movement:
    """All that changes while a query that is behind delivers; ``job``, ``tasks``: Spark's newest job for it, tasks of it done."""

    delivered_version: int
    batches: int
    job: int | None
    tasks: int


class Standstill:
    """Of one route. ``begun_anew``: its query, which has delivered nothing since. ``seconds``: how long nothing may move; ``trigger_seconds``: between two looks of the query at its source."""

    def __init__(self, seconds: float, trigger_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds = max(seconds, TRIGGERS * trigger_seconds)
        self._now = now
        self._seen: Movement | None = None
        self._since = now()
        self.begun_anew = False

    def look(self, seen: Movement | None, *, delivers: bool) -> bool:
        """Whether what is seen has been the same for too long; None: the query is not behind, and nothing has to move.

        ``delivers``: this run of the query has committed a micro-batch; beginning it anew has helped, if it was.
        """
        if seen is None or seen != self._seen:
            self._seen, self._since = seen, self._now()
        self.begun_anew = self.begun_anew and not delivers
        return seen is not None and self._now() - self._since >= self.seconds

    def begin_anew(self) -> None:
        """The next run of the query has as much time again."""
        self._seen, self.begun_anew = None, True


def movement(spark: SparkSession, query: StreamingQuery, watch: Watch) -> Movement | None:
    """None if the query is not behind its source."""
    if watch.source_version is None or watch.delivered_version >= watch.source_version:
        return None
    tracker = spark.sparkContext.statusTracker()
    job = max(tracker.getJobIdsForGroup(str(query.runId)), default=None)
    info = None if job is None else tracker.getJobInfo(job)
    stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
    done = sum(stage.numCompletedTasks for stage in stages if stage)
    return Movement(watch.delivered_version, watch.batches_begun, job, done)
