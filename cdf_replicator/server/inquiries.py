"""Answer the questions of the pages by queries: the dead letters of a route, and the numbers of a dry run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.queries.answer import End, Failure, Values
from cdf_replicator.queries.query import ListDeadLetters, PlanReplay, PlanResync, QueryRefusedError
from cdf_replicator.server.commands import Replay, Resync
from cdf_replicator.server.pages import plans

if TYPE_CHECKING:
    from cdf_replicator.queries.query import Query
    from cdf_replicator.server.commands import Plain
    from cdf_replicator.server.queries import Queries

ANSWER_SECONDS: Final = 8.0
"""Longest time of a query, since the connection ends a request after ``connection.REQUEST_SECONDS``."""
CANCEL_SECONDS: Final = 1.0
LETTERS_SHOWN: Final = 100


class NoAnswerError(Exception):
    """A query has no answer; the text says why, for an operator."""


def dead_letters(queries: Queries | None, route: str) -> list[dict[str, Any]]:
    """Return the newest open dead letters of a route with their rows; raise ``NoAnswerError``."""
    return _values(queries, ListDeadLetters(route=route, limit=LETTERS_SHOWN, rows=True))


def dry_run(queries: Queries | None, route: str, command: Plain) -> list[str]:
    """Return what a replay or a resync would do, in lines; raise ``NoAnswerError``."""
    match command:
        case Replay():
            query: Query = PlanReplay(
                routes=(route,), starting_version=command.starting_version, ending_version=command.ending_version
            )
            return [line for plan in _values(queries, query) for line in plans.replay_lines(plan)]
        case Resync():
            return [line for plan in _values(queries, PlanResync(route=route)) for line in plans.resync_lines(plan)]
    return []


def _values(queries: Queries | None, query: Query) -> list[Any]:
    if queries is None:
        raise NoAnswerError("This service answers no queries.")
    try:
        running = queries.start(query)
    except QueryRefusedError as error:
        raise NoAnswerError(f"The service does not answer now: {error}.") from error
    found: list[Any] = []
    ended = False
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        for event in running.events():
            match event:
                case Values():
                    found.extend(event.values)
                case End():
                    ended = True
                case Failure():
                    raise NoAnswerError(f"{event.what} {event.next_step}")
            if time.monotonic() > deadline:
                raise NoAnswerError(
                    f"The answer takes more than {ANSWER_SECONDS:.0f} s. The command line waits longer."
                )
    finally:
        running.cancel(CANCEL_SECONDS)
    if not ended:
        raise NoAnswerError("The service stopped before the answer was complete.")
    return found
