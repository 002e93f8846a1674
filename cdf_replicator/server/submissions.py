"""Remember the latest commands that came over HTTP, so that each operator sees those of the others."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timezone
from threading import Lock
from typing import TYPE_CHECKING, Final

import structlog
from fastapi import HTTPException

from cdf_replicator.server.pages.actions import Submitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.commands import Action, Answer

log = structlog.get_logger(__name__)

KEPT: Final = 200
SHOWN: Final = 5
TOKEN: Final = "http_token"  # noqa: S105 - the name of the setting
"""Name of the token that allows commands."""


class Submissions:
    """The latest commands of all routes.

    Args:
        board: Status that gets an event for each command.
    """

    def __init__(self, board: StatusStore) -> None:
        self._board = board
        self._lock = Lock()
        self._kept: deque[Submitted] = deque(maxlen=KEPT)

    def add(self, command_id: str, route: str, action: Action) -> None:
        """Record an accepted command in the log, as an event of its route, and for the page of the route."""
        log.info("command accepted", route=route, action=action, token=TOKEN, id=command_id)
        self._board.event(f"{action} accepted over HTTP with {TOKEN}", route)
        at = datetime.now(timezone.utc)
        with self._lock:
            self._kept.appendleft(Submitted(command_id, route, action, at, TOKEN))

    def of(self, route: str, follow: Callable[[str], Answer | None]) -> list[Submitted]:
        """Return the latest commands for a route, newest first; ``follow`` reads the progress of a command that has not ended."""
        with self._lock:
            found = [each for each in self._kept if each.route == route][:SHOWN]
        now = {each.id: each.after(*_read(follow, each)) for each in found if not each.has_ended}
        with self._lock:
            for place, each in enumerate(self._kept):
                self._kept[place] = now.get(each.id, each)
        return [now.get(each.id, each) for each in found]


def _read(follow: Callable[[str], Answer | None], command: Submitted) -> tuple[str, str, float]:
    """Return state, message and ratio of a command, as they were before if the state path does not answer."""
    try:
        answer = follow(command.id)
    except HTTPException:
        return command.state, command.message, command.ratio
    if answer is None:
        return "unknown", "its answer is no longer kept", 1.0
    return answer.state, answer.message, answer.ratio
