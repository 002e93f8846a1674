"""Check the promises of issue and README: a ratio of two arms of a contest, or a measured value, against a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.contest import Result


@dataclass(frozen=True)
class Target:
    """Ours against another arm of the contest, rows a second: at least so many times as fast."""

    contest: str
    against: str
    at_least: float


@dataclass(frozen=True)
class Effort:
    """Ours against another arm of the contest, processor seconds of the client side for a row: at most so many times as many."""

    contest: str
    against: str
    at_most: float


@dataclass(frozen=True)
class Limit:
    """Upper limit of a measured value. ``unit``: behind the number, ``x`` for a ratio."""

    measure: str
    at_most: float
    unit: str = "x"


TARGETS = (
    Target("elasticsearch bootstrap", "raw bulk", 0.75),
    Target("elasticsearch bootstrap", "es-hadoop tuned", 1.2),
    Target("elasticsearch bootstrap", "parallel_bulk", 2.8),
    Target("elasticsearch changes", "es-hadoop tuned", 1.5),
    Target("elasticsearch changes", "parallel_bulk", 3.0),
    Target("elasticsearch changes", "streaming_bulk", 3.0),
    Target("elasticsearch wide", "raw bulk", 0.75),
    Target("elasticsearch fat", "raw bulk", 0.75),
    Target("opensearch bootstrap", "raw bulk", 0.75),
    Target("opensearch changes", "raw bulk", 0.75),
    Target("redis bootstrap", "raw guarded", 0.6),
    Target("redis bootstrap", "pipeline.set", 3.0),
    Target("redis bootstrap", "spark-redis", 1.1),
    Target("redis changes", "raw guarded", 0.6),
    Target("redis changes", "pipeline.set", 3.0),
    Target("redis changes", "spark-redis", 1.1),
    Target("redis wide", "raw guarded", 0.5),
    Target("redis fat", "raw guarded", 0.5),
    Target("cluster bootstrap", "one server", 0.8),
    Target("cluster changes", "one server", 0.8),
    Target("postgres bootstrap", "bare COPY", 0.6),
    Target("postgres bootstrap", "executemany", 2.5),
    Target("postgres bootstrap", "Spark's JDBC append", 1.0),
    Target("postgres changes", "executemany", 2.5),
    Target("delta audit bootstrap", "append of the same frame", 0.9),
    Target("delta audit changes", "append of the same frame", 0.9),
    Target("delta replica bootstrap", "MERGE by hand", 0.9),
    Target("delta replica changes", "MERGE by hand", 0.85),
    Target("verify elasticsearch", "plain scan", 0.5),
    Target("verify redis", "plain scan", 0.5),
)
EFFORTS = (
    Effort("elasticsearch bootstrap", "es-hadoop tuned", 1.0),
    Effort("redis bootstrap", "spark-redis", 1.0),
)
LIMITS = (
    Limit("commit to visible in Redis, p50", 0.6, "s"),
    Limit("commit to visible in Redis, p99", 1.5, "s"),
    Limit("commit to visible in Elasticsearch, p50", 0.6, "s"),
    Limit("commit to visible in Elasticsearch, p99", 1.5, "s"),
    Limit("a commit into redis, processor time against by hand", 0.8),
    Limit("a commit into redis, processor time against by hand once a second", 0.8),
    Limit("a commit into redis, time to visible against by hand", 0.8),
    Limit("a commit into all, processor time against by hand", 0.8),
    Limit("a commit into all, processor time against by hand once a second", 0.8),
    Limit("a commit, processor time of audit against redis", 1.2),
    Limit("50 idle routes, of one core", 2, "%"),
    Limit("50 idle routes, driver and JVM", 1.5, "GiB"),
    Limit("500 idle routes, of one core", 15, "%"),
    Limit("500 idle routes, driver and JVM", 2.5, "GiB"),
    Limit("time per row, 3M against 100k rows", 1.15),
    Limit("memory, 3M against 1M rows", 1.1),
    Limit("memory, one commit of 2M against 1M rows", 1.1),
    Limit("memory, one commit of 5M against 1M rows", 1.1),
    Limit("memory, a backlog of 100 x 50k against 1M rows", 1.1),
    Limit("memory, one row of 20 MB", 1.5, "GiB"),
    Limit("first batch, against a bare script", 2),
    Limit("--help, against python -c pass", 12),
    Limit("validate --offline, against python -c pass", 45),
)


NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class TargetCheck:
    """``measured``: as text. What was not measured, or too noisily to say, is not held."""

    what: str
    wanted: str
    measured: str
    held: bool

    @property
    def is_measured(self) -> bool:
        return self.measured != NOT_MEASURED


def check_targets(results: Mapping[str, Result], measures: Mapping[str, float | None]) -> list[TargetCheck]:
    """One for each target."""
    found = []
    for target in TARGETS:
        result = _contested(results, target)
        ratio = None if result is None else result.ratio("ours", target.against)
        what = f"{target.contest}: ours / {target.against}"
        held = ratio is not None and ratio >= target.at_least
        found.append(TargetCheck(what, f">= {target.at_least:g} x", _said(ratio, "x", known=result is not None), held))
    for effort in EFFORTS:
        result = _contested(results, effort)
        ratio = None if result is None else result.effort("ours", effort.against)
        what = f"{effort.contest}: processor time, ours / {effort.against}"
        held = ratio is not None and ratio <= effort.at_most
        found.append(TargetCheck(what, f"<= {effort.at_most:g} x", _said(ratio, "x", known=result is not None), held))
    for limit in LIMITS:
        value = measures.get(limit.measure)
        held = value is not None and value <= limit.at_most
        said = _said(value, limit.unit, known=limit.measure in measures)
        found.append(TargetCheck(limit.measure, f"<= {limit.at_most:g} {limit.unit}", said, held))
    return found


def _contested(results: Mapping[str, Result], target: Target | Effort) -> Result | None:
    """Return the result of the target's contest, if its arm took part."""
    result = results.get(target.contest)
    return result if result is not None and target.against in result.samples else None


def _said(value: float | None, unit: str, *, known: bool) -> str:
    if value is None:
        return "too noisy to say" if known else NOT_MEASURED
    return f"{value:.2f} {unit}"
