"""Compute what several pages show: the headline of the service, the present error, rate and latency of a route."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cdf_replicator.monitoring.health import UNHEALTHY_STATES
from cdf_replicator.server.pages.formatting import counted

if TYPE_CHECKING:
    from cdf_replicator.monitoring.history import Samples
    from cdf_replicator.monitoring.status import ErrorStatus, RouteStatus, Status

HOUR: Final = 3_600
DAY: Final = 86_400
RATE_SECONDS: Final = 60


def headline(status: Status) -> tuple[str, str]:
    """Return the state of the service in words, and its tone: a healthy service says what an operator should know."""
    words, tone = [status.service.state.capitalize()], status.service.state
    letters = sum(route.dead_letters for route in status.routes)
    halted, loading = (sum(route.state == state for route in status.routes) for state in ("halted", "bootstrapping"))
    words += [f"{counted(halted, 'route')} halted"] if halted else []
    words += [f"loading {counted(loading, 'route')}"] if loading and tone == "healthy" else []
    words += [counted(letters, "open dead letter")] if letters else []
    return ", ".join(words), "letters" if letters and tone == "healthy" else tone


def present_error(route: RouteStatus) -> ErrorStatus | None:
    """Return the error that the route fails with; None if the state has a newer reason, since the last error is then over."""
    error = route.last_error
    if error is None or route.state not in UNHEALTHY_STATES or error.what not in (route.reason or error.what):
        return None
    return error


def present_rate(samples: Samples) -> float | None:
    """Return the delivered rows per second of the last minute; None before the first sample."""
    last = [rate for rate in samples.rows[-RATE_SECONDS // samples.step :] if not math.isnan(rate)]
    return sum(last) / len(last) if last else None


def last_latency(samples: Samples) -> float | None:
    """Return the last measured time from a commit to its delivery; None if there is none in the samples."""
    return next((latency for latency in reversed(samples.latency) if not math.isnan(latency)), None)
