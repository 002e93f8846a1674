"""Define what the classes of one route share: its surroundings, the request to stop, and the gate of all routes' starts.

Cancel a load for which a command can't wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.command_queue import Command
    from cdf_replicator.state.store import StateStore

STARTS_AT_ONCE: Final = 16
"""A start takes about 3 MB of the JVM's heap for its plans, and all cores for most of its time."""
LONGEST_START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.5
ENDING_A_LOAD: Final = ("pause", "resync")


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
    ``wait``, so that an interrupt ends it. ``runtime.command_dispatcher.Inbox`` sets it.
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

    @property
    def ends_load(self) -> bool:
        """Return whether a command waits that takes the place of a load; every other command needs the loaded target."""
        return any(command.kind in ENDING_A_LOAD for command in tuple(self._commands))

    def wait(self, seconds: float) -> None:
        """Wait for the given time; an interrupt ends the wait."""
        self._wake.wait(seconds)
        self._wake.clear()


@contextmanager
def cancelled_for_command(context: RouteContext, interrupt: Interrupt) -> Iterator[threading.Event]:
    """Cancel a load if a command that ends it has waited for ``CDF_SHUTDOWN_SECONDS``; yield the event that records it."""
    ended, cancelled = threading.Event(), threading.Event()
    given = context, interrupt, ended, cancelled
    thread = threading.Thread(target=_cancel_when_due, args=given, name=f"load-{context.route.name}", daemon=True)
    thread.start()
    try:
        yield cancelled
    finally:
        ended.set()
        thread.join()  # a later cancellation would concern the jobs of the next run


def _cancel_when_due(
    context: RouteContext, interrupt: Interrupt, ended: threading.Event, cancelled: threading.Event
) -> None:
    due_at = math.inf
    while not ended.wait(POLL_SECONDS):
        if interrupt.ends_load:
            due_at = min(due_at, time.monotonic() + context.settings.shutdown_seconds)
        if time.monotonic() >= due_at:  # again at each poll, since the load may have been between two jobs
            cancelled.set()
            with suppress(Exception):  # the next poll cancels again
                context.spark.sparkContext.cancelJobGroup(context.job_group)


class StartGate:
    """Limits how many routes start at the same time, since the plans of hundreds of starts do not fit the JVM's heap.

    A route that takes long delays no other route: if no start ends for ``LONGEST_START_SECONDS``, every waiting route starts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting = 0
        self._moved_at = 0.0

    @contextmanager
    def place(self, interrupt: Interrupt) -> Iterator[bool]:
        """Wait for a place and hold it; yield False if an interrupt ends the wait."""
        while not (entered := self._enter()) and not interrupt.requested:
            interrupt.wait(POLL_SECONDS)
        try:
            yield entered
        finally:
            if entered:
                self._leave()

    def _enter(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if self._starting < STARTS_AT_ONCE:
                self._moved_at = now
            elif now - self._moved_at < LONGEST_START_SECONDS:
                return False
            self._starting += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._starting -= 1
            self._moved_at = time.monotonic()
