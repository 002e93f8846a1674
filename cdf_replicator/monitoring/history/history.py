"""Sample the routes, and keep a ring of samples for each length of time."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from cdf_replicator.monitoring.history.ring import UNKNOWN, Ring, Samples

if TYPE_CHECKING:
    from cdf_replicator.monitoring.status import RouteStatus, Status

STEP_SECONDS: Final = 5
"""Interval of the samples of the last hour."""
SPANS: Final = {3_600: STEP_SECONDS, 86_400: 60}
"""Length of each kept time and of its samples, in seconds."""


class _RouteHistory:
    """The rings of one route, and what the last sample has counted."""

    def __init__(self) -> None:
        self.rings = {span: Ring(span, step) for span, step in SPANS.items()}
        self._received = self._batches = 0

    def sample(self, route: RouteStatus, at: float) -> None:
        received, batches = sum(route.totals.received.values()), sum(route.totals.batches.values())
        if batches < self._batches or received < self._received:  # a reload has replaced the route
            self._received = self._batches = 0
        new = route.batches[: batches - self._batches]
        latency = max((batch.latency_seconds for batch in new if batch.latency_seconds is not None), default=UNKNOWN)
        lag = UNKNOWN if route.lag_seconds is None else route.lag_seconds
        for ring in self.rings.values():
            ring.add(at, lag, received - self._received, latency)
        self._received, self._batches = received, batches


class History:
    """The histories of all routes; any thread may call any method."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._routes: dict[str, _RouteHistory] = {}

    def sample(self, status: Status) -> None:
        """Add a sample of each route of a status, and forget the routes that are gone."""
        at = status.at.timestamp()
        with self._lock:
            former, self._routes = self._routes, {}
            for route in status.routes:
                self._routes[route.route] = kept = former.get(route.route) or _RouteHistory()
                kept.sample(route, at)

    def samples(self, route: str, span: int) -> Samples:
        """Return the samples of a route in the last ``span`` seconds (``SPANS``); none before its first sample."""
        with self._lock:
            kept = self._routes.get(route)
            return kept.rings[span].samples() if kept else Samples(SPANS[span], 0.0)
