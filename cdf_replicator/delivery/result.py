"""What became of a micro-batch. Values travel from the workers, since of an exception only the text would."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from connectors import PermanentError, RetryableError
from connectors.change import DUPLICATE_KEY, NULL_KEY

MOST_LETTERS: Final = 100_000
"""Rejected changes one task names; beyond, they are only counted, and the route halts long before it matters."""
SEVERAL_ROWS: Final = "one commit left several rows of this key: KEYS do not identify a row"


@dataclass(frozen=True, slots=True)
class Letter:
    """A rejected change, found again on the driver by its key and guard."""

    key: str | None
    guard: int
    code: str
    reason: str


def null_key(guard: int) -> Letter:
    """A row without a key has no place in an upsert sink."""
    return Letter(None, guard, NULL_KEY, "a key column is null")


def duplicate_key(key: str, guard: int) -> Letter:
    """Nor have several rows of one key: this names the key, whose rows become a letter each."""
    return Letter(key, guard, DUPLICATE_KEY, SEVERAL_ROWS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a task gave up. ``kind``: retryable | permanent | bug; ``detail``: the hint of a ``PermanentError``."""

    kind: str
    reason: str
    detail: str
    retry_after: float | None = None


class DeliveryBugError(Exception):
    """A sink raised what is neither retryable nor permanent; carries the worker's traceback."""


@dataclass(slots=True)
class Outcome:
    """Counts of changes; ``applied`` and ``received`` by change type, ``rejected`` by code, ``retries`` by reason.

    ``skipped``: a ``FrameSink`` already held the batch, so that nothing was read or counted; ``held``: its changes of
    such a batch, counted only where others of it were rejected. ``versions``: from a ``FrameSink`` that ``tells_received``.
    ``met``: of the keys that were to be looked out for, those not refused, with their guards.
    """

    received: Counter[str] = field(default_factory=Counter)
    applied: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    noop: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    letters: list[Letter] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)
    request_seconds: list[float] = field(default_factory=list)
    sent_bytes: int = 0
    failure: Failure | None = None
    skipped: bool = False
    held: int = 0
    versions: tuple[int, int] | None = None
    met: dict[str, int] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Sum; the first failure stays."""
        for name in ("received", "applied", "rejected", "retries"):
            getattr(self, name).update(getattr(other, name))
        self.stale += other.stale
        self.noop += other.noop
        self.letters += other.letters
        self.met |= other.met
        self.request_seconds += other.request_seconds
        self.sent_bytes += other.sent_bytes
        self.failure = self.failure or other.failure

    def refuse(self, letter: Letter) -> None:
        """Count a rejected change, and name it while there is room."""
        self.rejected[letter.code] += 1
        if len(self.letters) < MOST_LETTERS:
            self.letters.append(letter)

    @property
    def changes(self) -> int:
        """Changes a sink was given, whatever became of them."""
        return sum(self.applied.values()) + self.stale + self.noop + self.held + sum(self.rejected.values())

    def raise_failure(self) -> None:
        """Raise what the worker met as the exception it was there."""
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
    def from_json(cls, text: str | bytes) -> Outcome:
        fields: dict[str, Any] = orjson.loads(text)
        for name in ("received", "applied", "rejected", "retries"):
            fields[name] = Counter(fields[name])
        fields["letters"] = [Letter(**letter) for letter in fields["letters"]]
        fields["failure"] = Failure(**fields["failure"]) if fields["failure"] else None
        return cls(**fields)
