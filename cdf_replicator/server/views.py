"""Serve the pages that only read: all routes, a route, the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from cdf_replicator.server.pages import overview, route, settings
from cdf_replicator.server.pages.actions import offers

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.control import Control


def router(board: StatusStore, control: Control | None) -> APIRouter:
    """Return the endpoints of the pages. Without ``control`` a route's page says how actions are enabled."""
    made = APIRouter(default_response_class=Response)

    def all_routes(group: str = "", state: str = "", q: str = "") -> Response:
        """Return the page of all routes, grouped by ``table`` or ``sink``, in a state, and with ``q`` in a name."""
        return overview.render(board, overview.Query.of(group, state, q))

    def all_settings() -> Response:
        """Return the page of the configuration in force."""
        return settings.render(board)

    def one_route(name: str) -> Response:
        """Return the page of a route."""
        now = board.snapshot()
        found = route.find(now, name)
        if found is None:
            return route.missing(now, name)
        submitted = control.submitted(name) if control else []
        return route.render(board, now, found, offers(found) if control else None, submitted)

    pages: dict[str, Callable[..., Response]] = {
        "/": all_routes,
        "/settings": all_settings,
        "/routes/{name}": one_route,
    }
    for path, page in pages.items():
        made.add_api_route(path, page, methods=["GET"])
        made.add_api_route(path, page, methods=["HEAD"], include_in_schema=False)
    return made
