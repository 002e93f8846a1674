"""Render the open dead letters of a route, from which an operator selects those to redrive or discard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.server.pages.actions import offers
from cdf_replicator.server.pages.environment import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import Response

    from cdf_replicator.monitoring.status import RouteStatus, Status

SHORT_ID: Final = 12


def render(
    status: Status,
    route: RouteStatus,
    letters: Sequence[dict[str, Any]] | None = None,
    problem: str = "",
    status_code: int = 200,
) -> Response:
    """Return the page; without ``letters`` it has a form for the token, since a row may hold what only operators may read.

    Args:
        status: The status.
        route: The route.
        letters: The newest open dead letters with their rows.
        problem: Why there is no list.
        status_code: Code of the answer.
    """
    selectable = [each.action for each in offers(route) if each.action in ("redrive", "discard") and not each.refusal]
    return answer(
        "dead_letters.html",
        status_code,
        status=status,
        route=route,
        letters=None if letters is None else [(letter["id"][:SHORT_ID], letter) for letter in letters],
        actions=selectable,
        problem=problem,
    )
