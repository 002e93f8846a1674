"""Writes the generated parts of README.md and docs: `python -m deploy.readme` (`make docs`); a test sees that they are current.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cdf_replicator.conditions import TABLE, Condition
from cdf_replicator.metrics import catalogue
from deploy import benchmarks_page, sizing_page, types_page
from deploy.grafana import dashboard

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RULES = ROOT / "deploy/prometheus/rules.yml"
CHART_RULES = ROOT / "deploy/helm/cdf-replicator/files/rules.yml"
PAGES = [README, sizing_page.PAGE, *sorted((ROOT / "docs").glob("*.md"))]
PAGES_URL = "https://example.com/cdf-replicator/"
"""What stands in the alerts' links for the place where these pages are read: only who runs the service knows it."""
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def configuration() -> str:
    command = [str(Path(sys.executable).with_name("cdf-replicator")), "config", "env", "--format", "markdown"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def metrics() -> str:
    rows = [f"| `{m.name}` | {m.type} | {' '.join(m.labels)} | {m.help} |" for m in catalogue()]
    return "\n".join(["| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *rows])


def example_sink() -> str:
    return f"```python\n{(ROOT / 'tests/contract/folder_sink.py').read_text().strip()}\n```"


def conditions() -> str:
    head = ["| Condition | Action | Reason | Next step | Tried by |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(_cells(row))} |" for row in TABLE)])


def _cells(row: Condition) -> list[str]:
    names = "<br>".join(f"`{name}`" for name in row.names)
    action = f"retry ({row.tries}) then halt" if row.action == "retry_then_halt" else row.action
    file, _, test = (row.tried or "").partition("::")
    tried = f"`{test}` ({file})" if test else "its text only"
    return [names, action, row.reason, row.next_step.replace("{route}", "ROUTE"), tried]


PARTS = {
    "benchmark-targets": benchmarks_page.targets,
    "benchmarks": benchmarks_page.contests,
    "conditions": conditions,
    "configuration": configuration,
    "example-sink": example_sink,
    "metrics": metrics,
    "sizing-costs": sizing_page.costs,
    "sizing-examples": sizing_page.examples,
}


def current(text: str) -> str:
    """The text with every generated part made anew."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(current(page.read_text()))
    types_page.PAGE.write_text(types_page.page())
    CHART_RULES.write_text(RULES.read_text())
    dashboard.FILE.write_text(dashboard.text())
    benchmarks_page.PLOT.write_text(benchmarks_page.plot())
