"""Tag the Spark jobs of a snapshot's load, and read what share of their tasks has finished."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def load_tag(route: str, epoch: int) -> str:
    """Return the tag of the jobs that load a route's snapshot in an epoch."""
    return f"cdf-load-{route}-{epoch}"


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts."""
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)


def finished_share(spark: SparkSession, tag: str) -> float:
    """Return the share of finished tasks in the tagged jobs, 0 to 1; 0 before the first job.

    A failed job does not count, since its work is done again. The share decreases if a further job starts.
    """
    context: Any = spark.sparkContext._jsc
    tracker = context.sc().statusTracker()
    finished = known = 0
    for number in tracker.getJobIdsForTag(tag):
        job = tracker.getJobInfo(number)
        status = job.get().status().toString() if job.isDefined() else "UNKNOWN"
        if status not in {"RUNNING", "SUCCEEDED"}:
            continue
        for stage in job.get().stageIds():
            found = tracker.getStageInfo(stage)
            if found.isDefined():
                done = found.get().numCompletedTasks()
                finished += done
                known += found.get().numTasks() if status == "RUNNING" else done  # without the stages that it skipped
    return finished / known if known else 0.0
