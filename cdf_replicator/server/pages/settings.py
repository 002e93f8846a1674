"""Render the page of the configuration in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.server.pages.environment import answer
from cdf_replicator.settings.parsing.raw import DEFAULT

if TYPE_CHECKING:
    from fastapi import Response

    from cdf_replicator.monitoring.status_store import StatusStore


def render(board: StatusStore) -> Response:
    """Return the page of all settings, with the origin of each value; secrets are hidden."""
    status = board.snapshot()
    given = sum(setting.origin != DEFAULT for setting in status.configuration)
    return answer("settings.html", status=status, given=given, defaults=len(status.configuration) - given)
