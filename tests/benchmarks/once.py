"""Run the service once, as a process, and measure it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.benchmarks.usage import Usage, measured
from tests.support.service import COMMAND, Ended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Once:
    """A ``run --once`` that ended well. ``batches``: the log entries of its delivered micro-batches."""

    ended: Ended
    usage: Usage
    batches: list[dict[str, Any]]

    @property
    def rows(self) -> int:
        return sum(batch["received"] for batch in self.batches)


def run_once(given: Mapping[str, str], folder: Path, patience_seconds: float) -> Once:
    """Run the command with an environment in a folder."""
    log = folder / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen([COMMAND, "run", "--once"], env=given, cwd=folder, stderr=stderr) as process,
        measured([process.pid]) as usage,
    ):
        process.wait(patience_seconds)
    ended = Ended(process.returncode, "", log.read_text())
    assert ended.code == 0, ended.log
    return Once(ended, usage, [entry for entry in ended.entries if entry["message"] == "batch delivered"])
