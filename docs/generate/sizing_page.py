"""Estimate the resources of a service from the results of `make bench`, for docs/deployment.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from docs.generate.benchmarks_page import RESULTS
from tests.benchmarks.kept import Kept
from tests.benchmarks.report import markdown

PAGE = Path(__file__).parents[1] / "deployment.md"
SINKS = ("Redis", "Elasticsearch", "Delta audit", "Delta replica")
CORES, BUSY = 2, 0.7
"""Cores of an instance, and the share of them that is planned. A restart or a resync uses the remaining share."""


@dataclass(frozen=True)
class Costs:
    """Processor seconds of driver, JVM and Python workers.

    Attributes:
        idle: Per idle route and second.
        batch: Per small micro-batch.
        change: Per change, by sink.
    """

    idle: float
    batch: float
    change: dict[str, float]

    @classmethod
    def measured(cls) -> Costs:
        kept = Kept.read(RESULTS)
        change = {sink: kept.contests[f"{sink.lower()} changes"].samples["ours"] for sink in SINKS}
        return cls(
            kept.seen["idle"]["cpu_share"] / kept.seen["idle"]["routes"],
            kept.seen["latency"]["batch_cpu_seconds"],
            {sink: median(one.cpu_seconds / one.rows for one in samples) for sink, samples in change.items()},
        )


@dataclass(frozen=True)
class Lake:
    """A workload: `routes` tables with one route each, and a commit of `changes` changes `every` so many seconds."""

    routes: int
    every: float
    changes: int
    sink: str

    def cores(self, costs: Costs) -> float:
        return self.routes * (costs.idle + (costs.batch + self.changes * costs.change[self.sink]) / self.every)


LAKES = (
    Lake(50, 3600, 100_000, "Elasticsearch"),
    Lake(50, 300, 10_000, "Elasticsearch"),
    Lake(200, 300, 1_000, "Redis"),
    Lake(50, 60, 1_000, "Redis"),
    Lake(50, 10, 100, "Redis"),
    Lake(2, 1, 100, "Redis"),
    Lake(2, 1, 20_000, "Elasticsearch"),
    Lake(4, 60, 500_000, "Delta replica"),
)


def costs() -> str:
    measured = Costs.measured()
    changes = [(f"a million changes into {sink}", f"{1e6 * seconds:.1f}") for sink, seconds in measured.change.items()]
    rows = [
        ("an idle route, a second", f"{measured.idle:.4f}"),
        ("a small micro-batch of one route", f"{measured.batch:.2f}"),
        *changes,
    ]
    return markdown(("what", "processor seconds"), rows)


def examples() -> str:
    measured = Costs.measured()
    columns = (
        "routes",
        "each: a commit every",
        "changes in it",
        "sink",
        "changes a second",
        "cores busy",
        f"instances of {CORES} cores",
    )
    return markdown(columns, [_row(lake, lake.cores(measured)) for lake in LAKES])


def _row(lake: Lake, cores: float) -> tuple[str, ...]:
    instances = math.ceil(cores / (CORES * BUSY))
    a_second = lake.routes * lake.changes / lake.every
    return (
        f"{lake.routes}",
        f"{lake.every:,.0f} s",
        f"{lake.changes:,}",
        lake.sink,
        f"{a_second:,.0f}",
        f"{cores:.2f}",
        f"{instances}",
    )
