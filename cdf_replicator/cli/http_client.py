"""Read answers of a running service.

A container's HEALTHCHECK runs this module every few seconds, so it imports little.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.cli.address import found

if TYPE_CHECKING:
    from cdf_replicator.cli.address import Address

TIMEOUT_SECONDS: Final = 3.0


class NoAnswerError(Exception):
    """The service did not answer with status 200; the text holds the address and the answer."""


def own_answer(address: Address, path: str, key: str, token: str = "") -> dict[str, Any]:
    """Return the JSON object of a 200 answer.

    Args:
        address: the service to read from.
        path: path of the endpoint.
        key: field that only an answer of this program has.
        token: bearer token to send; empty for none.

    Raises:
        NoAnswerError: no such answer, or the answer of a service with another state path.

    """
    import json

    url = f"{address.url}{path}"
    try:
        answer = json.loads(get(url, token=token))
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or key not in answer:
        raise NoAnswerError(f"{url} answers, but not with a {path.strip('/')} of this service")
    said: dict[str, Any] = answer["service"] if isinstance(answer.get("service"), dict) else answer
    if not address.belongs(said.get("owner"), said.get("state_path")):
        raise NoAnswerError(
            f"{url} answers for another service, whose state path is {said.get('state_path') or 'unknown'} and not "
            f"{address.state_path}: set CDF_HTTP__BIND_PORT (or http.bind_port in CDF_CONFIG_FILE) to the port of this service"
        )
    return answer


def get(url: str, timeout: float = TIMEOUT_SECONDS, token: str = "") -> bytes:
    """Return the body of a 200 answer, without a proxy; raise ``NoAnswerError`` for any other."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, build_opener

    if not url.startswith(("http://", "https://")):
        raise NoAnswerError(f"{url} is not an http address")
    try:
        opener = build_opener(ProxyHandler({}))
        opener.addheaders += [("Authorization", f"Bearer {token}")] if token else []
        with opener.open(url, timeout=timeout) as answer:
            body: bytes = answer.read()
    except HTTPError as error:
        raise NoAnswerError(f"{url} answered {error.code} {_line(error)}") from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        cause: Any = getattr(error, "reason", None) or error
        raise NoAnswerError(f"{url} does not answer: {cause}") from error
    return body


def _line(error: Any) -> str:
    """Return the first 300 bytes of an error's body, on one line."""
    try:
        return " ".join(error.read(300).decode("utf-8", "replace").split())
    except OSError:
        return ""


def say_where(url: str | None, address: Address) -> None:
    """Print the address on stderr if the operator has not given it."""
    if url is None:
        sys.stderr.write(f"service: {address.url}\n")


def alive(url: str | None = None) -> int:
    """Print whether the service is alive and return the exit code."""
    address = found(url)
    try:
        own_answer(address, "/livez", "live")
    except NoAnswerError as error:
        sys.stderr.write(f"not alive: {error}\n")
        return 1
    say_where(url, address)
    sys.stdout.write("alive\n")
    return 0
