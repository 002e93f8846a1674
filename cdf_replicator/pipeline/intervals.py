"""How often a route looks for commits, and how often the service looks at a route: sooner where that costs little."""

from __future__ import annotations

from typing import Final

SOONER: Final = 10
ONE_SECOND: Final = 1
TRIGGERS_PER_SECOND: Final = 50
"""Of all routes together. One that finds nothing takes Spark about half a millisecond of processor time."""
LOOKS_PER_SECOND: Final = 25
LOOK_SECONDS: Final = (0.5, 2.0)


def trigger_seconds(longest: float, routes: int, *, free: bool) -> float:
    """Return the interval of a route's query: up to ten times shorter than ``longest``, where looking is ``free``.

    In a local file system it is; of an object store each look is a request that somebody pays for. Who asks for more than
    a second wants fewer and larger micro-batches.
    """
    if not free or longest > ONE_SECOND:
        return longest
    return min(longest, max(longest / SOONER, routes / TRIGGERS_PER_SECOND))


def look_seconds(routes: int) -> float:
    """Return how long a route's thread rests between two looks at its query."""
    least, most = LOOK_SECONDS
    return max(least, min(most, routes / LOOKS_PER_SECOND))
