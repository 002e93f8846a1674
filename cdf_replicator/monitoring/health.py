"""Summarize the states of routes and sinks: the state of the service, its readiness, the order of severity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.monitoring.status import RouteStatus, ServiceState, SinkStatus, State, Status

UNHEALTHY_STATES: Final[tuple[State, ...]] = ("halted", "stalled", "retrying")
WORST_FIRST: Final[tuple[State, ...]] = (*UNHEALTHY_STATES, "starting", "bootstrapping", "paused", "stopped", "running")


def severity(route: RouteStatus) -> tuple[int, float, str]:
    """Return the sort key of a route: worst state first, then longest lag first."""
    return WORST_FIRST.index(route.state), -(route.lag_seconds or 0.0), route.route


def service_health(
    routes: tuple[RouteStatus, ...], sinks: tuple[SinkStatus, ...], *, stopping: bool, holder: str | None
) -> tuple[ServiceState, str]:
    """Return the state of the service and its explanation for the operator."""
    if stopping:
        return "stopping", "Stopping: running micro-batches finish, then the service ends."
    if holder is not None:
        return "starting", f"Standby: another instance holds the lease ({holder})."
    if not routes:
        return "starting", "Starting: no route is initialized yet."
    names = {state: [route.route for route in routes if route.state == state] for state in WORST_FIRST}
    down = [sink.sink for sink in sinks if sink.up is False]
    groups = (
        ("Halted, action required", names["halted"]),
        ("Stalled", names["stalled"]),
        ("Retrying", names["retrying"]),
        ("No answer from", down),
    )
    troubles = [f"{words}: {_named(group)}." for words, group in groups if group]
    letters = _open_letters(sum(route.dead_letters for route in routes))
    if troubles:
        return "failed" if names["halted"] else "degraded", " ".join(troubles + letters)
    if names["starting"]:
        return "starting", f"Starting: {_named(names['starting'])}."
    notes = (
        ("Loading a first snapshot", names["bootstrapping"]),
        ("Replaying", [route.route for route in routes if route.replay]),
        ("Paused", names["paused"]),
        ("Stopped", names["stopped"]),
    )
    remarks = [f"{words}: {_named(group)}." for words, group in notes if group]
    return "healthy", " ".join((remarks or ["All routes are running."]) + letters)


def unready_routes(status: Status) -> list[RouteStatus]:
    """Return the routes that keep the service from being ready: no query runs, or the sink has not answered.

    A paused route does not count, because an operator paused it.
    """
    answered = {sink.sink for sink in status.sinks if sink.up}
    return [
        route
        for route in status.routes
        if route.state != "paused" and (route.state != "running" or route.sink not in answered)
    ]


def _open_letters(count: int) -> list[str]:
    if not count:
        return []
    return ["1 dead letter is open." if count == 1 else f"{count:,} dead letters are open."]


def _named(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
