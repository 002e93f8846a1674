"""A connection to the HTTP port, bounded in number and in time: whoever reaches the port can open as many as it likes.

uvicorn bounds neither: ``limit_concurrency`` answers 503 once a request is whole, and no setting ends one that never is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST: Final = 64
"""Connections at once. Prometheus, the probes, a proxy and some browsers need a dozen."""
BACKLOG: Final = 64
"""Connections that are accepted in one go, before the first of them is counted."""
REQUEST_SECONDS: Final = 10.0
"""From the connection, or the first byte of a later request, to the end of the answer. None takes a second."""

_log: Final = logging.getLogger("uvicorn.error.connection")
_log.setLevel(logging.ERROR)  # what a client sends wrong is answered to it; a line for each would fill the log


class BoundedConnection(H11Protocol):
    """Where there is one too many, the oldest of those that wait for a request goes: so a probe gets in during a flood."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.logger = _log
        self._deadline: asyncio.TimerHandle | None = None
        self._opened_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        self._begin_request()
        if len(self.connections) > MOST:
            least: Any = min(self.connections, key=_need)
            self.connections.discard(least)  # now: many may be made before the loop ends this one
            least.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._begin_request()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._end_request()
        super().on_response_complete()
        if self.is_answering:  # the next request had come already
            self._begin_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_request()
        super().connection_lost(exc)

    @property
    def is_answering(self) -> bool:
        """Whether a request is there of which the answer is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _need(connection: Any) -> tuple[bool, float]:
    return connection.is_answering, connection._opened_at  # noqa: SLF001 - of this module's own class
