"""All measures of the service as a process, part by part: the values that targets name, and all else that was seen."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.benchmarks.commit import ARMS, BY_HAND, OURS, costs
from tests.benchmarks.executors import executors
from tests.benchmarks.growth import growth
from tests.benchmarks.idle import idle
from tests.benchmarks.latency import latency
from tests.benchmarks.memory import peaks
from tests.benchmarks.sizes import sizes
from tests.benchmarks.start import commands, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.scale import Scale

    Report = Callable[[str], None]
    Measured = tuple[dict[str, float | None], dict[str, Any]]

GIB = 2**30


def of_latency(scale: Scale, report: Report) -> Measured:
    found = latency(scale.commits, scale.warm_up_commits, report)
    values = {}
    for sink, seen in (("Redis", found.redis), ("Elasticsearch", found.elasticsearch)):
        values[f"commit to visible in {sink}, p50"] = seen.p50
        values[f"commit to visible in {sink}, p99"] = seen.p99
    return values, asdict(found)


def of_commit(scale: Scale, report: Report) -> Measured:
    found = costs(scale.small_commits, scale.warm_up_commits, report)
    values: dict[str, float | None] = {}
    for name, arms in found.items():
        for arm in ARMS[1:]:
            values[f"a commit into {name}, processor time against {arm}"] = (
                arms[OURS].cpu_seconds / arms[arm].cpu_seconds
            )
    for name in ("redis", "all"):
        ours, by_hand = found[name][OURS].visible, found[name][BY_HAND].visible
        values[f"a commit into {name}, time to visible against {BY_HAND}"] = (
            ours / by_hand if ours and by_hand else None
        )
    values["a commit, processor time of audit against redis"] = (
        found["audit"][OURS].cpu_seconds / found["redis"][OURS].cpu_seconds
    )
    return values, {name: {arm: asdict(cost) for arm, cost in arms.items()} for name, arms in found.items()}


def of_idle(scale: Scale, report: Report) -> Measured:
    found = idle(*scale.idle, report)
    values = {
        "50 idle routes, of one core": found.cpu_share * 100,
        "50 idle routes, driver and JVM": (found.driver_rss + found.jvm_rss) / GIB,
    }
    return values, asdict(found)


def of_many(scale: Scale, report: Report) -> Measured:
    found = idle(*scale.many, report, heap="2g")
    values = {
        "500 idle routes, of one core": found.cpu_share * 100,
        "500 idle routes, driver and JVM": (found.driver_rss + found.jvm_rss) / GIB,
    }
    return values, asdict(found)


def of_growth(scale: Scale, report: Report) -> Measured:
    """Redis and audit: the worse of the two, and of bootstrap and changes."""
    values: dict[str, float] = {}
    seen = {}
    for sink in scale.growth_sinks:
        found = growth(sink, scale.growth, scale.large_commits, report)
        seen[sink] = asdict(found)
        if len(scale.growth) < 3:
            continue
        for few, small, middle, large in (found.bootstraps, found.changes):
            _worse(
                values, "time per row, 3M against 100k rows", large.seconds_per_row(few) / small.seconds_per_row(few)
            )
            _worse(values, "memory, 3M against 1M rows", large.peak_rss / middle.peak_rss)
        commit = found.commits[-1]
        _worse(values, "memory, one commit of 2M against 1M rows", commit.peak_rss / found.changes[-2].peak_rss)
    return values, seen


def of_start(scale: Scale, report: Report) -> Measured:
    found, costs = start(scale.starts, report, warm_up=scale.warm_up), commands(scale.command_starts, report)
    assert not costs.pyspark, f"pyspark is imported by {', '.join(costs.pyspark)}"
    values = {
        "first batch, against a bare script": found.ratio(found.bootstrap),
        "--help, against python -c pass": costs.ratio(costs.help),
        "validate --offline, against python -c pass": costs.ratio(costs.validate),
    }
    return values, {"start": asdict(found), "commands": asdict(costs)}


def _worse(values: dict[str, float], name: str, ratio: float) -> None:
    values[name] = max(ratio, values.get(name, 0.0))


def of_memory(scale: Scale, report: Report) -> Measured:
    """Redis and audit: the worse of the two."""
    values: dict[str, float] = {}
    seen = {}
    for sink in scale.growth_sinks:
        found = peaks(sink, scale.memory, report)
        seen[sink] = asdict(found)
        _worse(values, "memory, one commit of 5M against 1M rows", found.large_commit / found.one_million_rows)
        _worse(values, "memory, a backlog of 100 x 50k against 1M rows", found.backlog / found.one_million_rows)
        _worse(values, "memory, one row of 20 MB", found.huge_row / GIB)
    return values, seen


def of_sizes(scale: Scale, report: Report) -> Measured:
    return {}, asdict(sizes(scale.sizes, report))


def of_executors(scale: Scale, report: Report) -> Measured:
    return {}, asdict(executors(scale.cluster, report))


PARTS = {
    "latency": of_latency,
    "commit": of_commit,
    "idle": of_idle,
    "many": of_many,
    "growth": of_growth,
    "memory": of_memory,
    "start": of_start,
    "sizes": of_sizes,
    "executors": of_executors,
}
