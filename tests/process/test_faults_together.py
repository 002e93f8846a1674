"""Tests of simultaneous faults of the servers and of the service's processes: afterwards it catches up, and nothing differs.

``tests/nightly/test_faults.py`` has each fault alone.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tests.chaos.faults import ELASTICSEARCH_FAULTS, POSTGRES_FAULTS, PROCESS_FAULTS, REDIS_FAULTS, held
from tests.chaos.world import world

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SEED = 18
ROUNDS = 4
HELD_SECONDS = 3


def schedule(seed: int) -> list[tuple[str, ...]]:
    """Draw rounds of a fault of each server, among all faults of a process."""
    drawn = random.Random(seed)
    servers = (ELASTICSEARCH_FAULTS, REDIS_FAULTS, POSTGRES_FAULTS)
    rounds = [
        *zip(*(drawn.sample(list(faults), ROUNDS) for faults in servers), strict=True),
        *((name,) for name in PROCESS_FAULTS),
    ]
    drawn.shuffle(rounds)
    return rounds


def test_sinks_equal_the_table_after_simultaneous_faults(spark: SparkSession, tmp_path: Path):
    """Each fault has an effect, or ``held`` fails: a write is retried, or another process runs."""
    with world(spark, tmp_path, SEED, tables=("orders",)) as chaos:
        chaos.wait_caught_up()
        for names in schedule(SEED):
            print(f"{' and '.join(names)}, seed {SEED}")
            chaos.change()
            with held(chaos, *names):
                chaos.change()
                time.sleep(HELD_SECONDS)
            chaos.wait_caught_up()
            assert chaos.differences() == [], names
        log = chaos.service.log.read_text()
    assert "This is a bug" not in log
    assert "(CDF_LOG__LEVEL=debug shows where)" not in log
