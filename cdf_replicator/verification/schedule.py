"""Decide when the target of each route is compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True, slots=True)
class Schedule:
    """The time at which each route's comparison is due, in epoch seconds.

    Args:
        period: Seconds between two comparisons of a route.
        due: Time by route. A route that is compared on request alone is absent.
    """

    period: float
    due: dict[str, float]

    @classmethod
    def spread(cls, period: float, now: float, compared: Mapping[str, float | None]) -> Schedule:
        """Return the schedule after a start: routes that were never compared are spread over the first period.

        ``compared`` has the time of each route's last comparison.
        """
        never = [name for name, at in compared.items() if at is None]
        due = {name: now + period * place / len(never) for place, name in enumerate(never)}
        return cls(period, due | {name: at + period for name, at in compared.items() if at is not None})

    def first_due(self, now: float, ready: Collection[str]) -> str | None:
        """Return the route of ``ready`` that has been due for the longest time; None if none is due."""
        due = [name for name in ready if self.due.get(name, math.inf) <= now]
        return min(due, key=lambda name: self.due[name], default=None)

    def postpone(self, name: str, now: float) -> None:
        """Make a route due a period after ``now``, unless it is compared on request alone."""
        if name in self.due:
            self.due[name] = now + self.period
