"""Simulate a writer of many small commits that uses no processor time.

Spark writes the table beforehand. The simulated writer puts its commits, with their checksums and checkpoints, in place
one after the other.

As a process, one commit a second: ``python -m tests.benchmarks.commits MADE TABLE FIRST END``. Prints, for each, its first id
and when it was there, by the clock that all processes of the machine share.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa

from tests.benchmarks import light_table, works
from tests.benchmarks.contests import session

BEGIN_ROWS = 1000
ROWS = 5
"""Rows of a commit."""


def made(count: int) -> Path:
    """The table with all of its commits; made once and kept."""
    table = works.FOLDER / f"commits-{count}"

    def make() -> None:
        with session() as spark:
            for first, rows in ((0, BEGIN_ROWS), *((first_id(number), ROWS) for number in range(count))):
                frame = spark.createDataFrame(pa.Table.from_batches([light_table.batch(first, rows)]))
                frame.coalesce(1).write.format("delta").mode("append").options(**light_table.FEED_ON).save(str(table))

    works.once(table, make)
    return table


def first_id(commit: int) -> int:
    """Return the first id that a commit adds. The first commit is number 0 and version 1."""
    return BEGIN_ROWS + commit * ROWS


def begin(source: Path, table: Path) -> None:
    """Create the table at version 0, with the data files of all later versions, which its log does not name yet."""
    shutil.copytree(source, table, ignore=shutil.ignore_patterns("_delta_log"))
    _log(table).mkdir()
    _put(source, table, 0)


def _put(source: Path, table: Path, version: int) -> float:
    """Put the commit in place, then what Spark writes after it; return when the commit was there. Each file at once and whole."""
    _place(_log(source) / f"{version:020d}.json", table)
    committed = time.monotonic()
    for file in sorted(_log(source).glob(f"{version:020d}.c*")):
        _place(file, table)
    return committed


def _place(file: Path, table: Path) -> None:
    shutil.copyfile(file, table / file.name)
    (table / file.name).rename(_log(table) / file.name)


def _log(table: Path) -> Path:
    return table / "_delta_log"


def main() -> None:
    source, table, first, end = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    started, chance = time.monotonic(), random.Random(end)
    for number in range(first, end):
        # One in every second, but anywhere in it: a fixed beat would meet Spark's trigger at the same phase each time.
        time.sleep(max(0.0, started + number - first + chance.random() - time.monotonic()))
        print(first_id(number), _put(source, table, number + 1), flush=True)


if __name__ == "__main__":
    main()
