"""Render the page of a route: its history, progress, micro-batches, counts, definition and events."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

from cdf_replicator.monitoring.totals import PHASES
from cdf_replicator.server.pages.charts import charts
from cdf_replicator.server.pages.environment import answer
from cdf_replicator.server.pages.formatting import duration
from cdf_replicator.server.pages.measures import DAY, HOUR, last_latency, present_error, present_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import Response

    from cdf_replicator.monitoring.status import RouteStatus, Status
    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.monitoring.totals import BatchStatus, Totals
    from cdf_replicator.server.pages.actions import Offer, Submitted
    from cdf_replicator.settings.effective import Setting

BATCHES_SHOWN: Final = 50
BAR_WIDTH: Final = 160.0


class Bar(NamedTuple):
    """A phase of a micro-batch as a rectangle of a drawing; ``title`` is its tooltip."""

    x: float
    width: float
    phase: str
    title: str


class Count(NamedTuple):
    """A row of the counts: changes by operation, if they are known, and their number."""

    label: str
    number: int
    by_operation: dict[str, int] | None = None


def render(
    board: StatusStore,
    status: Status,
    route: RouteStatus,
    offers: Sequence[Offer] | None,
    submitted: Sequence[Submitted],
) -> Response:
    """Return the page of a route.

    Args:
        board: The store with the history and the events.
        status: The status.
        route: The route.
        offers: The actions that the page offers; None if actions are off.
        submitted: Commands for the route that came over HTTP, newest first.
    """
    name = route.route
    hour, day = (board.history.samples(name, span) for span in (HOUR, DAY))
    shown = route.batches[:BATCHES_SHOWN]
    longest = max((batch_seconds(batch) for batch in shown), default=0.0)
    return answer(
        "route.html",
        status=status,
        route=route,
        error=present_error(route),
        rows_per_second=present_rate(hour),
        latency=last_latency(hour),
        spans=[
            ("Last hour", charts(hour, HOUR, status.at)),
            ("Last day", charts(day, DAY, status.at)),
        ],
        batches=[(batch, batch_seconds(batch), phases(batch, longest)) for batch in shown],
        counts=counts(route.totals),
        settings=own_settings(status, route),
        events=board.events.newest(name),
        has_actions=offers is not None,
        offers=offers,
        submitted=submitted,
    )


def find(status: Status, name: str) -> RouteStatus | None:
    return next((route for route in status.routes if route.route == name), None)


def missing(status: Status, name: str, root: str = "../") -> Response:
    """Return the page for a route or an action that does not exist; ``root`` is the relative address of the first page."""
    near = get_close_matches(name, [route.route for route in status.routes], n=1, cutoff=0.5)
    return answer("missing.html", 404, status=status, root=root, name=name, near=near[0] if near else None)


def counts(totals: Totals) -> list[Count]:
    """Return the counts since the start. The first is the sum of the others."""
    return [
        Count("Received", sum(totals.received.values()), totals.received),
        Count("Applied", sum(totals.applied.values()), totals.applied),
        Count("Replaced by a later change of the same key before the write (superseded)", totals.superseded),
        Count("Older than what the sink holds (stale)", totals.stale),
        Count("Without an effect, such as a delete of an absent key (no-op)", totals.noop),
        Count("Rejected by the sink and kept as dead letters", sum(totals.rejected.values())),
    ]


def own_settings(status: Status, route: RouteStatus) -> list[Setting]:
    """Return the settings of a route, of its table and of its sink."""
    groups = (f"routes.{route.route}.", f"tables.{route.table}.", f"sinks.{route.sink}.")
    return [setting for group in groups for setting in status.configuration if setting.path.startswith(group)]


def phases(batch: BatchStatus, longest: float) -> list[Bar]:
    """Return the phases of a batch side by side; ``longest`` is the time in seconds that fills the width."""
    bars: list[Bar] = []
    x = 0.0
    for phase in PHASES:
        seconds = batch.seconds.get(phase, 0.0)
        width = BAR_WIDTH * seconds / longest if longest else 0.0
        if width:
            bars.append(Bar(round(x, 1), round(width, 1), phase, f"{phase}: {duration(seconds)}"))
        x += width
    return bars


def batch_seconds(batch: BatchStatus) -> float:
    return sum(batch.seconds.values())
