"""The command, with a driver that kills itself at a named point: ``python -m tests.chaos.killed_at FILE run``.

The service runs as always until the file names the point; from then on the calls of that point are counted.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.cli import main
from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.pipeline import batch_writer
from cdf_replicator.runtime import redrive
from connectors.delta.audit import DeltaAuditSink
from deploy.local.servers.server import PROJECT
from tests.support.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KILLED: Final = "killed "
"""Text on stderr before the kill; the name of the point follows."""


@dataclass(frozen=True)
class Point:
    """``place``, ``name``: what is called there. ``done``: whether that call ends first. ``times``: which call it is."""

    place: Any
    name: str
    done: bool
    times: int


POINTS: Final = {
    "after the offset log": Point(batch_writer.BatchWriter, "write", done=False, times=3),
    "after the audit append": Point(DeltaAuditSink, "write", done=True, times=1),
    "after the dead-letter write": Point(DeadLetters, "add", done=True, times=1),
    "before the commit log": Point(RouteReporter, "batch", done=True, times=3),
    "after the repair's write": Point(redrive, "write_present", done=True, times=1),
}
"""With the third call, some routes have delivered and others have not."""


class Doomed(Service):
    """The service, which ``doom`` makes kill itself."""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.killed_at", str(self._file), "run"]

    def _environment(self) -> Mapping[str, str]:
        return {**self.given, "PYTHONPATH": str(PROJECT)}

    def _prepare(self) -> None:
        self._file.write_text("")

    @property
    def _file(self) -> Path:
        return self.home / "point"

    def doom(self, point: str) -> None:
        self._file.write_text(point)

    def killed(self, point: str) -> bool:
        """Return True if the process has killed itself at the point."""
        return not self.running and f"{KILLED}{point}\n" in self.log.read_text()


def fatal(file: Path, name: str, point: Point) -> Callable[..., Any]:
    function, calls = getattr(point.place, point.name), 0

    @functools.wraps(function)
    def wrapped(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += file.read_text() == name
        if calls < point.times:
            return function(*given, **named)
        if point.done:
            function(*given, **named)
        os.write(sys.stderr.fileno(), f"{KILLED}{name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return wrapped


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    for title, where in POINTS.items():
        setattr(where.place, where.name, fatal(path, title, where))
    main()
