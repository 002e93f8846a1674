"""The programs beside the tests can start: benchmarks, soaks, the demo and the generators of documents.

Continuous integration runs few of them, so that a renamed function would be noticed weeks later.
"""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("deploy/local", "docs/generate", "tests/benchmarks", "tests/chaos", "tests/oracle")
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")
    if file.stem not in {"__init__", "__main__", "conftest"} and not file.stem.startswith("test_")
)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_imported(module):
    importlib.import_module(module)
