"""Compute how often a route polls for commits and how often the service polls a route: more often if that is cheap."""

from __future__ import annotations

from typing import Final

SOONER: Final = 10
ONE_SECOND: Final = 1
TRIGGERS_PER_SECOND: Final = 50
"""Limit for all routes together. A trigger without a commit takes Spark about half a millisecond of processor time."""
LOOKS_PER_SECOND: Final = 25
LOOK_SECONDS: Final = (0.5, 2.0)


def trigger_seconds(longest: float, routes: int, *, free: bool) -> float:
    """Return the trigger interval of a route's query in seconds: down to a tenth of ``longest`` if polling is ``free``.

    Polling costs nothing in a local file system, and a request in an object store. An operator who sets more than a
    second wants fewer and larger micro-batches.
    """
    if not free or longest > ONE_SECOND:
        return longest
    return min(longest, max(longest / SOONER, routes / TRIGGERS_PER_SECOND))


def look_seconds(routes: int) -> float:
    """Return the seconds between two polls of a query by its route's thread."""
    least, most = LOOK_SECONDS
    return max(least, min(most, routes / LOOKS_PER_SECOND))
