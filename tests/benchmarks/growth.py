"""Measure how time per row and memory grow with the size of a delivery: ``run --once``, a process for each size.

The time of a delivery is what the service's log says lies between the begin of the route's bootstrap or stream and the
end of its last batch. A delivery of a few rows, in a process of its own too, shows what of that no row is to blame for:
plans and cold code.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from deploy.local.servers import Redis
from tests.benchmarks import light_table
from tests.benchmarks.once import run_once
from tests.support.service import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Sink = Literal["redis", "audit"]
    Kind = Literal["bootstrap", "changes", "commit"]

PATIENCE_SECONDS = 1800
FEW = 1000
"""Rows of the delivery that is subtracted."""


@dataclass(frozen=True)
class Delivery:
    """One ``run --once``. ``seconds``: of the delivery; ``run_seconds``: from exec to exit; ``peak_rss``: of the whole tree.

    ``kind``: the snapshot of a table; as many changes, over 20 commits; one commit. ``rows``: as read, an update is two.
    """

    sink: Sink
    kind: Kind
    rows: int
    batches: int
    seconds: float
    run_seconds: float
    peak_rss: int

    def seconds_per_row(self, few: Delivery) -> float:
        """Without what a delivery of a few rows takes as well."""
        return (self.seconds - few.seconds) / (self.rows - few.rows)


@dataclass(frozen=True)
class Growth:
    """Series of one sink, small to large. The first of each delivers a few rows."""

    sink: Sink
    bootstraps: list[Delivery]
    changes: list[Delivery]
    commits: list[Delivery]


def growth(sink: Sink, sizes: Sequence[int], commits: Sequence[int], report: Callable[[str], None]) -> Growth:
    """``sizes``: rows of the tables, each bootstrapped and then changed; ``commits``: rows of single commits."""
    found = Growth(sink, [], [], [])
    for rows in (FEW, *sizes):
        with TemporaryDirectory() as name, Redis.start(config={"appendonly": "no"}) as cache:
            run = Run(sink, Path(name), cache.url)
            light_table.create(run.table, rows)
            found.bootstraps.append(run.once("bootstrap", report))
            light_table.change(run.table, rows, rows)
            found.changes.append(run.once("changes", report))
    for rows in (FEW, *commits):
        with TemporaryDirectory() as name, Redis.start(config={"appendonly": "no"}) as cache:
            run = Run(sink, Path(name), cache.url)
            light_table.create(run.table, FEW)
            run.once("bootstrap", report)
            light_table.append(run.table, FEW, rows)
            found.commits.append(run.once("commit", report))
    return found


class Run:
    """A service that follows ``table`` into one sink; its state stays from one run to the next."""

    def __init__(self, sink: Sink, folder: Path, redis_url: str, **more: object) -> None:
        self.sink, self.folder, self.table = sink, folder, folder / "rows"
        where: Mapping[str, object] = {
            "redis": {"SINKS__REDIS__TYPE": "redis", "SINKS__REDIS__URL": redis_url},
            "audit": {"SINKS__AUDIT__TYPE": "delta_audit", "SINKS__AUDIT__PATH": folder / "audit"},
        }[sink]
        route = {"TABLES__ROWS__PATH": self.table, "TABLES__ROWS__KEYS": "id", "TABLES__ROWS__SINKS": sink}
        self.given = environment(folder, **route, **where, **more)

    def once(self, kind: Kind, report: Callable[[str], None]) -> Delivery:
        found = run_once(self.given, self.folder, PATIENCE_SECONDS)
        rows, usage = found.rows, found.usage
        began = found.ended.entry(message="route state", state="bootstrapping" if kind == "bootstrap" else "running")
        seconds = (_at(found.batches[-1]) - _at(began)).total_seconds()
        report(f"growth: {self.sink}, {kind}: {rows:,} rows in {seconds:.1f} s, {usage.peak_rss / 2**20:.0f} MiB")
        return Delivery(self.sink, kind, rows, len(found.batches), seconds, usage.seconds, usage.peak_rss)


def _at(entry: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(entry["@timestamp"].replace("Z", "+00:00"))
