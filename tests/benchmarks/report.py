"""The table of targets and the table of arms, for a terminal and for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.benchmarks.contest import NOISE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.contest import Result
    from tests.benchmarks.targets import TargetCheck

MILLION = 1_000_000
MIB = 2**20
UNSURE = "unsure"
ARM_COLUMNS = ("arm", "rows/s", "ours is", "CPU s per 1M rows", "peak memory, MiB", "MB sent")
TARGET_COLUMNS = ("target", "wanted", "measured", "")


def arm_rows(result: Result) -> list[tuple[str, ...]]:
    """A line for each arm: the medians; of arms that are no processes of ours, no processor time and no memory."""
    rows = []
    for name, samples in result.samples.items():
        ratio = result.ratio("ours", name)
        cpu = result.cpu_seconds(name) * MILLION
        memory = max(sample.peak_rss for sample in samples) / MIB
        sent = samples[0].sent_bytes
        rows.append(
            (
                name,
                f"{result.rate(name):,.0f}",
                "" if name == "ours" else UNSURE if ratio is None else f"{ratio:.2f} x",
                f"{cpu:.1f}" if memory else "",
                f"{memory:,.0f}" if memory else "",
                "" if sent is None else f"{sent / MILLION:,.0f}",
            )
        )
    return rows


def target_rows(checks: Sequence[TargetCheck]) -> list[tuple[str, ...]]:
    return [(v.what, v.wanted, v.measured, _outcome(v)) for v in checks]


def _outcome(check: TargetCheck) -> str:
    if not check.is_measured:
        return ""
    return "held" if check.held else "missed"


def summary(checks: Sequence[TargetCheck]) -> str:
    measured = [check for check in checks if check.is_measured]
    held, unmeasured = sum(check.held for check in measured), len(checks) - len(measured)
    text = f"targets: {held} held, {len(measured) - held} missed"
    return f"{text}, {unmeasured} not measured" if unmeasured else text


def show(results: Mapping[str, Result], checks: Sequence[TargetCheck]) -> None:
    """Print everything; the last line is the summary."""
    console = Console()
    for result in results.values():
        title = f"{result.name}: {result.work}"
        noise = f"A/A control: {result.noise:.1%}" + (f", above {NOISE:.0%}: no ratios" if result.noise > NOISE else "")
        console.print(_table(title, ARM_COLUMNS, arm_rows(result), noise))
    if checks:
        console.print(_table("targets", TARGET_COLUMNS, target_rows(checks)))
    print(summary(checks))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
