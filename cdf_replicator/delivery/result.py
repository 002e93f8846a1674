"""Define the result of a micro-batch. Workers return it as a value, since Spark keeps only the text of an exception."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from connectors import PermanentError, RetryableError
from connectors.change import DUPLICATE_KEY, NULL_KEY

MOST_LETTERS: Final = 100_000
"""Most rejected changes that a task names. Further changes are only counted, and then the route halts."""
SEVERAL_ROWS: Final = "one commit left several rows of this key: KEYS do not identify a row"


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A rejected change. The driver finds its row by key and guard."""

    key: str | None
    guard: int
    code: str
    reason: str


def null_key(guard: int) -> RejectedRow:
    """Return the rejection of a row without a key, which an upsert sink can't store."""
    return RejectedRow(None, guard, NULL_KEY, "a key column is null")


def duplicate_key(key: str, guard: int) -> RejectedRow:
    """Return the rejection of a key with several rows in a commit; each row becomes a dead letter."""
    return RejectedRow(key, guard, DUPLICATE_KEY, SEVERAL_ROWS)


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a task. ``kind`` is retryable, permanent (``detail`` is the hint) or bug."""

    kind: str
    reason: str
    detail: str
    retry_after: float | None = None


class DeliveryBugError(Exception):
    """An error of a sink that is neither retryable nor permanent, with the worker's traceback."""


@dataclass(slots=True)
class DeliveryResult:
    """Counts of changes; ``applied`` and ``received`` by change type, ``rejected`` by code, ``retries`` by reason.

    ``skipped`` is true if a ``FrameSink`` already held the batch and read nothing. ``already_written`` is the number of
    changes in such a batch, counted only if others were rejected. ``versions`` and ``commit_times`` are
    those of the first and the last commit, with times in epoch seconds; None if not known. ``met`` has the watched keys that
    arrived and were not rejected, with their guards.
    """

    received: Counter[str] = field(default_factory=Counter)
    applied: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    noop: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    letters: list[RejectedRow] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)
    request_seconds: list[float] = field(default_factory=list)
    sent_bytes: int = 0
    failure: Failure | None = None
    skipped: bool = False
    already_written: int = 0
    versions: tuple[int, int] | None = None
    commit_times: tuple[float, float] | None = None
    met: dict[str, int] = field(default_factory=dict)

    def add(self, other: DeliveryResult) -> None:
        """Add the counts of another outcome; keeps the first failure."""
        for name in ("received", "applied", "rejected", "retries"):
            getattr(self, name).update(getattr(other, name))
        self.stale += other.stale
        self.noop += other.noop
        self.letters += other.letters
        self.met |= other.met
        self.request_seconds += other.request_seconds
        self.sent_bytes += other.sent_bytes
        self.failure = self.failure or other.failure

    def reject(self, letter: RejectedRow) -> None:
        """Count a rejected change, and keep it up to ``MOST_LETTERS``."""
        self.rejected[letter.code] += 1
        if len(self.letters) < MOST_LETTERS:
            self.letters.append(letter)

    @property
    def changes(self) -> int:
        """Return the number of changes that the sink received, rejected changes included."""
        return sum(self.applied.values()) + self.stale + self.noop + self.already_written + sum(self.rejected.values())

    def raise_failure(self) -> None:
        """Raise the worker's failure as the exception that it was in the worker."""
        if self.failure is None:
            return
        if self.failure.kind == "retryable":
            raise RetryableError(self.failure.reason, self.failure.detail, retry_after=self.failure.retry_after)
        if self.failure.kind == "permanent":
            raise PermanentError(self.failure.reason, self.failure.detail)
        raise DeliveryBugError(f"{self.failure.reason}\n{self.failure.detail}")

    def to_json(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> DeliveryResult:
        fields: dict[str, Any] = orjson.loads(text)
        for name in ("received", "applied", "rejected", "retries"):
            fields[name] = Counter(fields[name])
        fields["letters"] = [RejectedRow(**letter) for letter in fields["letters"]]
        fields["failure"] = Failure(**fields["failure"]) if fields["failure"] else None
        return cls(**fields)
