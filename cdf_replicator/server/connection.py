"""A connection to the HTTP port with a limit on number and time, since any client can open connections.

uvicorn has no such limits: ``limit_concurrency`` answers 503 only to a complete request, and no setting ends an incomplete one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST: Final = 64
"""Maximum number of connections. Prometheus, the probes, a proxy and some browsers need a dozen."""
BACKLOG: Final = 64
"""Connections that are accepted at a time, before the first of them is counted."""
REQUEST_SECONDS: Final = 10.0
"""Limit from the connection, or the first byte of a later request, to the end of the answer. No other answer than a streamed
one takes a second.
"""
STREAMED: Final = "/queries/"
"""Prefix of the paths with streamed answers. ``REQUEST_SECONDS`` ends with the first byte of such an answer."""
UNREAD_SECONDS: Final = 300.0
"""Limit for a client that does not read a streamed answer, such as a command whose output an operator reads page by page."""

_log: Final = logging.getLogger("uvicorn.error.connection")
_log.setLevel(logging.ERROR)  # the client gets an answer to an invalid request; a log line for each would fill the log


class BoundedConnection(H11Protocol):
    """Above the limit, the oldest connection that waits for a request is closed, so that probes get in during a flood."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.logger = _log
        self._deadline: asyncio.TimerHandle | None = None
        self._opened_at = 0.0
        self._read_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        self._begin_request()
        if len(self.connections) > MOST:
            least: Any = min(self.connections, key=_need)
            self.connections.discard(least)  # at once: many connections may arrive before the loop ends this one
            least.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._read_at = self.loop.time()
        self._begin_request()
        super().data_received(data)

    def resume_writing(self) -> None:
        self._read_at = self.loop.time()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._end_request()
        super().on_response_complete()
        if self.is_answering:  # the next request has already arrived
            self._begin_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_request()
        super().connection_lost(exc)

    @property
    def is_answering(self) -> bool:
        """True while a request is received and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._expire)

    def _expire(self) -> None:
        """Close the connection, or set the next limit while the client reads a streamed answer."""
        self._deadline = None
        if not self.transport.get_write_buffer_size():
            self._read_at = self.loop.time()
        streams = self.is_answering and self.cycle.response_started and self.cycle.scope["path"].startswith(STREAMED)
        if streams and self.loop.time() - self._read_at < UNREAD_SECONDS:
            self._begin_request()
        else:
            self.transport.abort()

    def _end_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _need(connection: Any) -> tuple[bool, float]:
    return connection.is_answering, connection._opened_at  # noqa: SLF001 - of this module's own class
