"""Keep the newest samples of a route in arrays of a fixed size: three numbers of four bytes for each sample."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN: Final = math.nan


@dataclass(frozen=True, slots=True)
class Samples:
    """The complete samples of a route, oldest first; NaN where nothing is known.

    Args:
        step: Seconds between two samples.
        until: End of the last sample in epoch seconds.
        lag: Largest lag of each interval in seconds.
        rows: Delivered rows per second.
        latency: Longest time from a commit to its delivery, of the commits that were delivered in the interval.
    """

    step: int
    until: float
    lag: tuple[float, ...] = ()
    rows: tuple[float, ...] = ()
    latency: tuple[float, ...] = ()


class Ring:
    """The samples of one route in intervals of ``step`` seconds; a newer sample takes the place of the oldest."""

    def __init__(self, span: int, step: int) -> None:
        self.step, self.size = step, span // step + 1  # the present interval is not complete
        self._newest: int | None = None
        self._lag, self._rows, self._latency = (array("f", [UNKNOWN]) * self.size for _ in range(3))

    def add(self, at: float, lag: float, rows: int, latency: float) -> None:
        interval = int(at // self.step)
        if self._newest is None or abs(interval - self._newest) >= self.size:  # the first, or the clock was set
            self._forget(range(interval, interval + self.size))
            self._newest = interval
        elif interval > self._newest:
            self._forget(range(self._newest + 1, interval + 1))
            self._newest = interval
        place = interval % self.size
        self._lag[place] = _larger(self._lag[place], lag)
        self._rows[place] = rows + (0 if math.isnan(self._rows[place]) else self._rows[place])
        self._latency[place] = _larger(self._latency[place], latency)

    def samples(self) -> Samples:
        """Return the complete intervals since the oldest known one."""
        if self._newest is None:
            return Samples(self.step, 0.0)
        places = [interval % self.size for interval in range(self._newest - self.size + 1, self._newest)]
        known = next((first for first, place in enumerate(places) if not math.isnan(self._rows[place])), len(places))
        kept = places[known:]
        return Samples(
            self.step,
            self._newest * self.step,
            tuple(self._lag[place] for place in kept),
            tuple(self._rows[place] / self.step for place in kept),
            tuple(self._latency[place] for place in kept),
        )

    def _forget(self, intervals: Iterable[int]) -> None:
        for interval in intervals:
            place = interval % self.size
            self._lag[place] = self._rows[place] = self._latency[place] = UNKNOWN


def _larger(one: float, other: float) -> float:
    """Return the larger number; NaN only if both are."""
    return other if math.isnan(one) else one if math.isnan(other) else max(one, other)
