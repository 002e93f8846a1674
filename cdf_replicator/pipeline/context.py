"""Define what the classes of one route share: its surroundings, and the request to stop."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.command_queue import Command
    from cdf_replicator.state.store import StateStore


@dataclass(frozen=True, slots=True)
class RouteContext:
    """A route, where it runs, where its state is stored, and where it reports.

    ``once`` is true if the route ends after it has delivered every commit.
    """

    spark: SparkSession
    route: Route
    state_store: StateStore
    report: RouteReporter
    settings: Settings
    once: bool = False

    @property
    def job_group(self) -> str:
        """Name of the group of the jobs that the route's thread starts, outside of its query."""
        return f"cdf-{self.route.name}"


class Interrupt:
    """The request to a route's thread to leave its present work: the service or the route stops, or a command waits.

    ``ended`` is set when this route stops alone. The pipeline only reads it. Every wait of a route's thread goes through
    ``wait``, so that an interrupt ends it. ``runtime.route_runner.Inbox`` sets it.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._commands: deque[Command] = deque()
        self._wake = threading.Event()
        self.ended = threading.Event()

    @property
    def stopping(self) -> bool:
        """Return whether the service or this route stops."""
        return self._stop.is_set() or self.ended.is_set()

    @property
    def requested(self) -> bool:
        """Return whether the service or this route stops, or a command waits."""
        return self.stopping or bool(self._commands)

    def wait(self, seconds: float) -> None:
        """Wait for the given time; an interrupt ends the wait."""
        self._wake.wait(seconds)
        self._wake.clear()
