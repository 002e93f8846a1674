"""Count what a route does, by label value. The sets of label values are small and fixed, so that each series is known.

Any other label value is a configured name or a code of a sink; never a key, a version, a path or an error text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from cdf_replicator.errors import condition_table
from connectors.change import CHANGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

BatchOutcome = Literal["delivered", "failed", "cancelled"]

OUTCOMES: Final[tuple[BatchOutcome, ...]] = get_args(BatchOutcome)
PHASES: Final = ("prepare", "write", "record")
OTHER: Final = "other"
DIFFERENCES: Final = ("missing", "extra", "different", "foreign")
RETRY_REASONS: Final = (
    "unreachable",
    "timeout",
    "overloaded",
    "unavailable",
    "out_of_memory",
    "read_only",
    "conflict",
    "certificate_expired",
    "lost",
    OTHER,
)
RESTART_REASONS: Final = (*dict.fromkeys((*condition_table.RESTART_REASONS, *RETRY_REASONS[:-1], "request")), OTHER)
_RARE: Final = dict.fromkeys(("out_of_memory", "read_only", "certificate_expired", "lost"), OTHER)
_BY_SINK: Final = dict.fromkeys(RETRY_REASONS[:-1], "sink")
_BY_SOURCE: Final = dict.fromkeys(("history_lost", "table_missing", "storage"), "source")
RETRY_LABELS: Final = {reason: _RARE.get(reason, reason) for reason in RETRY_REASONS}
RESTART_LABELS: Final = {
    reason: ({"interrupted": OTHER} | _BY_SINK | _BY_SOURCE).get(reason, reason) for reason in RESTART_REASONS
}
"""Labels of the metrics by reason. A metric has fewer labels than ``/status`` has reasons, to keep a route's series few."""
REJECTION_CODES_LIMIT: Final = 32
"""Maximum number of codes of a route. Rejections with further codes count as ``OTHER``."""


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """A micro-batch that ended.

    ``versions`` are the first and the last commit in it. ``seconds`` is the duration by phase.
    ``superseded`` counts the received changes that a later change of the micro-batch replaced before the write.
    ``latency_seconds`` is the longest time from one of its commits to the delivery; None for commits that were made before
    the route followed the table.
    """

    batch_id: int
    versions: tuple[int, int] | None
    received: dict[str, int]
    seconds: dict[str, float]
    outcome: BatchOutcome
    at: datetime
    applied: dict[str, int] = field(default_factory=dict)
    stale: int = 0
    noop: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    latency_seconds: float | None = None
    rows: int = field(init=False)
    superseded: int = field(init=False)

    def __post_init__(self) -> None:
        rows, given = sum(self.received.values()), sum(self.applied.values()) + sum(self.rejected.values())
        object.__setattr__(self, "rows", rows)
        left = rows - given - self.stale - self.noop if self.outcome == "delivered" else 0
        object.__setattr__(self, "superseded", left)


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start of the service. Each known label value is present from the start, with 0.

    Changes count when their micro-batch is delivered, so that received = applied + superseded + stale + no-op + rejected.

    ``received`` and ``applied`` are by change type, ``rejected`` is by the sink's code, ``batches`` by outcome,
    ``retries`` and ``restarts`` by reason. ``versions`` are the first and the last delivered commit; None before the first.
    ``seconds`` is the duration of all micro-batches.
    """

    received: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANGE_TYPES, 0))
    applied: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANGE_TYPES, 0))
    superseded: int = 0
    stale: int = 0
    noop: int = 0
    rejected: dict[str, int] = field(default_factory=lambda: {OTHER: 0})
    batches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    retries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RETRY_REASONS, 0))
    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESTART_REASONS, 0))
    versions: tuple[int, int] | None = None
    seconds: float = 0.0

    def plus_batch(self, batch: BatchStatus) -> Totals:
        """Return the totals plus a batch. The changes of a batch that was not delivered do not count."""
        seconds = self.seconds + sum(batch.seconds.values())
        ended = replace(self, batches=_sum(self.batches, {batch.outcome: 1}), seconds=seconds)
        if batch.outcome != "delivered":
            return ended
        return replace(
            ended,
            received=_sum(self.received, batch.received),
            applied=_sum(self.applied, batch.applied),
            superseded=self.superseded + batch.superseded,
            stale=self.stale + batch.stale,
            noop=self.noop + batch.noop,
            rejected=_sum(self.rejected, batch.rejected, limit=REJECTION_CODES_LIMIT),
            versions=_span(self.versions, batch.versions),
        )

    def plus_retries(self, retries: Mapping[str, int]) -> Totals:
        return replace(self, retries=_sum(self.retries, retries))

    def plus_restart(self, reason: str) -> Totals:
        return replace(self, restarts=_sum(self.restarts, {reason: 1}))


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The reloads of the configuration since the start.

    ``successful`` says how the last reload ended; true before the first. ``succeeded_at`` is the time of the configuration in force.
    """

    succeeded_at: datetime
    succeeded: int = 0
    failed: int = 0
    successful: bool = True

    def after(self, now: datetime, *, successful: bool) -> ReloadStatus:
        """Return the status after a further reload."""
        if successful:
            return ReloadStatus(now, self.succeeded + 1, self.failed)
        return replace(self, failed=self.failed + 1, successful=False)


def labelled(counts: Mapping[str, int], labels: Mapping[str, str]) -> dict[str, int]:
    """Return counts by reason as counts by the label of a metric."""
    total = dict.fromkeys(labels.values(), 0)
    for reason, count in counts.items():
        total[labels[reason]] += count
    return total


def _span(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the first and the last of two ranges of versions, of which either may be None."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _sum(counts: dict[str, int], more: Mapping[str, int], *, limit: int = 0) -> dict[str, int]:
    """Add counts by label value. Above ``limit`` values, an unknown value counts as ``OTHER``."""
    total = dict(counts)
    for value, count in more.items():
        label = value if value in total or len(total) < limit else OTHER
        total[label] = total.get(label, 0) + count
    return total
