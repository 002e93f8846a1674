"""Show the finished tasks of a command's Spark jobs on a terminal."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from rich.progress import TaskID

POLL_SECONDS: Final = 0.3


@contextmanager
def task_progress(spark: SparkSession, title: str) -> Iterator[None]:
    """Show a bar on stderr until the block ends; does nothing without a terminal.

    Spark plans one stage after another, so that the bar counts the tasks of the stages that run now.
    """
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=None, what="")
        poller = threading.Thread(target=_show, args=(spark, bars, bar, over), daemon=True)
        poller.start()
        try:
            yield
        finally:
            over.set()
            poller.join()


def _show(spark: SparkSession, bars: Progress, bar: TaskID, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(POLL_SECONDS):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
        done, tasks = sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages)
        bars.update(bar, total=tasks or None, completed=done, what=f"{done} of {tasks} tasks" if tasks else "")
