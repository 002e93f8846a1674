"""Compare the counts of delivered micro-batches with the change feed: each received change is counted once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cdf_replicator.monitoring.status import RouteStatus
    from cdf_replicator.monitoring.totals import BatchStatus
    from tests.oracle.table import Row

APPENDS = ("audit", "features")


def unequal_sums(routes: Iterable[RouteStatus]) -> Iterator[str]:
    """Yield each route of a run whose received changes differ from the sum of what became of them."""
    for route in routes:
        totals = route.totals
        became = sum(totals.applied.values()) + totals.superseded + totals.stale + totals.noop
        became += sum(totals.rejected.values())
        replaces = not route.route.endswith(APPENDS)
        if sum(totals.received.values()) != became or totals.superseded < 0 or (totals.superseded and not replaces):
            yield f"counts of {route.route}: {totals}"


def whole_batches(batches: Sequence[BatchStatus]) -> Iterator[BatchStatus]:
    """Yield the delivered micro-batches that certainly hold each of their commits as a whole."""
    for before, batch, after in zip((None, *batches), batches, (*batches[1:], None), strict=False):
        if batch.outcome == "delivered" and "snapshot" not in batch.received and not _shares(batch, before, after):
            yield batch


def miscounted(route: str, batch: BatchStatus, feed: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Return a difference if the counts of a micro-batch of whole commits differ from the feed; the route has no filter."""
    assert batch.versions is not None
    first, last = batch.versions
    rows = [row for row in feed if first <= row["_commit_version"] <= last]
    if route.endswith("audit"):
        rows = [row for row in rows if row["_change_type"] != "update_preimage"]
    received = Counter(row["_change_type"] for row in rows)
    newest = len(rows) if route.endswith(APPENDS) else len({tuple(row[key] for key in keys) for row in rows})
    if received == Counter(batch.received) and len(rows) - newest == batch.superseded:
        return []
    return [f"counts of {route}: {batch}, the feed has {dict(received)} and {newest} newest changes"]


def _shares(batch: BatchStatus, *neighbours: BatchStatus | None) -> bool:
    """Return whether a neighbour may have a part of the batch's first or last commit."""
    if batch.versions is None:
        return True
    first, last = batch.versions
    return any(
        other is not None and (other.versions is None or (other.versions[0] <= last and first <= other.versions[1]))
        for other in neighbours
    )
