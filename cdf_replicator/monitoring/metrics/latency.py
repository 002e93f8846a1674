"""Compute how long the commits of a micro-batch took to be delivered."""

from __future__ import annotations


def delivery_latencies(
    versions: tuple[int, int] | None, times: tuple[float, float] | None, *, since: float, now: float
) -> list[float]:
    """Return the seconds from each commit of a delivered micro-batch until ``now``.

    The first and the last commit have their own times. Those between count as evenly spaced, so that a micro-batch costs
    no request for each of its commits.

    Args:
        versions: First and last commit version; None if not known.
        times: Times of these commits in epoch seconds; None if not known.
        since: Time from which on commits count. Earlier commits belong to a bootstrap, a replay or a start version.
        now: Time of the delivery.
    """
    if versions is None or times is None:
        return []
    steps, (oldest, newest) = versions[1] - versions[0], times
    made = [newest] if steps == 0 else [oldest + (newest - oldest) * step / steps for step in range(steps + 1)]
    return [max(0.0, now - at) for at in made if at >= since]
