"""Decide when the target of each route is compared."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from cdf_replicator.monitoring.status import VerificationStatus
from cdf_replicator.state.store import write_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cdf_replicator.state.storage_path import StoragePath

SCHEDULED: Final = "scheduled"
"""Field of a route's ``verified.json`` without a result: the time at which its first comparison was scheduled."""


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
    def spread(cls, period: float, compared: Mapping[str, float], scheduled: Mapping[str, float]) -> Schedule:
        """Return the schedule after a start: routes that were never compared are spread over the first period.

        ``compared`` has the time of each route's last comparison, ``scheduled`` that of the first schedule of all other routes.
        """
        first = {name: at + period * place / len(scheduled) for place, (name, at) in enumerate(scheduled.items())}
        return cls(period, first | {name: at + period for name, at in compared.items()})

    def first_due(self, now: float, ready: Collection[str]) -> str | None:
        """Return the route of ``ready`` that has been due for the longest time; None if none is due."""
        due = [name for name in ready if self.due.get(name, math.inf) <= now]
        return min(due, key=lambda name: self.due[name], default=None)

    def postpone(self, name: str, now: float) -> None:
        """Make a route due a period after ``now``, unless it is compared on request alone."""
        if name in self.due:
            self.due[name] = now + self.period


def restored(file: StoragePath, now: float) -> tuple[VerificationStatus | None, float]:
    """Return the stored result of a route, and its time; without a result, the time of the first schedule.

    The first schedule is at ``now``, and ``file`` keeps that time: a restart does not postpone a comparison that is due.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        text = "{}"
    except OSError:
        return None, now
    with suppress(ValueError, TypeError, KeyError):
        stored = json.loads(text)
        if SCHEDULED in stored:
            return None, datetime.fromisoformat(stored[SCHEDULED]).timestamp()
        found = VerificationStatus(**{**stored, "at": datetime.fromisoformat(stored["at"])})
        return found, found.at.timestamp()
    with suppress(OSError):
        write_json(file, {SCHEDULED: datetime.fromtimestamp(now, timezone.utc).isoformat()})
    return None, now
