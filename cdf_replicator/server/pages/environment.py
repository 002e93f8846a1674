"""Hold the templates of the pages, and the headers with which each page is sent."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from cdf_replicator.monitoring.totals import PHASES
from cdf_replicator.server.pages import formatting
from cdf_replicator.server.pages.measures import headline

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    # With no-referrer a browser would send "Origin: null" with a form of the page itself.
    "Referrer-Policy": "same-origin",
}
SCRIPT_WAITS_SECONDS: Final = 10
"""Interval at which a browser without scripts loads a page again."""


def segment(name: str) -> str:
    """Return a name as a segment of a path."""
    return quote(name, safe="")


_FILTERS: Final[tuple[Callable[..., Any], ...]] = (
    formatting.clock,
    formatting.counted,
    formatting.duration,
    formatting.kinds,
    formatting.number,
    formatting.operations,
    formatting.prose,
    segment,
)
_FUNCTIONS: Final[tuple[Callable[..., Any], ...]] = (
    formatting.age,
    formatting.time_left,
    formatting.when,
    headline,
    timedelta,
)
_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("cdf_replicator.server.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update({each.__name__: each for each in _FILTERS})
_ENVIRONMENT.globals.update({each.__name__: each for each in _FUNCTIONS})
_ENVIRONMENT.globals.update(
    operation_names=formatting.OPERATIONS, phase_names=PHASES, refresh_seconds=SCRIPT_WAITS_SECONDS
)


def answer(template: str, status_code: int = 200, **values: Any) -> Response:
    """Return a page; its nonce lets its own script and stylesheet pass the Content-Security-Policy."""
    nonce = secrets.token_urlsafe(16)
    text = _ENVIRONMENT.get_template(template).render(nonce=nonce, **values)
    headers = {name: value.format(nonce=nonce) for name, value in PAGE_HEADERS.items()}
    return Response(text, status_code, headers, "text/html")
