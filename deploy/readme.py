"""Writes the generated parts of README.md: `python -m deploy.readme` (`make docs`); a test sees that they are current.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cdf_replicator.metrics import catalogue

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def configuration() -> str:
    command = [str(Path(sys.executable).with_name("cdf-replicator")), "config", "env", "--format", "markdown"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def metrics() -> str:
    rows = [f"| `{m.name}` | {m.type} | {' '.join(m.labels)} | {m.help} |" for m in catalogue()]
    return "\n".join(["| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *rows])


def example_sink() -> str:
    return f"```python\n{(ROOT / 'tests/contract/folder_sink.py').read_text().strip()}\n```"


PARTS = {"configuration": configuration, "metrics": metrics, "example-sink": example_sink}


def current(text: str) -> str:
    """The text with every generated part made anew."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


if __name__ == "__main__":
    README.write_text(current(README.read_text()))
