"""A process that makes small commits, one a second: ``python -m tests.benchmarks.writer TABLE FIRST COMMITS``.

Prints, for each, its first id and when it was made, by the clock that all processes of the machine share.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from tests.benchmarks import light_table

ROWS = 5
"""Of a commit."""


def main() -> None:
    table, first, commits = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    begin, chance = time.monotonic(), random.Random(first)
    for number in range(commits):
        # One in every second, but anywhere in it: a fixed beat would meet Spark's trigger at the same phase each time.
        time.sleep(max(0.0, begin + number + chance.random() - time.monotonic()))
        key = first + number * ROWS
        light_table.append(table, key, ROWS)
        print(key, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
