"""Determine up to which source version the stream has filled a table of guarded rows, despite rows of requests.

A redrive or ``verify --repair`` writes present rows, whose guards may be ahead of the stream. The table records that in the
property ``cdf_replicator.requested``, as ``<complete>:<guard>``: rows up to ``guard`` may come from a request, and before the
last request the stream had delivered every commit up to version ``complete``, which is empty if the rows did not show it. A
RESTORE restores the property with the rows.
"""

from __future__ import annotations

from typing import Final

from connectors.change import commit_version_of, guard_of
from connectors.delta.tables import table
from connectors.delta.tables.commits import HELD_GUARD
from connectors.delta.tables.snapshot import Snapshot

_REQUESTED: Final = "cdf_replicator.requested"


def complete(path: str, at: int, epoch: int) -> int | None:
    """Return the source version up to which the stream has delivered every commit; None if the rows do not show it.

    This is the version before the commit of the newest row. If a request may have written that row, it is at most the version
    that was complete before the request.

    Args:
        path: The table.
        at: The version of the table.
        epoch: The epoch of the rows that count.

    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = table.at(path, at).where(F.col(HELD_GUARD) >= guard_of(epoch, 0, upsert=False))
    (newest,) = rows.agg(F.max(HELD_GUARD)).collect()[0]
    if newest is None:
        return None
    before, requested = _requested(path)
    reached = commit_version_of(newest) - 1
    if newest > requested:
        return reached
    return None if before is None else min(reached, before)


def record_request(path: str, epoch: int, guard: int) -> None:
    """Record the highest guard of a request before the table gets its rows."""
    reached = complete(path, Snapshot(path).version, epoch)
    before = "" if reached is None else reached
    table.set_properties(path, {_REQUESTED: f"{before}:{max(guard, _requested(path)[1])}"})


def _requested(path: str) -> tuple[int | None, int]:
    """Return the version that was complete before the last request, and the highest guard of all requests; 0 without any."""
    before, _, guard = Snapshot(path).properties.get(_REQUESTED, ":0").partition(":")
    return int(before) if before else None, int(guard)
