"""Faults one after the other, from a seeded schedule, under a writer: ``make soak-chaos SECONDS=900`` (SEED=41: that one again).

Ends with the line ``differences: N`` and exits 1 where there is one.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tests.chaos.faults import FAULTS, inject
from tests.chaos.world import CAUGHT_UP_SECONDS, TABLES, world
from tests.chaos.writer import Writer
from tests.support.session import started
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.chaos.world import World

HELD_SECONDS = (0.5, 12)
REST_SECONDS = (0, 8)
PAUSE_SECONDS = 2
MAX_FILES = 2
"""A micro-batch takes so many files: a commit of more takes several micro-batches."""
KILLS = {"driver killed": 5, "jvm killed": 5}
"""Weights; every other fault has 1."""
INSIDE_SECONDS = 180
"""A kill waits so long for a route that is in the middle of a commit."""


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as name, started(Path(name)) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        print(f"seed: {options.seed}", flush=True)
        split = {f"TABLES__{table.upper()}__MAX_FILES_PER_TRIGGER": MAX_FILES for table in TABLES}
        with world(spark, Path(name), options.seed, **split) as chaos:
            chaos.wait_caught_up()
            found, commits = live(chaos, options.seconds)
            rows = {name: spark.read.format("delta").load(str(chaos.path(name))).count() for name in TABLES}
    print(f"faults injected: {sum(chaos.injected.values())} {dict(chaos.injected.most_common())}")
    print(f"restarts of the service: {chaos.restarts}  commits: {commits}  rows at the end: {rows}")
    caught = [routes for routes in chaos.kills if routes]
    print(
        f"kills: {len(chaos.kills)}, in the middle of a commit of several micro-batches: {len(caught)} "
        f"(routes caught: {sum(map(len, caught))})"
    )
    print("\n".join(found[:50]))
    print(f"differences: {len(found)}")
    return 1 if found else 0


def live(chaos: World, seconds: float) -> tuple[list[str], int]:
    """Returns the differences once everything is healed and caught up, and how many commits there were."""
    ends = time.monotonic() + seconds
    with Writer(chaos, chaos.random.randrange(2**31), PAUSE_SECONDS) as writer:
        while time.monotonic() < ends:
            (name,) = chaos.random.choices(list(FAULTS), [KILLS.get(name, 1) for name in FAULTS])
            held = chaos.random.uniform(*HELD_SECONDS)
            print(f"{time.strftime('%H:%M:%S')} {name} for {held:.1f} s", flush=True)
            if name in KILLS:
                with suppress(AssertionError):
                    until(chaos.routes_inside_a_commit, INSIDE_SECONDS)
            inject(chaos, name, held)
            if name in KILLS:
                print(f"         in the middle of a commit: {', '.join(chaos.kills[-1]) or 'no route'}", flush=True)
            time.sleep(chaos.random.uniform(*REST_SECONDS))
    chaos.wait_caught_up(max(CAUGHT_UP_SECONDS, 2 * seconds))
    return chaos.differences() + chaos.verified(), writer.commits


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=900, help="bring no further fault about after so many seconds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="of the schedule")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
