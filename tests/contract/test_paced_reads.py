"""A paced job pauses for nine tenths of the time, in Python's workers and in the JVM."""

from __future__ import annotations

import itertools
import time

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from connectors import ScannedView
from connectors.rendering import parsed_row
from connectors.view import (
    BODY,
    LONGEST_PAUSE_SECONDS,
    PACED,
    PAUSE,
    SLOT_MILLISECONDS,
    entry_batch,
    paced,
    with_pauses,
)

WORK_SECONDS = 0.03
PAGES = 3
SCHEMA = StructType().add("id", "long")


@pytest.fixture
def pace(spark):
    """Pace the jobs of this thread, as the service does for a periodic comparison."""
    spark.sparkContext.setLocalProperty(PACED, "true")
    yield
    spark.sparkContext.setLocalProperty(PACED, None)


class SlowView(ScannedView):
    """Pages that take a while; the identity of each is the time at which it was read."""

    consistent = True
    parts = 1

    def scan(self, part):
        for _ in range(PAGES):
            time.sleep(WORK_SECONDS)
            yield entry_batch([str(time.monotonic())], [1], ["{}"])

    def read(self, schema):
        return parsed_row(BODY, schema)


def test_pauses_are_in_proportion_to_the_work_and_limited():
    now, pauses = [0.0], []

    def pages():
        for seconds in (1.0, 0.25, 60.0):
            now[0] += seconds
            yield pa.RecordBatch.from_pydict({"seconds": [seconds]})

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    for _ in with_pauses(pages(), lambda: now[0], sleep):
        now[0] += 5.0  # what the reader does meanwhile is no work of the target
    assert pauses == [PAUSE * 1.0, PAUSE * 0.25, LONGEST_PAUSE_SECONDS]


def test_worker_of_a_paced_job_pauses_between_pages(spark, pace):
    times = [float(row.identity) for row in SlowView().entries(spark, SCHEMA).collect()]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) >= (1 + PAUSE) * WORK_SECONDS


def test_task_of_a_paced_job_sleeps_until_the_next_slot(spark, pace):
    """Each row takes 2 ms. The task checks the clock every 16 rows, so that a slot of 100 ms has 16 rows."""
    work = F.expr("java_method('java.lang.Thread', 'sleep', 2L + id * 0)")
    rows = paced(spark.range(0, 160, 1, 4).withColumn("work", work))
    assert rows.rdd.getNumPartitions() == 1
    began = time.monotonic()
    assert rows.agg(F.count("work")).first() == (160,)
    assert time.monotonic() - began >= 8 * SLOT_MILLISECONDS / 1000


def test_job_that_is_not_paced_reads_without_pauses(spark):
    rows = spark.range(0, 160, 1, 4)
    assert paced(rows) is rows
