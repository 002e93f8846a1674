"""Measure a table of very many rows, of very many files, and of very many commits: a process for each, into a sink that keeps nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tests.benchmarks import linked_table, null_sink
from tests.benchmarks.idle import all_run
from tests.benchmarks.linked_table import LinkedTable
from tests.benchmarks.once import run_once
from tests.benchmarks.usage import measured
from tests.support.service import Service, environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.scale import Sizes

    Report = Callable[[str], None]

PATIENCE_SECONDS = 7200
ONE_FILE = 10
"""Rows of a file where the number of files or commits matters."""


@dataclass(frozen=True)
class Delivery:
    """One ``run --once``: its rows, its micro-batches, and from exec to exit: seconds, processor seconds, most memory in bytes.

    ``delivery_seconds``: of the micro-batches alone.
    """

    files: int
    rows: int
    batches: int
    delivery_seconds: float
    seconds: float
    cpu_seconds: float
    peak_rss: int


@dataclass(frozen=True)
class LongLog:
    """A route of a table with so many commits, idle: seconds until it runs, share of one core afterwards."""

    commits: int
    start_seconds: float
    idle_share: float


@dataclass(frozen=True)
class Found:
    """``commits``: a backlog of so many commits of one file."""

    rows: list[Delivery]
    files: list[Delivery]
    commits: Delivery
    long_log: LongLog


def sizes(scale: Sizes, report: Report) -> Found:
    rows = [_bootstrap(count // scale.rows_a_file, scale.rows_a_file, report) for count in scale.rows]
    files = [_bootstrap(count, ONE_FILE, report) for count in scale.files]
    with TemporaryDirectory() as name:
        folder = Path(name)
        table = LinkedTable(folder / "rows", ONE_FILE)
        table.create(1)
        table.append(scale.commits)
        DeltaTable(folder / "rows").create_checkpoint()
        commits = _once(folder, scale.commits, report, TABLES__ROWS__STARTING_VERSION=1)
        long_log = _idle(folder, scale, report)
    return Found(rows, files, commits, long_log)


def _bootstrap(files: int, rows_a_file: int, report: Report) -> Delivery:
    with TemporaryDirectory() as name:
        LinkedTable(Path(name) / "rows", rows_a_file).create(files)
        return _once(Path(name), files, report)


def _given(folder: Path, **more: object) -> dict[str, str]:
    null_sink.install(folder / "site")
    route = {"TABLES__ROWS__PATH": folder / "rows", "TABLES__ROWS__KEYS": linked_table.KEYS}
    sink = {"TABLES__ROWS__SINKS": "null", "SINKS__NULL__TYPE": "null", "SINKS__NULL__PATH": folder / "claims"}
    given = environment(folder, **route, **sink, **more)
    return {**given, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "site"), given.get("PYTHONPATH"))))}


def _once(folder: Path, files: int, report: Report, **more: object) -> Delivery:
    once = run_once(_given(folder, **more), folder, PATIENCE_SECONDS)
    rows, seconds, usage = once.rows, sum(batch["seconds"] for batch in once.batches), once.usage
    found = Delivery(files, rows, len(once.batches), seconds, usage.seconds, usage.cpu_seconds, usage.peak_rss)
    report(f"sizes: {rows:,} rows of {files:,} files in {found.seconds:.0f} s, {found.peak_rss / 2**20:,.0f} MiB")
    return found


def _idle(folder: Path, scale: Sizes, report: Report) -> LongLog:
    """Start the service on the newest commit of the same table, and leave it idle."""
    given = _given(folder / "idle", TABLES__ROWS__STARTING_VERSION=scale.commits)
    with Service({**given, "CDF_TABLES__ROWS__PATH": str(folder / "rows")}).started() as service:
        began = time.monotonic()
        service.wait(all_run, within=PATIENCE_SECONDS)
        start = time.monotonic() - began
        time.sleep(scale.settle_seconds)
        with measured([service.pid]) as usage:
            time.sleep(scale.idle_seconds)
    found = LongLog(scale.commits, start, usage.cpu_seconds / usage.seconds)
    report(
        f"sizes: a log of {scale.commits:,} commits: runs after {start:.0f} s, idle {found.idle_share:.1%} of a core"
    )
    return found
