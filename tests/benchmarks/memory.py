"""Measure the peak memory of the service: for one large commit, a long backlog, one huge row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from deploy.local.servers import Redis
from tests.benchmarks import light_table
from tests.benchmarks.growth import FEW, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.growth import Sink
    from tests.benchmarks.scale import Memory

    Fill = Callable[[Path], None]


@dataclass(frozen=True)
class Peaks:
    """Bytes that the driver, its JVM and its workers held together at most."""

    sink: Sink
    one_million_rows: int
    large_commit: int
    backlog: int
    huge_row: int


def peaks(sink: Sink, scale: Memory, report: Callable[[str], None]) -> Peaks:
    def backlog(table: Path) -> None:
        for number in range(scale.backlog_commits):
            light_table.append(table, FEW + number * scale.backlog_rows, scale.backlog_rows)

    fills: list[Fill] = [
        lambda table: light_table.append(table, FEW, scale.rows),
        lambda table: light_table.append(table, FEW, scale.large_commit),
        backlog,
        lambda table: light_table.append_row(table, FEW, scale.huge_row_bytes),
    ]
    return Peaks(sink, *(_peak(sink, fill, report) for fill in fills))


def _peak(sink: Sink, fill: Fill, report: Callable[[str], None]) -> int:
    """Return the peak memory of a run that delivers the changes of ``fill`` to a table of a few rows."""
    with TemporaryDirectory() as name, Redis.start(config={"appendonly": "no"}) as cache:
        run = Run(sink, Path(name), cache.url, TABLES__ROWS__STARTING_VERSION=0)
        light_table.create(run.table, FEW)
        fill(run.table)
        return run.once("commit", report).peak_rss
