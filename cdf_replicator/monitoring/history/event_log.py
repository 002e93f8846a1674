"""Keep the newest events of the service."""

from __future__ import annotations

from collections import deque
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdf_replicator.monitoring.status import Event

EVENTS_KEPT: Final = 1_000
EVENTS_SHOWN: Final = 100
"""Number of newest events in a status, and of one route on its page."""


class EventLog:
    """The newest events; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.appendleft(event)

    def newest(self, route: str | None = None) -> tuple[Event, ...]:
        """Return the newest events, newest first, of one route or of all."""
        with self._lock:
            found = (event for event in self._events if route in (None, event.route))
            return tuple(islice(found, EVENTS_SHOWN))
