"""Submit a replay, resync, pause or resume to the lease holder, or execute it if the lease is free.

A replay of an upsert sink has no end and replaces the live query (rule 14 of ``docs/design.md``). A replay with an end
version needs an append sink, since it would restore deleted keys in an upsert sink.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import structlog

import connectors
from cdf_replicator.commands import submit
from cdf_replicator.commands.dry_run import preview_replay, preview_resync
from cdf_replicator.commands.session import routes_named
from cdf_replicator.state import command_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings

log = structlog.get_logger(__name__)


def replay(
    settings: Settings, name: str, starting_version: int, ending_version: int | None, dry_run: bool, yes: bool
) -> int:
    """Deliver again from a version on, or a closed range to append sinks, and return the exit code."""
    routes = routes_named(name, settings.routes)
    upserts = [route.name for route in routes if connectors.load(settings.sinks[route.sink].type).mode == "upsert"]
    if ending_version is not None and upserts:
        log.error(
            "--ending-version is for append sinks only: in an upsert sink it would restore deleted keys",
            routes=upserts,
            next_step="Leave it out: the replay then runs to the newest version.",
        )
        return submit.USAGE
    if dry_run:
        return preview_replay(settings, routes, starting_version, ending_version)
    question = f"Deliver changes of {_names(routes)} again from version {starting_version}?"
    commands = [command_queue.Command("replay", route.name, starting_version, ending_version) for route in routes]
    return submit.execute(settings, commands, question, yes=yes)


def resync(settings: Settings, name: str, max_removed_share: float | None, dry_run: bool, yes: bool) -> int:
    """Rebuild a route's target from the present snapshot, remove its orphans and return the exit code.

    ``max_removed_share`` is the largest share of the target's entries that the resync may remove. None allows any share
    with ``yes``, and otherwise the share of the settings. Without a terminal the command needs no confirmation.
    """
    routes = routes_named(name, settings.routes)
    if dry_run:
        return preview_resync(settings, routes[0])
    share = 1.0 if max_removed_share is None and yes else max_removed_share
    question = f"Rebuild the target of {_names(routes)} from the present snapshot and remove what is not in it?"
    commands = [command_queue.Command("resync", route.name, max_removed_share=share) for route in routes]
    return submit.execute(settings, commands, question, yes=yes or not sys.stdin.isatty())


def switch(settings: Settings, name: str, kind: Literal["pause", "resume"]) -> int:
    """Pause or resume a route, or all routes of a table, and return the exit code."""
    return submit.set_paused(
        settings, [command_queue.Command(kind, route.name) for route in routes_named(name, settings.routes)]
    )


def _names(routes: Sequence[Route]) -> str:
    return ", ".join(route.name for route in routes)
