"""What became of the changes a sink was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Rejected:
    """A change the sink will never take. ``code`` is one of the sink's small fixed set: it becomes a metric label."""

    position: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Of one chunk: every position not named here was applied.

    ``stale``: positions older than what the sink holds, a success. ``noop``: nothing was there to change (a delete
    of an absent key). ``rejected``: never to be sent again. ``retry``: positions to send again, after
    ``retry_after`` seconds if the server said so, for ``retry_reason`` (a reason of ``RetryableError``).
    """

    stale: Sequence[int] = ()
    noop: Sequence[int] = ()
    rejected: Sequence[Rejected] = ()
    retry: Sequence[int] = ()
    retry_after: float | None = None
    retry_reason: str = "overloaded"
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What a target holds, as ``Sink.count`` finds it.

    ``total``: entries a reader sees. ``below``: those of them that a sweep at that guard would remove. ``highest``: the
    highest guard found, 0 if none: a change of a lower one can't replace that entry.
    """

    total: int = 0
    below: int = 0
    highest: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(self.total + other.total, self.below + other.below, max(self.highest, other.highest))


@dataclass(frozen=True, slots=True)
class FrameResult:
    """Of one micro-batch in a ``FrameSink``: rows applied by change type, ``stale`` ones it holds already or newer,
    ``noop`` ones that found nothing to change.

    ``skipped``: the target already held the batch identity, so that the frame was not read at all. ``versions``: the lowest
    and the highest of the rows applied, from a sink that ``tells_received``.
    """

    applied: Mapping[str, int] = field(default_factory=dict)
    stale: int = 0
    skipped: bool = False
    noop: int = 0
    versions: tuple[int, int] | None = None
