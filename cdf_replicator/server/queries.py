"""The endpoint of queries: the values of an answer, line by line, with the progress while there is none.

A query runs until its answer is complete, or until the client has left or has not read for ``connection.UNREAD_SECONDS``.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import structlog
from anyio import CancelScope
from fastapi import APIRouter, Depends, HTTPException, Request, status
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from cdf_replicator.queries.answer import encode
from cdf_replicator.queries.query import QUERIES, Query, QueryRefusedError
from cdf_replicator.server import access
from cdf_replicator.server.connection import STREAMED
from cdf_replicator.state import service_record
from cdf_replicator.state.service_record import ServiceRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Receive, Scope, Send

    from cdf_replicator.queries.answer import Event
    from cdf_replicator.state.store import StateStore

log = structlog.get_logger(__name__)

CANCEL_SECONDS: Final = 5.0


class Running(Protocol):
    """A query that runs."""

    def events(self) -> Iterator[Event]: ...

    def cancel(self, seconds: float = 0.0) -> None:
        """Cancel the query, and wait at most ``seconds`` for its end."""


class Handler(Protocol):
    """Starts queries."""

    def start(self, query: Query) -> Running:
        """Start a query; raise ``QueryRefusedError``."""

    def close(self) -> None:
        """Cancel all queries, and refuse all later queries."""


class Queries:
    """Access to the handler of queries.

    Args:
        token: The token of the control endpoints; empty if there is none. A caller may send it instead of the secret.
    """

    def __init__(self, token: str = "") -> None:
        self.secret = secrets.token_urlsafe(32)
        self.tokens = [self.secret, token] if token else [self.secret]
        self.listening = ("", 0)
        """Address and port of the server."""
        self._handler: Handler | None = None

    @contextmanager
    def opened(self, handler: Handler, state_path: StateStore) -> Iterator[None]:
        """Answer queries until the block ends. The state path, whose lease is held, names this server to commands."""
        assert state_path.lease is not None
        token, (address, port) = state_path.lease.token, self.listening
        self._handler = handler
        try:
            record = ServiceRecord(address, port, socket.gethostname(), token, self.secret)
            service_record.publish(state_path.root, record)
        except OSError as error:  # commands start Spark themselves then
            log.warning("address of the service not written to the state path", reason=error.strerror)
        try:
            yield
        finally:
            service_record.withdraw(state_path.root, token)
            handler.close()

    def start(self, query: Query) -> Running:
        """Start a query; raise ``QueryRefusedError``."""
        if self._handler is None:
            raise QueryRefusedError("it is starting or a standby", for_now=True)
        return self._handler.start(query)


class Answer(StreamingResponse):
    """The lines of an answer. Its end, for whatever reason, is the end of the query."""

    media_type = "application/x-ndjson"

    def __init__(self, running: Running) -> None:
        super().__init__(map(encode, running.events()))
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with CancelScope(shield=True):  # else the cancellation of this request would end the wait
                await run_in_threadpool(self._running.cancel, CANCEL_SECONDS)


def _of_app(request: Request) -> Queries:
    queries: Queries = request.app.state.queries
    return queries


Answering = Annotated[Queries, Depends(_of_app)]


def _authorized(queries: Answering, bearer: access.Bearer) -> None:
    access.require_control(bearer, queries.tokens)


router: Final = APIRouter(tags=["queries"], dependencies=[Depends(_authorized)])


@router.post(STREAMED + "{name}", status_code=status.HTTP_200_OK, response_class=Answer, response_model=None)
async def answer(name: str, request: Request, queries: Answering) -> Answer:
    """Answer a query of a command. The lines are those of this version; another version may answer differently."""
    query = _parsed(name, await request.body())
    try:
        return Answer(await run_in_threadpool(queries.start, query))
    except QueryRefusedError as error:
        code = status.HTTP_503_SERVICE_UNAVAILABLE if error.for_now else status.HTTP_409_CONFLICT
        raise HTTPException(code, str(error)) from error


def _parsed(name: str, body: bytes) -> Query:
    kind: Any = QUERIES.get(name)
    if kind is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"No query {name}; the queries are {', '.join(QUERIES)}.")
    try:
        query: Query = kind.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from error
    return query
