"""Render the status page: a snapshot of the status as one HTML document with inline script and stylesheet."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from cdf_replicator.monitoring.health import UNHEALTHY_STATES
from cdf_replicator.monitoring.status_store import BATCHES_KEPT
from cdf_replicator.monitoring.totals import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from cdf_replicator.monitoring.status import ErrorStatus, RouteStatus, SinkStatus, Status
    from cdf_replicator.monitoring.totals import BatchStatus

BATCHES_SHOWN: Final = 50
SPARK_WIDTH: Final = 180
SPARK_HEIGHT: Final = 28
BAR_WIDTH: Final = 160.0
SMALL: Final = 10  # smaller values are shown with a fraction
OPERATIONS: Final = {
    "snapshot": "loaded",
    "insert": "inserted",
    "update_postimage": "updated",
    "update_preimage": "preimages",
    "delete": "deleted",
}
IN_MILLISECONDS: Final = 0.1
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


class Bar(NamedTuple):
    """A rectangle of a drawing; ``kind`` is a phase or an outcome, ``title`` its tooltip."""

    x: float
    width: float
    height: float
    kind: str
    title: str


class Tile(NamedTuple):
    """A number of the overview; ``tone`` colours it: good, bad, warn or empty."""

    label: str
    value: str
    note: str
    tone: str


def render(status: Status, nonce: str) -> str:
    """Return the page; ``nonce`` lets its script and stylesheet pass the Content-Security-Policy."""
    return _TEMPLATE.render(status=status, nonce=nonce, tiles=tiles(status))


def duration(seconds: float | None) -> str:
    """Format as ``4.2 ms``, ``0.42 s``, ``12 s``, ``5 min 3 s``, ``2 h 10 min`` or ``3 d 4 h``; a dash for None."""
    if seconds is None:
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


def operations(counts: Mapping[str, int]) -> str:
    """Format changes by type: ``1,000 inserted · 3 deleted``."""
    return " · ".join(
        f"{number(counts[kind])}\N{NO-BREAK SPACE}{word}" for kind, word in OPERATIONS.items() if counts.get(kind)
    )


def kinds(differences: Mapping[str, int]) -> str:
    """Format differences by kind: ``missing 2 · extra 1``."""
    return " · ".join(f"{kind}\N{NO-BREAK SPACE}{number(count)}" for kind, count in differences.items() if count)


def tiles(status: Status) -> list[Tile]:
    """Return the overview at the top of the page."""
    routes, sinks = status.routes, status.sinks
    running = sum(route.state == "running" for route in routes)
    up = sum(sink.up is True for sink in sinks)
    letters = sum(route.dead_letters for route in routes)
    rows = sum(route.processed_rows_per_second for route in routes)
    errors = status.service.errors_last_hour
    restarts = f"{counted(sum(route.restarts for route in routes), 'restart')} since start"
    down = any(sink.up is False for sink in sinks)
    halted = any(route.state == "halted" for route in routes)
    return [
        Tile("Routes running", f"{running} of {len(routes)}", "", "bad" if halted else ""),
        Tile("Sinks up", f"{up} of {len(sinks)}", "", "bad" if down else ""),
        _worst_lag(routes),
        Tile("Rows per second", number(rows), "all routes", ""),
        Tile("Errors, last hour", number(errors), restarts, "warn" if errors else ""),
        Tile("Dead letters", number(letters), "open", "warn" if letters else ""),
    ]


def _worst_lag(routes: Sequence[RouteStatus]) -> Tile:
    """Return the largest lag of the routes whose lag is known, with the number of the other routes."""
    seconds = [route.lag_seconds for route in routes if route.lag_seconds is not None]
    versions = [route.lag_versions for route in routes if route.lag_versions is not None]
    unknown = len(routes) - len(seconds)
    notes = [counted(max(versions), "version")] if versions else []
    notes += [f"{counted(unknown, 'route')} not known"] if unknown else []
    return Tile("Worst lag", duration(max(seconds, default=None)), ", ".join(notes), "")


def rejected(status: Status, sink: SinkStatus) -> int:
    """Return the number of changes that a sink has rejected since the start, over all routes."""
    return sum(sum(route.totals.rejected.values()) for route in status.routes if route.sink == sink.sink)


def present_error(route: RouteStatus) -> ErrorStatus | None:
    """Return the error that the route fails with; None if the state has a newer reason, since the last error is then over."""
    error = route.last_error
    if error is None or route.state not in UNHEALTHY_STATES or error.what not in (route.reason or error.what):
        return None
    return error


def sparkline(route: RouteStatus) -> list[Bar]:
    """Return the rows of the last batches, oldest left; the largest batch has the full height."""
    step = SPARK_WIDTH / BATCHES_KEPT
    most = max((batch.rows for batch in route.batches), default=0) or 1
    left = SPARK_WIDTH - step * len(route.batches)
    return [
        Bar(
            round(left + step * place, 2),
            round(step - 0.8, 2),
            round(max(1.5, SPARK_HEIGHT * batch.rows / most), 2),
            batch.outcome,
            f"batch {batch.batch_id}: {number(batch.rows)} rows, {batch.outcome}",
        )
        for place, batch in enumerate(reversed(route.batches))
    ]


def phases(batch: BatchStatus, longest: float) -> list[Bar]:
    """Return the phases of a batch side by side; ``longest`` is the time in seconds that fills the width."""
    bars: list[Bar] = []
    x = 0.0
    for phase in PHASES:
        seconds = batch.seconds.get(phase, 0.0)
        width = BAR_WIDTH * seconds / longest if longest else 0.0
        if width:
            bars.append(Bar(round(x, 2), round(width, 2), 10, phase, f"{phase}: {duration(seconds)}"))
        x += width
    return bars


def prose(text: str) -> Markup:
    """Return text with its `commands` as HTML code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped just before


def batch_seconds(batch: BatchStatus) -> float:
    return sum(batch.seconds.values())


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("cdf_replicator.server"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: Final = (duration, number, counted, clock, kinds, operations, prose, batch_seconds)
_FUNCTIONS: Final = (age, when, present_error, sparkline, phases, rejected, timedelta)
_ENVIRONMENT.filters.update({each.__name__: each for each in _FILTERS})
_ENVIRONMENT.globals.update({each.__name__: each for each in _FUNCTIONS})
_ENVIRONMENT.globals.update(
    operation_names=OPERATIONS,
    phase_names=PHASES,
    batches_shown=BATCHES_SHOWN,
)
_TEMPLATE: Final = _ENVIRONMENT.get_template("status.html")
