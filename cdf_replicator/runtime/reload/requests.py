"""Hand reloads from the threads that request them to the main loop, and their answers back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdf_replicator.state.command_queue import Command, CommandStatus


@dataclass(frozen=True, slots=True)
class ReloadRequests:
    """The reloads that wait for the main loop, oldest first, and the answers to write.

    The dispatcher writes the answers, since a state path that does not answer must not block the main loop.
    """

    _waiting: deque[Command] = field(default_factory=deque)
    answers: deque[tuple[Command, CommandStatus]] = field(default_factory=deque)

    def submit(self, command: Command) -> None:
        """Queue a reload; a signal handler may call this."""
        self._waiting.append(command)

    def take(self) -> Command | None:
        """Return the oldest reload that waits; None if there is none."""
        return self._waiting.popleft() if self._waiting else None
