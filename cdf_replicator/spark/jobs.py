"""Tag Spark jobs, and read what share of their tasks has finished and how many rows they have read."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def load_tag(route: str) -> str:
    """Return the tag of the jobs that load a route's snapshot."""
    return f"cdf-load-{route}"


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts."""
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)


class TaggedJobs:
    """The jobs with a tag that start from now on."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        context: Any = spark.sparkContext._jsc
        self._tracker, self._store = context.sc().statusTracker(), context.sc().statusStore()
        self._tag = tag
        self._rows: dict[int, int] = {}
        """Number of rows by stage, since Spark forgets older stages."""
        self._former = set(self._tracker.getJobIdsForTag(tag))

    def finished_share(self) -> float:
        """Return the share of finished tasks, 0 to 1; 0 before the first job.

        A failed job does not count, since its work is done again. The share decreases if a further job starts.
        """
        finished = known = 0
        for number in self._numbers():
            job = self._tracker.getJobInfo(number)
            status = job.get().status().toString() if job.isDefined() else "UNKNOWN"
            if status not in {"RUNNING", "SUCCEEDED"}:
                continue
            for stage in job.get().stageIds():
                found = self._tracker.getStageInfo(stage)
                if found.isDefined():
                    done = found.get().numCompletedTasks()
                    finished += done
                    known += found.get().numTasks() if status == "RUNNING" else done  # without skipped stages
        return finished / known if known else 0.0

    def rows_read(self) -> int:
        """Return the number of rows that the jobs have read. Spark counts those of a running task every ten seconds."""
        jobs = (self._tracker.getJobInfo(number) for number in self._numbers())
        for stage in {stage for job in jobs if job.isDefined() for stage in job.get().stageIds()}:
            with suppress(Py4JJavaError):  # Spark knows no attempt of a skipped stage
                self._rows[stage] = self._store.lastStageAttempt(stage).inputRecords()
        return sum(self._rows.values())

    def movement(self) -> tuple[float, int] | None:
        """Return values that change while the jobs progress; None while no job runs."""
        infos = [self._tracker.getJobInfo(number) for number in self._numbers()]
        if not any(info.isDefined() and info.get().status().toString() == "RUNNING" for info in infos):
            return None
        return self.finished_share(), self.rows_read()

    def _numbers(self) -> set[int]:
        return set(self._tracker.getJobIdsForTag(self._tag)) - self._former
