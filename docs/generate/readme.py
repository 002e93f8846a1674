"""Write the generated parts of README.md and docs.

`make docs` runs `python -m docs.generate.readme`; a test of the unit layer checks that the parts are current.
A part is between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from cdf_replicator.errors.condition_table import ERROR_CONDITIONS
from cdf_replicator.monitoring.metrics import all_metrics
from cdf_replicator.settings.reference import reference
from docs.generate import benchmarks_page, cli_page, scale_page, sizing_page, types_page
from tests.unit.condition_tests import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cdf_replicator.errors.conditions import ErrorCondition
    from cdf_replicator.settings.reference import Entry

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DASHBOARD = ROOT / "deploy/grafana/cdf-replicator.json"
RULES = ROOT / "deploy/prometheus/rules.yml"
CHART_RULES = ROOT / "deploy/helm/cdf-replicator/files/rules.yml"
PAGES = [README, ROOT / "deploy/README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES_URL = "https://example.com/cdf-replicator/"
"""Placeholder in the links of the alerts. The operator replaces it by the address of these pages."""
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def configuration() -> str:
    """Return one table per group of settings."""
    blocks = []
    for group, members in groupby(reference(), key=attrgetter("group")):
        head = "| Variable | Type | Default | Meaning |", "|---|---|---|---|"
        blocks.append("\n".join([f"**{group}**", "", *head, *(_row(_cells(entry)) for entry in members)]))
    return "\n\n".join(blocks)


def _cells(entry: Entry) -> Iterator[str]:
    default = entry.default if entry.default in ("", "required") else f"`{entry.default}`"
    for cell in (f"`{entry.variable}`", entry.type, default, entry.meaning):
        text = cell.replace("|", "\\|")
        yield text if "`" in cell else text.replace("<", "&lt;")  # <table> is not an HTML tag in prose


def metrics() -> str:
    rows = [f"| `{m.name}` | {m.type} | {' '.join(m.labels)} | {m.help} |" for m in all_metrics()]
    return "\n".join(["| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *rows])


def example_sink() -> str:
    return f"```python\n{(ROOT / 'tests/contract/folder_sink.py').read_text().strip()}\n```"


def example_resync() -> str:
    code = (ROOT / "tests/contract/resyncable_folder_sink.py").read_text().strip()
    return f"```python\n{code.replace('tests.contract.folder_sink', 'my_package')}\n```"


def conditions() -> str:
    rows = [
        (_names(row), _action(row), row.reason, row.next_step.replace("{route}", "ROUTE")) for row in ERROR_CONDITIONS
    ]
    return "\n".join(["| Condition | Action | Reason | Next step |", "|---|---|---|---|", *map(_row, rows)])


def condition_tests() -> str:
    rows = [
        (_names(row), f"`{TESTS[row.patterns[0]]}`" if row.patterns[0] in TESTS else "its text only")
        for row in ERROR_CONDITIONS
    ]
    return "\n".join(["| Condition | Test |", "|---|---|", *map(_row, rows)])


def _names(row: ErrorCondition) -> str:
    return "<br>".join(f"`{name}`" for name in row.patterns)


def _action(row: ErrorCondition) -> str:
    return f"retry ({row.tries}) then halt" if row.action == "retry_then_halt" else row.action


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


PARTS = {
    "benchmark-measures": benchmarks_page.measures,
    "benchmark-summary": benchmarks_page.summary_table,
    "benchmark-targets": benchmarks_page.targets,
    "benchmarks": benchmarks_page.contests,
    "cli": cli_page.reference,
    "condition-tests": condition_tests,
    "conditions": conditions,
    "configuration": configuration,
    "example-resync": example_resync,
    "example-sink": example_sink,
    "metrics": metrics,
    "scale-rates": scale_page.rates,
    "scale-routes": scale_page.routes,
    "scale-sizes": scale_page.sizes,
    "scale-works": scale_page.works,
    "sizing-costs": sizing_page.costs,
    "sizing-examples": sizing_page.examples,
}


def current(text: str) -> str:
    """Return the text with every generated part rebuilt."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(current(page.read_text()))
    types_page.PAGE.write_text(types_page.page())
    CHART_RULES.write_text(RULES.read_text())
    benchmarks_page.PLOT.write_text(benchmarks_page.plot())
