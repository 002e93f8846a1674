"""The script that removes unused parts of packages from the image, on a small folder."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from docs.generate.readme import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCRIPT = ROOT / "deploy/image/leave-out.sh"
FILES = (
    "jars/spark-core-1.jar",
    "jars/breeze-2.jar",
    "jars/breeze-macros-2.jar",
    "numpy/core/tests/data",
    "numpy/core.py",
)


@pytest.fixture
def leave_out(tmp_path: Path) -> Callable[[str], tuple[int, str, set[str]]]:
    """Run the script with a list; returns its exit code, its errors and the files that are left."""
    packages = tmp_path / "site packages"
    for name in FILES:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()

    def run(listed: str) -> tuple[int, str, set[str]]:
        (tmp_path / "list").write_text(listed)
        words = ["sh", SCRIPT, "list", packages]
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        left = {str(file.relative_to(packages)) for file in packages.rglob("*") if file.is_file()}
        return ended.returncode, ended.stderr, left

    return run


def test_listed_files_and_folders_are_removed(leave_out: Callable[[str], tuple[int, str, set[str]]]):
    code, errors, left = leave_out("# numerics\njars/breeze*.jar\n\nnumpy/*/tests\n")
    assert (code, errors) == (0, "")
    assert left == {"jars/spark-core-1.jar", "numpy/core.py"}


def test_pattern_without_match_fails(leave_out: Callable[[str], tuple[int, str, set[str]]]):
    code, errors, _ = leave_out("jars/breeze*.jar\njars/spire*.jar\n")
    assert code == 1
    assert "jars/spire*.jar matches nothing" in errors


def test_last_line_without_line_end_is_not_skipped(leave_out: Callable[[str], tuple[int, str, set[str]]]):
    assert "jars/breeze-2.jar" not in leave_out("jars/breeze*.jar")[2]
