"""Render the first page: all routes in a table, worst first, which the reader groups, filters and searches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cdf_replicator.monitoring.health import UNHEALTHY_STATES, WORST_FIRST
from cdf_replicator.server.pages.charts import small_line
from cdf_replicator.server.pages.environment import answer
from cdf_replicator.server.pages.formatting import counted, duration, number
from cdf_replicator.server.pages.measures import HOUR, last_latency, present_error, present_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastapi import Response

    from cdf_replicator.monitoring.status import ErrorStatus, RouteStatus, SinkStatus, Status
    from cdf_replicator.monitoring.status_store import StatusStore

Group = Literal["", "table", "sink"]
ATTENTION: Final = "attention"
LETTERS: Final = "dead-letters"
LONGEST_SEARCH: Final = 100
EVENTS_SHOWN: Final = 30


@dataclass(frozen=True, slots=True)
class Query:
    """The selection of the reader.

    Args:
        group: Property by which routes are grouped; empty for a single list.
        state: A state, ``attention`` for the unhealthy states, ``dead-letters`` for routes with open dead letters, or
            empty for all.
        search: Part of the name of a route, a table or a sink.
    """

    group: Group = ""
    state: str = ""
    search: str = ""

    @classmethod
    def of(cls, group: str, state: str, search: str) -> Query:
        """Return the query of a request; a value that does not exist selects everything."""
        known: dict[str, Group] = {"table": "table", "sink": "sink"}
        states = (ATTENTION, LETTERS, *WORST_FIRST)
        return cls(known.get(group, ""), state if state in states else "", search.strip()[:LONGEST_SEARCH])

    def selects(self, route: RouteStatus) -> bool:
        names = f"{route.route} {route.table} {route.sink}".lower()
        in_state = {
            "": True,
            ATTENTION: route.state in UNHEALTHY_STATES,
            LETTERS: route.dead_letters > 0,
        }.get(self.state, route.state == self.state)
        return in_state and self.search.lower() in names


class Tile(NamedTuple):
    """A number at the top of the page; ``tone`` colours it: bad, warn or empty."""

    label: str
    value: str
    note: str
    tone: str


class Row(NamedTuple):
    """A route in the table, with its lag over the last hour as an SVG path."""

    route: RouteStatus
    line: str
    rows_per_second: float | None
    latency: float | None
    error: ErrorStatus | None


class Section(NamedTuple):
    """The routes of a table or of a sink; without a name, all routes."""

    name: str
    rows: list[Row]


def render(board: StatusStore, query: Query) -> Response:
    """Return the page of all routes."""
    status = board.snapshot()
    rows = [_row(board, route) for route in status.routes]
    return answer(
        "overview.html",
        status=status,
        query=query,
        tiles=_tiles(status, rows),
        sections=_sections([row for row in rows if query.selects(row.route)], query.group),
        states=_states(status.routes),
        sinks=[(sink, *_of_sink(status.routes, sink)) for sink in status.sinks],
        events=status.events[:EVENTS_SHOWN],
    )


def _row(board: StatusStore, route: RouteStatus) -> Row:
    samples = board.history.samples(route.route, HOUR)
    line = small_line(samples, HOUR)
    return Row(route, line, present_rate(samples), last_latency(samples), present_error(route))


def _sections(rows: list[Row], group: Group) -> list[Section]:
    """Return the rows by group; the group of the worst route is the first."""
    if not group:
        return [Section("", rows)] if rows else []
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.route.table if group == "table" else row.route.sink, []).append(row)
    return [Section(name, own) for name, own in found.items()]


def _states(routes: Iterable[RouteStatus]) -> list[tuple[str, str]]:
    """Return the selectable states with their labels."""
    counts = Counter(route.state for route in routes)
    unhealthy = sum(counts[state] for state in UNHEALTHY_STATES)
    letters = sum(route.dead_letters > 0 for route in routes)
    general = [("", "all"), (ATTENTION, f"needs attention ({unhealthy})"), (LETTERS, f"open dead letters ({letters})")]
    return general + [(state, f"{state} ({counts[state]})") for state in WORST_FIRST if counts[state]]


def _tiles(status: Status, rows: Sequence[Row]) -> list[Tile]:
    routes, sinks = status.routes, status.sinks
    running = sum(route.state == "running" for route in routes)
    up = sum(sink.up is True for sink in sinks)
    letters = sum(route.dead_letters for route in routes)
    rates = [row.rows_per_second for row in rows if row.rows_per_second is not None]
    errors = status.service.errors_last_hour
    restarts = f"{counted(sum(route.restarts for route in routes), 'restart')} since start"
    down = any(sink.up is False for sink in sinks)
    halted = any(route.state == "halted" for route in routes)
    return [
        Tile("Routes running", f"{running} of {len(routes)}", "", "bad" if halted else ""),
        Tile("Sinks up", f"{up} of {len(sinks)}", "", "bad" if down else ""),
        _worst_lag(routes),
        Tile("Rows delivered", f"{number(sum(rates))}/s" if rates else "—", "last minute", ""),
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


def _of_sink(routes: Iterable[RouteStatus], sink: SinkStatus) -> tuple[int, int]:
    """Return the number of changes that a sink has rejected since the start, and of its open dead letters."""
    own = [route for route in routes if route.sink == sink.sink]
    return sum(sum(route.totals.rejected.values()) for route in own), sum(route.dead_letters for route in own)
