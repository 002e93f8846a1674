"""Results that sinks return to the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Rejected:
    """A change that the sink will never accept. ``code`` is a label of a metric: one of ``Capabilities.rejection_codes``."""

    position: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of one chunk. The sink applied every position that is not listed here.

    ``stale`` lists changes older than the sink's entry, which is a success. ``noop`` lists deletes of absent keys.
    ``rejected`` lists changes that the service must not send again. ``retry`` lists changes that the service sends again,
    for ``retry_reason`` (a reason of ``RetryableError``), after ``retry_after`` seconds if the server named a time.
    """

    stale: Sequence[int] = ()
    noop: Sequence[int] = ()
    rejected: Sequence[Rejected] = ()
    retry: Sequence[int] = ()
    retry_after: float | None = None
    retry_reason: str = "overloaded"
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EntryCount:
    """Numbers of entries in a target, from ``Resyncable.count_entries``.

    ``total`` counts the entries that a reader sees. ``orphans`` counts those that a sweep at the given guard would delete.
    ``highest`` is the highest guard, or 0: a change with a lower guard can't replace that entry.
    """

    total: int = 0
    orphans: int = 0
    highest: int = 0

    def __add__(self, other: EntryCount) -> EntryCount:
        return EntryCount(self.total + other.total, self.orphans + other.orphans, max(self.highest, other.highest))


@dataclass(frozen=True, slots=True)
class FrameResult:
    """Result of one micro-batch in a ``FrameSink``.

    ``applied`` counts rows by change type. ``stale`` counts rows whose key has the same or a newer entry. ``noop`` counts
    deletes of absent keys. ``skipped`` is true if the target already held the batch identity, so that the sink did not read
    the frame. ``versions`` holds the lowest and the highest commit version applied, and ``commit_times`` the times of these
    commits in epoch seconds, if the sink has ``exact_counts``.
    """

    applied: Mapping[str, int] = field(default_factory=dict)
    stale: int = 0
    skipped: bool = False
    noop: int = 0
    versions: tuple[int, int] | None = None
    commit_times: tuple[float, float] | None = None
