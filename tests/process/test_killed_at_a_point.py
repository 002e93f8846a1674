"""SIGKILL of the driver at each point of a micro-batch that matters: the batch is delivered again, and nothing differs."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from deploy.servers.server import PROJECT
from tests.chaos.killed_at import POINTS
from tests.chaos.world import REFUSED_KEY, TABLES, world
from tests.support.service import Service
from tests.support.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.world import World

SEED = 2
TIMES = 3
"""Some routes have delivered by then, others have not."""


class Doomed(Service):
    point = ""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.killed_at", self.point, "run"]


@pytest.fixture(scope="module")
def chaos(spark, tmp_path_factory) -> Iterator[World]:
    with world(spark, tmp_path_factory.mktemp("points"), SEED) as made:
        made.wait_caught_up()
        made.service.end()
        yield made


def change(chaos: World, number: int) -> None:
    """Some rows come, some of them to be refused; some change, some go."""
    first = number * 1000
    for name in TABLES:
        t = f"delta.`{chaos.path(name)}`"
        for more in range(first, first + 300, 100):
            bad = f"IF(id % 50 = 7, map({REFUSED_KEY}, 1), map('t', 1))"
            chaos.spark.sql(f"INSERT INTO {t} SELECT id, 'new', id, {bad} FROM range({more}, {more + 100})")
        chaos.spark.sql(f"UPDATE {t} SET amount = -1 WHERE id % 3 = 0")
        chaos.spark.sql(f"DELETE FROM {t} WHERE id % 7 = 0")


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_there_nothing_differs(chaos: World, point: str):
    change(chaos, list(POINTS).index(point))
    given = {
        **chaos.service.given,
        "PYTHONPATH": str(PROJECT),
        "CHAOS_TIMES": str(TIMES),
        "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "1",
    }
    with Doomed(given) as doomed:
        doomed.point = point
        doomed.started()
        until(lambda: not doomed.running, PATIENCE_SECONDS, doomed.log.read_text)

    chaos.begin()
    chaos.wait_caught_up()
    assert chaos.differences() == []
    chaos.service.end()


@pytest.mark.parametrize("side", ["search", "cache"])
def test_after_a_kill_in_the_middle_of_a_chunk_nothing_differs(chaos: World, side: str):
    """A part of a request has reached the server by then, and nobody will read its answer."""
    chaos.begin()
    proxy = getattr(chaos, side)
    proxy.mode, proxy.stalled = "stall", 0
    change(chaos, len(POINTS) + ["search", "cache"].index(side))
    until(lambda: proxy.stalled, PATIENCE_SECONDS, chaos.service.log.read_text)
    os.kill(chaos.service.pid, signal.SIGKILL)
    proxy.mode = "pass"

    chaos.begin()
    chaos.wait_caught_up()
    assert chaos.differences() == []
    chaos.service.end()
