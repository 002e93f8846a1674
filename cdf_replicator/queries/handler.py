"""Answer queries in the running service, by its configuration and in its Spark session, beside the streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from cdf_replicator.queries.changes import source_of
from cdf_replicator.queries.configuration import digest
from cdf_replicator.queries.execution import execute
from cdf_replicator.queries.query import QueryRefusedError, ReadChanges
from cdf_replicator.queries.running import RunningQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from cdf_replicator.queries.query import Query
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore

AT_ONCE: Final = 2
CANCEL_SECONDS: Final = 5.0
"""Longest wait for the end of a cancelled query when the service stops."""


class QueryHandler:
    """The queries of one service; any thread may call any method.

    Args:
        spark: The session of the service.
        settings: A function that returns the configuration that the service runs at present.
        state_store: The state path, which queries only read.
    """

    def __init__(self, spark: SparkSession, settings: Callable[[], Settings], state_store: StateStore) -> None:
        self._spark = spark
        self._settings = settings
        self._state_store = state_store
        self._lock = threading.Lock()
        self._running: list[RunningQuery] = []
        self._closed = False

    def start(self, query: Query) -> RunningQuery:
        """Start a query; raise ``QueryRefusedError`` if this service can't answer it, or not now."""
        settings = self._settings()
        _check(query, settings)
        with self._lock:
            self._running = [each for each in self._running if each.is_alive]
            if self._closed:
                raise QueryRefusedError("the service is stopping", for_now=True)
            if len(self._running) >= AT_ONCE:
                raise QueryRefusedError(f"it already answers {AT_ONCE} queries", for_now=True)
            route = query.concerned[0] if query.concerned else ""
            running = RunningQuery(
                self._spark,
                lambda: execute(query, self._spark, settings, self._state_store, gently=True),
                query.name,
                route,
            )
            self._running.append(running)
            return running

    def close(self) -> None:
        """Cancel the queries, and refuse all later queries."""
        with self._lock:
            self._closed = True
        for running in self._running:
            running.cancel(CANCEL_SECONDS)


def _check(query: Query, settings: Settings) -> None:
    """Raise ``QueryRefusedError`` if the configuration can't answer the query."""
    if unknown := [name for name in query.concerned or () if name not in settings.routes]:
        raise QueryRefusedError(f"its configuration has no route {', '.join(unknown)}")
    if query.configuration and query.configuration != digest(settings, query.concerned):
        raise QueryRefusedError("its configuration differs from that of this command")
    if isinstance(query, ReadChanges):
        given, table = source_of(query), settings.tables.get(query.table)
        if table is None or (table.path, table.name) != (given.path, given.name):
            raise QueryRefusedError(f"its configuration has no such table {query.table}")
