"""Read and write the results as JSON: contests and measures, each with its time."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from tests.benchmarks.contest import Result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MEASURED = ("cdf_replicator", "connectors", "deploy/local", "tests/benchmarks", "tests/support", "pyproject.toml")
"""Paths of the code on which the results depend."""


@dataclass
class Kept:
    """``values``: what targets name; ``seen``: all else that a measure says, by part; ``at``: when, by name.

    ``code``: of which code each part was measured as a whole, as ``measured_code`` returns it.
    """

    contests: dict[str, Result] = field(default_factory=dict)
    values: dict[str, float | None] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Kept:
        """Return the results of earlier runs; none if the file does not exist."""
        if not file.exists():
            return cls()
        given = json.loads(file.read_text())
        contests = {name: Result.from_json(result) for name, result in given["contests"].items()}
        return cls(contests, given["values"], given["seen"], given["at"], given.get("code", {}))

    def add(self, result: Result) -> None:
        self.contests[result.name] = result
        self.at[result.name] = _now()

    def measured(self, part: str, values: dict[str, float | None], seen: dict[str, Any], code: str) -> None:
        self.values |= values
        self.seen[part] = seen
        self.at[part], self.code[part] = _now(), code

    def left(self, parts: Sequence[str], code: str) -> list[str]:
        """Return the parts that were not measured on this code. Code without an id is always measured."""
        return [part for part in parts if not code or self.code.get(part) != code]

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
            "contests": {name: result.to_json() for name, result in self.contests.items()},
            "values": self.values,
            "seen": self.seen,
            "at": self.at,
            "code": self.code,
        }
        file.write_text(json.dumps(content, indent=1))


def measured_code() -> str:
    """Return an id of the code that is committed under ``MEASURED``; empty if the files differ from it."""
    changed, tree = (
        subprocess.run(["git", *command, "--", *MEASURED], capture_output=True, text=True, check=True).stdout
        for command in (("status", "--porcelain"), ("ls-tree", "HEAD"))
    )
    return "" if changed else hashlib.sha256(tree.encode()).hexdigest()[:12]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
