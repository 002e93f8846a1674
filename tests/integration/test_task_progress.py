"""A command on a terminal shows the finished tasks of its Spark jobs, and prints nothing into a file."""

from __future__ import annotations

import io
import sys
import threading
import time
from pathlib import Path

import pytest

from cdf_replicator.commands.task_progress import without_progress
from cdf_replicator.queries.answer import Values
from cdf_replicator.queries.running import RunningQuery
from tests.support.waiting import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stderr", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_running_tasks_are_shown_on_a_terminal_alone(spark, tmp_path, monkeypatch, stderr, shown):
    gate = str(tmp_path / "gate")

    def waiting(batches):
        for batch in batches:
            deadline = time.monotonic() + 60
            while not Path(gate).exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)

    def release() -> None:
        if shown:
            until(lambda: "of 2 tasks" in stderr.getvalue())
        Path(gate).touch()

    releasing = threading.Thread(target=release)
    releasing.start()

    def counted():
        yield spark.range(0, 4, 1, 2).mapInArrow(waiting, "id long").count()

    events = RunningQuery(spark, counted, "count").events()
    assert list(without_progress(events, "verify orders")) == [Values((4,))]
    releasing.join()
    assert ("verify orders" in stderr.getvalue()) == shown
