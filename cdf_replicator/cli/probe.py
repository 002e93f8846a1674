"""Asking a running service; imports next to nothing, since a container's HEALTHCHECK starts it every few seconds."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

TIMEOUT_SECONDS: Final = 3.0
DEFAULT_PORT: Final = "9102"


class NoAnswerError(Exception):
    """The service did not answer, or not with 200; the text says which address and what came."""


def service_url(url: str | None) -> str:
    """Where the service answers, without a slash at the end; by default on this host."""
    if url is not None:
        return (url if "://" in url else f"http://{url}").rstrip("/")
    host = os.environ.get("CDF_HTTP__HOST", "").strip()
    port = os.environ.get("CDF_HTTP__BIND_PORT", "").strip() or DEFAULT_PORT
    everywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104 - no bind, a look-up
    host = everywhere.get(host, host).strip("[]")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def get(url: str, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """The body of a 200 answer; raises ``NoAnswerError``. Proxies are for the world outside, not for this."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, build_opener

    if not url.startswith(("http://", "https://")):
        raise NoAnswerError(f"{url} is not an http address")
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
            body: bytes = answer.read()
    except HTTPError as error:
        raise NoAnswerError(f"{url} answered {error.code} {_line(error)}") from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        cause: Any = getattr(error, "reason", None) or error
        raise NoAnswerError(f"{url} does not answer: {cause}") from error
    return body


def _line(error: Any) -> str:
    """The first of what an error's body says."""
    try:
        return " ".join(error.read(300).decode("utf-8", "replace").split())
    except OSError:
        return ""


def alive(url: str | None = None) -> int:
    """Say whether the service is alive; returns the exit code."""
    try:
        get(f"{service_url(url)}/livez")
    except NoAnswerError as error:
        sys.stderr.write(f"not alive: {error}\n")
        return 1
    sys.stdout.write("alive\n")
    return 0
