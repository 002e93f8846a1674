"""The end of the demo: one table, and one sentence that decides the exit code."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from deploy.local.demo.comparison import CHANGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from deploy.local.demo.comparison import AuditCounts, Verdict
    from deploy.local.demo.service import Delivered


@dataclass(frozen=True)
class SinkResult:
    """`seconds`: from commit to seen, one for each commit that was looked out for."""

    name: str
    verdict: Verdict
    delivered: Delivered
    seconds: Sequence[float]


def tell(console: Console, source_rows: int, results: Sequence[SinkResult], counts: AuditCounts) -> bool:
    """Print what was found; True if nothing differs."""
    console.print()
    console.print(_sinks(source_rows, results))
    console.print(_changes(counts))
    for result in results:
        for example in result.verdict.examples:
            console.print(f"{result.name} differs at {example}", highlight=False, soft_wrap=True)
    differing = sum(result.verdict.differing for result in results)
    if counts.unequal:
        console.print(
            f"[bold red]{counts.unequal} changes differ[/] between the audit table and the source's change feed."
        )
    names = ", ".join(result.name for result in results[:-1]) + f" and {results[-1].name}"
    style = "bold red" if differing else "bold green"
    end = f"{names} hold what the source table holds" if not differing else "see above"
    console.print(f"[{style}]{differing} differing keys[/]: {end}.", soft_wrap=True)
    return differing == 0 and counts.unequal == 0


def _sinks(source_rows: int, results: Sequence[SinkResult]) -> Table:
    table = Table(title=f"The source table has {source_rows:,} rows")
    table.add_column("sink")
    for heading in ("holds", "keys that differ", "delivered", "rows/s", "median", "p95"):
        table.add_column(heading, justify="right")
    for result in results:
        busy = result.delivered
        table.add_row(
            result.name,
            f"{result.verdict.rows:,}",
            str(result.verdict.differing),
            f"{busy.rows:,}",
            f"{busy.rows / busy.seconds:,.0f}" if busy.seconds else "-",
            *_median_and_p95(result.seconds),
        )
    table.caption = "rows/s: while a micro-batch is under way, first load included\nmedian, p95: from commit to visible"
    return table


def _median_and_p95(seconds: Sequence[float]) -> tuple[str, str]:
    if len(seconds) < 2:
        return "-", "-"
    return f"{statistics.median(seconds):.2f} s", f"{statistics.quantiles(seconds, n=20)[-1]:.2f} s"


def _changes(counts: AuditCounts) -> Table:
    table = Table(title="Every change, kept once")
    table.add_column("")
    for name in CHANGE_TYPES:
        table.add_column(name.removeprefix("update_"), justify="right")
    table.add_row("change feed", *(_count(counts.feed, name) for name in CHANGE_TYPES))
    table.add_row("audit table", *(_count(counts.audit, name) for name in CHANGE_TYPES))
    return table


def _count(counts: dict[str, int], name: str) -> str:
    return f"{counts[name]:,}" if name in counts else "-"
