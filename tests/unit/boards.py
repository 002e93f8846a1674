"""Provide a clock that a test sets, and a status store of two routes that have delivered."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cdf_replicator.monitoring.totals import BatchStatus

if TYPE_CHECKING:
    from cdf_replicator.monitoring.status_store import StatusStore

START = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
ROUTES = {"orders_search": "search", "orders_cache": "cache"}


class Clock:
    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        return self.at

    def tick(self, seconds: float) -> datetime:
        self.at += timedelta(seconds=seconds)
        return self.at


def deliver(board: StatusStore, *, version: int, at: datetime) -> None:
    """Have both routes run, and deliver twelve batches each, up to a version."""
    board.runtime(spark="4.2.0", delta="4.4.0", java="17")
    types = {"search": "elasticsearch", "cache": "redis"}
    for route, sink in ROUTES.items():
        board.add_sink(sink, types[sink], f"http://user:secret@{sink}:1")
        board.sink_up(sink)
        board.add_route(route, "orders", sink)
        board.state(route, "running")
        for n in range(12):
            seconds = {"prepare": 0.1, "write": 0.4, "record": 0.1}
            board.batch(route, BatchStatus(n, (n, n + 1), {"insert": 1000 + n}, seconds, "delivered", at))
        board.update(route, source_version=version, oldest_undelivered_commit_at=None)
        board.update(route, delivered_version=version)
