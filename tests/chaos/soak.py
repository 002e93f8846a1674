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
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tests.chaos.faults import FAULTS, inject
from tests.chaos.world import TABLES, world
from tests.chaos.writer import Writer
from tests.support.session import started

if TYPE_CHECKING:
    from tests.chaos.world import World

HELD_SECONDS = (0.5, 12)
REST_SECONDS = (0, 8)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as name, started(Path(name)) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        print(f"seed: {options.seed}", flush=True)
        with world(spark, Path(name), options.seed) as chaos:
            chaos.wait_caught_up()
            found, commits = live(chaos, options.seconds)
            rows = {name: spark.read.format("delta").load(str(chaos.path(name))).count() for name in TABLES}
    print(f"faults injected: {sum(chaos.injected.values())} {dict(chaos.injected.most_common())}")
    print(f"restarts of the service: {chaos.restarts}  commits: {commits}  rows at the end: {rows}")
    print("\n".join(found[:50]))
    print(f"differences: {len(found)}")
    return 1 if found else 0


def live(chaos: World, seconds: float) -> tuple[list[str], int]:
    """Returns the differences once everything is healed and caught up, and how many commits there were."""
    ends = time.monotonic() + seconds
    with Writer(chaos, chaos.random.randrange(2**31), pause_seconds=0.5) as writer:
        while time.monotonic() < ends:
            name = chaos.random.choice(list(FAULTS))
            held = chaos.random.uniform(*HELD_SECONDS)
            print(f"{time.strftime('%H:%M:%S')} {name} for {held:.1f} s", flush=True)
            inject(chaos, name, held)
            time.sleep(chaos.random.uniform(*REST_SECONDS))
    chaos.wait_caught_up()
    return chaos.differences(), writer.commits


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=900, help="bring no further fault about after so many seconds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="of the schedule")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
