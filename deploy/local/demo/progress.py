"""Print the progress of source and service: a live table on a terminal, else a line every few seconds."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from deploy.local.demo.service import ROUTES

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from typing_extensions import Self

    from deploy.local.demo.service import Service
    from deploy.local.demo.source import Commit

LOOK_SECONDS = 0.5
LINE_SECONDS = 5


class Progress:
    """Polls the service while the source is written.

    Attributes:
        trouble: The reason to end the demo; None while the service works.
    """

    def __init__(self, console: Console, service: Service, days: int) -> None:
        self._console = console
        self._service = service
        self._days = days
        self._day = 0
        self._wrote = "nothing yet"
        self._version = 0
        self._routes: dict[str, dict[str, Any]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._live = nullcontext()
        if console.is_terminal:
            self._live = Live(get_renderable=self._table, console=console, refresh_per_second=2)
        self.trouble: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._live.__exit__(None, None, None)

    def wrote(self, day: int, commit: Commit) -> None:
        """Record the last commit of a day; days count from 1."""
        self._day, self._version = day, commit.version
        self._wrote = f"{commit.at:%H:%M:%S} {commit.what}"

    def caught_up(self, version: int) -> bool:
        return len(self._routes) == len(ROUTES) and all(
            (route["delivered_version"] or -1) >= version for route in self._routes.values()
        )

    @property
    def running(self) -> bool:
        return len(self._routes) == len(ROUTES) and all(route["state"] == "running" for route in self._routes.values())

    def _watch(self) -> None:
        spoken = time.monotonic()
        while not self._stop.wait(LOOK_SECONDS):
            self._look()
            if not self._console.is_terminal and time.monotonic() - spoken > LINE_SECONDS:
                spoken = time.monotonic()
                self._console.print(self._line(), soft_wrap=True)

    def _look(self) -> None:
        if not self._service.running:
            self.trouble = f"the service has ended; its log: {self._service.log}"
            return
        try:
            self._routes = self._service.routes()
        except OSError:
            return  # the service is busy: keep the last status
        halted = [route for route in self._routes.values() if route["state"] == "halted"]
        self.trouble = f"route {halted[0]['route']} halted: {halted[0]['reason']}" if halted else None

    def _line(self) -> str:
        lags = ", ".join(f"{sink} {_lag(self._routes.get(name))}" for sink, name in ROUTES.items())
        return f"day {self._day} of {self._days}: version {self._version} ({self._wrote}); behind: {lags}"

    def _table(self) -> RenderableType:
        routes = Table("route", "state", "delivered", "behind", "rows/s now", box=None, padding=(0, 2))
        for name in ROUTES.values():
            route = self._routes.get(name)
            if route is not None:
                version, speed = route["delivered_version"], route["processed_rows_per_second"]
                routes.add_row(name, route["state"], f"version {version}", _lag(route), f"{speed:,.0f}")
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(self._days, self._day, width=30),
            f"day {self._day} of {self._days}, version {self._version}: {self._wrote}",
        )
        return Group(bar, routes)


def _lag(route: dict[str, Any] | None) -> str:
    if route is None:
        return "starting"
    if route["state"] != "running" or route["lag_versions"] is None:
        return route["state"]
    if route["lag_versions"] == 0:
        return "0"
    return f"{route['lag_versions']} ({route['lag_seconds'] or 0:.1f} s)"
