"""Draw the samples of a route as SVG paths: small lines for the table of routes, charts with axes for the route's page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Final

from cdf_replicator.server.pages.formatting import duration, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdf_replicator.monitoring.history import Samples

HEIGHT: Final = 100
POINTS: Final = 240
"""Points of a chart."""
LINE_POINTS: Final = 60
LINE_HEIGHT: Final = 20
LINE_TOP_SECONDS: Final = 5.0
"""Least full height of a small line, so that a lag of less than a second remains flat."""
TICKS: Final = 4
_TIMES: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200)
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Chart:
    """One measured value over a time.

    Args:
        title: What is measured.
        line: SVG path of the values in a box of ``POINTS`` by ``HEIGHT``; empty if nothing is known.
        area: SVG path of the area below; empty if the values are bars.
        now: Last known value.
        least: Smallest value.
        most: Largest value.
        scale: Labels of the vertical axis, from its top to 0.
        times: Labels of the horizontal axis.
    """

    title: str
    line: str
    area: str
    now: str
    least: str
    most: str
    scale: tuple[str, ...]
    times: tuple[str, ...]


def small_line(samples: Samples, span: int) -> str:
    """Return the path of the largest lags in the last ``span`` seconds, which fill the height."""
    each = span // samples.step // LINE_POINTS
    points = _points(samples.lag, samples, each, LINE_POINTS, max)
    top = max((value for value in points if not math.isnan(value)), default=0.0)
    return _line(points, max(top, LINE_TOP_SECONDS), LINE_HEIGHT)


def charts(samples: Samples, span: int, now: datetime) -> list[Chart]:
    """Return the charts of a route over the last ``span`` seconds.

    A point is the largest of the lags and latencies that it covers, and the mean of the rates. A latency is a bar, since
    there is none without a delivery.
    """
    late = min(span, max(0, int(now.timestamp() - samples.until))) // samples.step
    each, times = span // samples.step // POINTS, _times(span, now)
    lag, rows, latency = (
        _points(values, samples, each, POINTS, combine, late)
        for values, combine in ((samples.lag, max), (samples.rows, _mean), (samples.latency, max))
    )
    return [
        _chart("Lag", lag, duration, _top_seconds, times),
        _chart("Rows delivered per second", rows, number, _top_number, times),
        _chart("Commit to visible", latency, duration, _top_seconds, times, bars=True),
    ]


def _chart(
    title: str,
    points: Sequence[float],
    shown: Callable[[float], str],
    top_of: Callable[[float], float],
    times: tuple[str, ...],
    *,
    bars: bool = False,
) -> Chart:
    known = [value for value in points if not math.isnan(value)]
    if not known:
        return Chart(title, "", "", "—", "—", "—", ("", "", "0"), times)
    top = top_of(max(known))
    line, area = (_bars(points, top), "") if bars else (_line(points, top, HEIGHT), _area(points, top))
    scale = (shown(top), shown(top / 2), "0")
    return Chart(title, line, area, shown(known[-1]), shown(min(known)), shown(max(known)), scale, times)


def _points(
    values: Sequence[float],
    samples: Samples,
    each: int,
    size: int,
    combine: Callable[[list[float]], float],
    late: int = 0,
) -> list[float]:
    """Return ``size`` points of ``each`` values, the last value at the right; NaN where nothing is known.

    A point begins at a multiple of its length, so that a value stays in its point from one refresh to the next. The last
    ``late`` values are not known.
    """
    late += -(int(samples.until) // samples.step + late) % each
    kept = (*values, *[math.nan] * late)[-each * size :]
    padded = [*[math.nan] * (each * size - len(kept)), *kept]
    groups = ([value for value in padded[at : at + each] if value == value] for at in range(0, each * size, each))  # noqa: PLR0124
    return [combine(group) if group else math.nan for group in groups]


def _runs(points: Sequence[float], top: float, height: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the places of points without a gap between them."""
    for known, run in groupby(enumerate(points), key=lambda point: not math.isnan(point[1])):
        if known:
            yield [(x, round(height * (1 - value / top))) for x, value in run]


def _line(points: Sequence[float], top: float, height: int) -> str:
    return "".join(
        "M" + " ".join(f"{x} {y}" for x, y in (run if len(run) > 1 else run * 2)) for run in _runs(points, top, height)
    )


def _area(points: Sequence[float], top: float) -> str:
    return "".join(
        f"M{run[0][0]} {HEIGHT} " + " ".join(f"{x} {y}" for x, y in run) + f" {run[-1][0]} {HEIGHT}z"
        for run in _runs(points, top, HEIGHT)
    )


def _bars(points: Sequence[float], top: float) -> str:
    return "".join(f"M{x} {HEIGHT}V{y}" for run in _runs(points, top, HEIGHT) for x, y in run)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _top_seconds(most: float) -> float:
    return next((time for time in _TIMES if time >= (most or 1)), math.ceil(most / _DAY) * _DAY)


def _top_number(most: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is not below ``most``."""
    power = 10 ** math.floor(math.log10(most)) if most > 1 else 1
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= most))


def _times(span: int, now: datetime) -> tuple[str, ...]:
    at = (now - timedelta(seconds=span * (TICKS - tick) / TICKS) for tick in range(TICKS + 1))
    return tuple(f"{each.astimezone(timezone.utc):%H:%M}" for each in at)
