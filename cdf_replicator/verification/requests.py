"""Hold the comparison that an operator requests, and the answers to the latest of them, in memory.

A comparison writes nothing, so that it needs no file in the command queue, and no later process continues it.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.exceptions import ComparisonRefusedError
from cdf_replicator.state.command_queue import CommandStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdf_replicator.monitoring.status import VerificationStatus
    from cdf_replicator.verification.result import Verification

KEPT: Final = 200
"""Number of answers that are kept, which is that of the commands on the pages."""
CLOSED: Final = "No comparison starts now: the service starts, reloads or stops, or is a run --once."
DISTURBED: Final = "The route stopped or restarted, which ended the comparison. Start it again."
LAST_RATIO: Final = 0.99
"""Largest ratio of a comparison that takes longer than the last one."""
ENDED: Final = "A reload or the end of the service ended the comparison."


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """A requested comparison of the target of ``route``."""

    route: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class ComparisonRequests:
    """The comparison that waits or runs, of which there is at most one in the service. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: ComparisonRequest | None = None
        self._answers: dict[str, CommandStatus] = {}
        self._is_open = False

    def open(self) -> None:
        """Accept requests from now on."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Refuse requests from now on, and answer the present request as failed."""
        with self._lock:
            self._is_open = False
            if self._present is not None:
                self._answers[self._present.id] = CommandStatus("failed", ENDED)
                self._present = None

    def submit(self, route: str) -> str:
        """Request a comparison and return its id; raise ``ComparisonRefusedError`` while another waits or runs."""
        with self._lock:
            if not self._is_open:
                raise ComparisonRefusedError(CLOSED)
            if self._present is not None:
                what = f"A comparison of route {self._present.route} is running. Repeat the request after its end."
                raise ComparisonRefusedError(f"{what} The service makes one comparison at a time.")
            self._present = request = ComparisonRequest(route)
            self._answers[request.id] = CommandStatus("running", "accepted")
            while len(self._answers) > KEPT:
                del self._answers[next(iter(self._answers))]
            return request.id

    @property
    def present(self) -> ComparisonRequest | None:
        """Return the request that waits or is executed; None if there is none."""
        with self._lock:
            return self._present

    def answer(self, request: ComparisonRequest, status: CommandStatus) -> None:
        """Record the progress or the result of a request; does nothing after ``close`` has answered it."""
        with self._lock:
            if self._present == request:
                self._answers[request.id] = status
                self._present = request if status.state == "running" else None

    def follow(self, request_id: str) -> CommandStatus | None:
        """Return the progress or the result of a request; None if it is unknown or no longer kept."""
        with self._lock:
            return self._answers.get(request_id)


def progress(rows: int, seconds: float, last: VerificationStatus | None) -> CommandStatus:
    """Return the progress of a running comparison, with a ratio by the duration of the last comparison of the route.

    Args:
        rows: Number of rows and entries that were read.
        seconds: Time since the start.
        last: The last result; None if there is none.
    """
    message = f"{rows:,} rows and entries read in {seconds:.0f} s"
    if last is None or last.seconds <= 0:
        return CommandStatus("running", message)
    ratio = min(LAST_RATIO, seconds / last.seconds)
    return CommandStatus("running", f"{message}; the last comparison took {last.seconds:.0f} s", ratio)


def result(request: ComparisonRequest, outcome: Verification | Exception | None) -> CommandStatus:
    """Return the answer to a request whose comparison has ended; None is a comparison that the route has ended."""
    if outcome is None:
        return CommandStatus("failed", DISTURBED)
    if isinstance(outcome, Exception):
        decision = classify_error(outcome, route=request.route)
        return CommandStatus("failed", f"{decision.message} {decision.remedy}")
    compared = outcome.comparison
    what = "equal to" if compared.equal else f"{kinds(compared.kinds)}: differs from"
    parts = [
        f"{what} version {outcome.version} of the table",
        f"{compared.rows:,} rows and {compared.entries:,} entries compared",
        *([f"{outcome.changed:,} keys left out that changed meanwhile"] if outcome.changed else []),
        *([f"columns left out: {', '.join(outcome.left_out)}"] if outcome.left_out else []),
        f"{outcome.seconds:.1f} s",
    ]
    return CommandStatus("done", "; ".join(parts), 1.0)


def kinds(differences: Mapping[str, int]) -> str:
    """Return the differences by kind, such as ``missing 2, extra 1``."""
    return ", ".join(f"{kind} {count}" for kind, count in differences.items() if count)
