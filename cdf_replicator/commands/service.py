"""Send a query to the running service, without Spark."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from cdf_replicator.queries.answer import End, Failure, decode
from cdf_replicator.settings.redact import masked, reported_state_path
from cdf_replicator.state import service_record
from cdf_replicator.state.service_record import NoServiceError
from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdf_replicator.queries.answer import Event
    from cdf_replicator.queries.query import Query
    from cdf_replicator.settings import Settings

SILENT_SECONDS: Final = 20.0
"""Longest time without a line. The service sends one every half second."""
MOST_BYTES: Final = 10_000
OK: Final = 200
NOT_FOUND: Final = 404
UNAUTHORIZED: Final = 401


def events(settings: Settings, query: Query) -> Iterator[Event]:
    """Yield the answer of the lease holder; raise ``NoServiceError`` if there is none or it does not end."""
    address, port, token, state_path = _located(settings)
    values: TypeAdapter[object] = TypeAdapter(query.value_type())
    try:
        with closing(HTTPConnection(address, port, timeout=SILENT_SECONDS)) as connection:
            if state_path is not None:
                _check_identity(connection, state_path)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", f"/queries/{query.name}", query.model_dump_json().encode(), headers)
            answer = connection.getresponse()
            if answer.status != OK:
                raise NoServiceError(_refusal(answer))
            for line in answer:
                event = decode(line, values)
                yield event
                if isinstance(event, End | Failure):
                    return
    except (OSError, HTTPException, ValueError) as error:
        raise NoServiceError(f"the running service does not answer ({error})") from error
    raise NoServiceError("the running service stopped")


def _located(settings: Settings) -> tuple[str, int, str, str | None]:
    """Return address, port and token of the lease holder, and the state path that it must report.

    A state path on an object store could only be read by Spark. The configuration names the address then, at which another
    service may listen. The record in a local state path is of the lease holder, which need not report anything.
    """
    location = urlsplit(settings.state_path)
    if location.scheme in ("", "file"):
        found = service_record.find(LocalPath(location.path if location.scheme else settings.state_path))
        return found.address, found.port, found.secret, None
    http = settings.http
    if http.token is None or not http.bind_port:
        raise NoServiceError("the state path is on an object store, and CDF_HTTP__TOKEN or the port is not set")
    return http.host.strip("[]"), http.bind_port, http.token.get_secret_value(), settings.state_path


def _check_identity(connection: HTTPConnection, state_path: str) -> None:
    """Raise ``NoServiceError`` if a service of another state path listens, before the token is sent."""
    connection.request("GET", "/livez")
    found = json.loads(connection.getresponse().read(MOST_BYTES))
    if not isinstance(found, dict) or found.get("state_path") != reported_state_path(state_path):
        raise NoServiceError(
            f"{connection.host}:{connection.port} does not answer for the state path {masked(state_path)}"
        )


def _refusal(answer: HTTPResponse) -> str:
    body = answer.read(1000)
    if answer.status == NOT_FOUND:
        return "the running service is of a version without this query"
    if answer.status == UNAUTHORIZED:
        return "the running service refuses the token"
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, TypeError, KeyError):
        detail = f"status {answer.status}"
    return f"the running service does not answer this query: {detail}"
