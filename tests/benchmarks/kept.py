"""Read and write the results as JSON: contests and measures, each with its time."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from tests.benchmarks.contest import Result

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Kept:
    """``values``: what targets name; ``seen``: all else that a measure says, by part; ``at``: when, by name."""

    contests: dict[str, Result] = field(default_factory=dict)
    values: dict[str, float | None] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Kept:
        """Return the results of earlier runs; none if the file does not exist."""
        if not file.exists():
            return cls()
        given = json.loads(file.read_text())
        contests = {name: Result.from_json(result) for name, result in given["contests"].items()}
        return cls(contests, given["values"], given["seen"], given["at"])

    def add(self, result: Result) -> None:
        self.contests[result.name] = result
        self.at[result.name] = _now()

    def measured(self, part: str, values: dict[str, float | None], seen: dict[str, Any]) -> None:
        self.values |= values
        self.seen[part] = seen
        self.at[part] = _now()

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
            "contests": {name: result.to_json() for name, result in self.contests.items()},
            "values": self.values,
            "seen": self.seen,
            "at": self.at,
        }
        file.write_text(json.dumps(content, indent=1))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
