"""Write the flight board of `deploy/compose.yaml` as a Delta table, one day after another with a pause, then exit.

python -m deploy.local.demo.board FOLDER [--days 28] [--pause 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from deploy.local.demo import flights
from deploy.local.demo.source import Board, Commit
from deploy.local.demo.spark import session

TABLE = "flights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--pause", type=float, default=2, help="seconds between two days")
    options = parser.parse_args()
    if (options.folder / TABLE / "_delta_log").exists():
        print(f"{options.folder / TABLE} already exists: nothing to write", flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch, session(Path(scratch), memory="600m") as spark:
        csv = flights.write_csv(Path(scratch))
        board = Board(spark, csv, options.folder / TABLE, days=options.days, announce=_tell)
        print(f"{board.create():,} flights before the first day", flush=True)
        for number in range(options.days):
            for _ in board.write_day(number):
                pass
            time.sleep(options.pause)


def _tell(commit: Commit) -> None:
    print(f"version {commit.version}: {commit.what}", flush=True)


if __name__ == "__main__":
    main()
