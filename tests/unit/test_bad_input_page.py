"""docs/bad-input.md names tests: they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_the_page_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "bad-input.md").read_text()))
    code = "".join(file.read_text() for folder in ("tests", "connectors") for file in (ROOT / folder).rglob("*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in code} == set()
