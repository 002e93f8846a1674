"""An arm: one way to do a work; a sample: what one run of it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Arm:
    """``run`` does the work and returns how many rows it delivered; the time it takes is the sample.

    ``before``: not timed, brings the target back to where the work begins. ``processes``: roots of the process trees
    whose processor time and memory count as the arm's, the servers' never. ``sent``: bytes sent since the last call.
    """

    name: str
    run: Callable[[], int]
    processes: Sequence[int]
    before: Callable[[], None] = nothing
    sent: Callable[[], int] | None = None


@dataclass(frozen=True)
class Sample:
    """Measurements of one run: seconds, processor seconds, bytes."""

    rows: int
    seconds: float
    cpu_seconds: float
    peak_rss: int
    sent_bytes: int | None

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@dataclass(frozen=True)
class Contest:
    """Arms that do the same work, ``ours`` first. ``work``: in words, with its size. ``check``: raises if a target is wrong.

    ``warm_ups``: rounds that are not counted. Where an arm takes seconds, the JVM still compiles its code in the third.
    """

    name: str
    work: str
    arms: Sequence[Arm]
    check: Callable[[Arm], None]
    warm_ups: int = 1
