"""Format numbers, times and texts of the status for operators."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

SMALL: Final = 10  # smaller values are shown with a fraction
OPERATIONS: Final = {
    "snapshot": "loaded",
    "insert": "inserted",
    "update_postimage": "updated",
    "update_preimage": "before an update",
    "delete": "deleted",
}
"""Change types in the words of an operator. The row before an update removes the entry of a former key."""
IN_MILLISECONDS: Final = 0.1
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
_LEAST_SHARE: Final = 0.01
"""Share of a load from which on its time left is estimated."""


def duration(seconds: float | None) -> str:
    """Format as ``4.2 ms``, ``0.42 s``, ``12 s``, ``5 min 3 s``, ``2 h 10 min`` or ``3 d 4 h``; a dash if unknown."""
    if seconds is None or not isfinite(seconds):
        return "—"
    if 0 < seconds < IN_MILLISECONDS:
        return f"{number(round(1000 * seconds, 1))} ms"
    if seconds < SMALL:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (*_SPANS, ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def number(value: float | None) -> str:
    """Format with grouped digits; a dash for an unknown value."""
    if value is None or not isfinite(value):
        return "—"
    return f"{value:,.0f}" if value >= SMALL or value == int(value) else f"{value:.1f}"


def counted(count: int, noun: str) -> str:
    """Format as ``1 version`` or ``1,003 versions``."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def when(at: datetime, now: datetime) -> str:
    """Return the time of day, with the date unless it is today."""
    return clock(at) if at.date() == now.date() else f"{at.day} {at:%b %H:%M}"


def age(at: datetime, now: datetime) -> str:
    """Return the age in whole seconds, since the page refreshes every few seconds."""
    return duration(round((now - at).total_seconds()))


def time_left(ratio: float, since: datetime, now: datetime) -> str:
    """Estimate how long work takes that began at ``since`` and has come to ``ratio``: ``about 4 min left``."""
    passed = (now - since).total_seconds()
    if ratio < _LEAST_SHARE or passed <= 0:
        return "time left not known yet"
    return f"about {duration(max(1, round(passed * (1 - ratio) / ratio)))} left"


def operations(counts: Mapping[str, int]) -> str:
    """Format changes by type: ``1,000 inserted · 3 deleted``."""
    return " · ".join(
        f"{number(counts[kind])}\N{NO-BREAK SPACE}{word}" for kind, word in OPERATIONS.items() if counts.get(kind)
    )


def kinds(differences: Mapping[str, int]) -> str:
    """Format differences by kind: ``missing 2 · extra 1``."""
    return " · ".join(f"{kind}\N{NO-BREAK SPACE}{number(count)}" for kind, count in differences.items() if count)


def prose(text: str) -> Markup:
    """Return text with its `commands` as HTML code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped just before
