"""Write the plot and the parts of README.md and docs/benchmarks.md from the results of `make bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Template

from tests.benchmarks.kept import Kept
from tests.benchmarks.report import (
    ARM_COLUMNS,
    MILLION,
    TARGET_COLUMNS,
    UNSURE,
    arm_rows,
    markdown,
    summary,
    target_rows,
)
from tests.benchmarks.targets import LIMITS, TARGETS, check_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.contest import Result

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "benchmarks.json"
PLOT = DOCS / "benchmarks.svg"
TEMPLATE = Path(__file__).with_name("benchmarks.svg.j2")

COLUMN, LABEL, LONGEST, LINE = 510, 200, 240, 20
"""Pixels of the plot: width of a column, of its names and of its longest bar; height of a line."""


def targets() -> str:
    kept = Kept.read(RESULTS)
    found = check_targets(kept.contests, kept.values)
    return f"{markdown(TARGET_COLUMNS, target_rows(found))}\n\n{summary(found)}"


def summary_table() -> str:
    """Return a line for each contest: our rate, and how many times as fast as each other arm ours is."""
    columns = ("contest", "ours, rows/s", "CPU s per 1M rows", "ours is")
    return markdown(columns, [_line(result) for result in Kept.read(RESULTS).contests.values()])


def _line(result: Result) -> tuple[str, ...]:
    ours, *others = result.samples
    ratios = {arm: result.ratio(ours, arm) for arm in others}
    compared = ", ".join(f"{UNSURE if ratio is None else f'{ratio:.2f} x'} {arm}" for arm, ratio in ratios.items())
    return result.name, f"{result.rate(ours):,.0f}", f"{result.cpu_seconds(ours) * MILLION:.1f}", compared


def measures() -> str:
    """Return what the targets measure of the service as a process."""
    values = Kept.read(RESULTS).values
    rows = [
        (limit.measure, f"{value:.2f} {limit.unit}")
        for limit in LIMITS
        if (value := values.get(limit.measure)) is not None
    ]
    return markdown(("measure", "value"), rows)


def contests() -> str:
    return "\n\n".join(map(_contest, Kept.read(RESULTS).contests.values()))


def _contest(result: Result) -> str:
    title = f"**{result.name}**: {result.work}. A/A control: {result.noise:.1%}."
    return f"{title}\n\n{markdown(ARM_COLUMNS, arm_rows(result))}"


def plot() -> str:
    """Draw rows per second of the contests that have targets, one bar per arm.

    Bootstraps are in the left column, change loads in the right column.
    """
    results = Kept.read(RESULTS).contests
    plotted = [results[name] for name in dict.fromkeys(target.contest for target in TARGETS) if name in results]
    lines: list[dict[str, Any]] = []
    top = LINE
    for pair in zip(plotted[::2], plotted[1::2], strict=True):
        for column, result in enumerate(pair):
            lines += _bars(result, column * COLUMN, top)
        top += (max(len(result.samples) for result in pair) + 2) * LINE
    template = Template(TEMPLATE.read_text(), trim_blocks=True)
    return template.render(lines=lines, width=2 * COLUMN, height=top - LINE)


def _bars(result: Result, left: int, top: int) -> Iterator[dict[str, Any]]:
    yield {"title": f"{result.name}, rows/s", "x": left + 10, "y": top}
    rates = {arm: result.rate(arm) for arm in result.samples}
    for number, (arm, rate) in enumerate(sorted(rates.items(), key=lambda one: -one[1]), 1):
        length = round(LONGEST * rate / max(rates.values()))
        yield {"arm": arm, "x": left + LABEL, "y": top + number * LINE, "length": length, "label": f"{rate:,.0f}"}
