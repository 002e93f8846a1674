"""Print the last screen of the demo: what was measured and what was compared."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from deploy.local.demo.comparison import Changes, Verdict
    from deploy.local.demo.service import FirstLoad


@dataclass(frozen=True)
class SinkResult:
    """The measurements of a sink.

    Attributes:
        name: Name of the sink on the screen.
        verdict: Result of the comparison.
        load: The first load.
        latencies: Seconds from each commit until its row was visible; empty if that was not measured.
    """

    name: str
    verdict: Verdict
    load: FirstLoad
    latencies: Sequence[float]


def report(console: Console, rows: int, results: Sequence[SinkResult], changes: Changes) -> bool:
    """Print the results and return True if no sink differs from the source.

    Args:
        console: Where to print.
        rows: Rows of the source table at the end.
        results: The measurements by sink.
        changes: The comparison of the audit table with the change feed.
    """
    console.print()
    console.print(_table(rows, results))
    console.print(
        "First load: into all sinks at once, with checks. Visible: from a commit until a read by key shows its row."
    )
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    console.print(f"Source, service and servers shared {os.cpu_count()} cores; load averages at the end: {load}.")
    for result in results:
        for example in result.verdict.examples:
            console.print(f"{result.name} differs at {example}", soft_wrap=True)
    kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(changes.feed.items()))
    if changes.differing:
        console.print(
            f"[bold red]{changes.differing} changes differ[/] between the audit table and the change feed ({kinds})."
        )
    else:
        console.print(f"The audit table has each change of the feed once: {kinds}.")
    differing = sum(result.verdict.differing for result in results)
    names = ", ".join(result.name for result in results[:-1]) + f" and {results[-1].name}"
    style, end = ("bold red", "see above") if differing else ("bold green", f"{names} hold what the source table holds")
    console.print(f"[{style}]{differing} differing keys[/]: {end}.", soft_wrap=True)
    return differing == 0 and changes.differing == 0


def _table(rows: int, results: Sequence[SinkResult]) -> Table:
    commits = max(len(result.latencies) for result in results)
    table = Table(
        title=f"{results[0].load.rows:,} rows, then {commits} commits; the source table now has {rows:,} rows"
    )
    table.add_column("sink")
    for heading in ("first load", "rows/s written", "visible: p50", "p95", "holds", "differing keys"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.load.seconds:.1f} s",
            f"{result.load.rate:,.0f}",
            *_p50_and_p95(result.latencies),
            f"{result.verdict.rows:,}",
            str(result.verdict.differing),
        )
    return table


def _p50_and_p95(seconds: Sequence[float]) -> tuple[str, str]:
    if len(seconds) < 2:
        return "-", "-"
    ranked = statistics.quantiles(seconds, n=20, method="inclusive")
    return f"{ranked[9]:.2f} s", f"{ranked[18]:.2f} s"
