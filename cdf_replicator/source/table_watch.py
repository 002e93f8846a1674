"""Watch the log of each table once for all its routes, and wake the queries that sleep until its next commit."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdf_replicator.source.commit_log import CommitLog, CommitMark
from cdf_replicator.spark.trigger_clock import TriggerClocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.spark.trigger_clock import TriggerClock

LONGEST_SLEEP_SECONDS: Final = 60.0
"""A trigger finds what the watch of the two newest commits does not find, such as commits that a catalog keeps."""
POLLS_PER_SECOND: Final = 125
"""Limit for all tables in a local file system, of which a poll takes about 20 microseconds."""
LOCAL_WATCHER: Final = "watch-local-tables-"
SOONER: Final = 50
"""A single table is polled this many times as often as ``CDF_TRIGGER_SECONDS``, up to a second, demands."""
ONE_SECOND: Final = 1


def free_poll_seconds(longest: float, *least: float) -> float:
    """Return the interval of polls that cost nothing but processor time: the longest of ``least``, at most ``longest``.

    An operator who sets more than a second wants fewer and larger micro-batches.
    """
    return longest if longest > ONE_SECOND else min(longest, max(least))


@dataclass(eq=False, slots=True)
class _Table:
    """A table that queries follow.

    Args:
        location: Location of the table.
        watcher: Name of the thread that watches it: its own, since a request to an object store may hang, or that of all
            tables on a local device, since a request to a network file system may hang too.
        newest: The newest known commit version.
    """

    location: str
    watcher: str
    newest: int = -1
    queries: set[IdleQuery] = field(default_factory=set)
    _log: CommitLog | None = field(default=None, init=False)
    _mark: CommitMark | None = field(default=None, init=False)

    def notice(self, newest: int) -> None:
        """Wake the queries if a commit is new."""
        if newest > self.newest:
            self.newest = newest
            self.wake()

    def wake(self) -> None:
        for query in self.queries:
            query.wake()

    def poll(self, spark: SparkSession, lock: threading.Lock) -> None:
        """Notice a new commit, and a newest commit that was replaced."""
        with lock:
            sleeping = any(query.sleeps for query in self.queries)
        if not sleeping:
            self._mark = None
            return
        log = self._log = self._log or CommitLog(spark, self.location)
        mark = self._mark
        replaced = mark is not None and not mark.is_unchanged
        newest = log.latest_version()
        if mark is None or replaced or mark.version != newest:
            self._mark = CommitMark.at(log, newest)
        with lock:
            self.notice(newest)
            if mark is not None and replaced:
                self._log = self._mark = None
                for query in self.queries:
                    query.report_replaced(mark)


class TableWatch:
    """The followed tables of a service."""

    def __init__(self, spark: SparkSession, trigger_seconds: float, stop: threading.Event) -> None:
        self.clocks = TriggerClocks(spark)
        self._spark = spark
        self._seconds = trigger_seconds
        self._stop = stop
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._watchers: set[str] = set()

    def join(self, query: IdleQuery) -> None:
        """Watch the table of a query."""
        watcher = f"watch-{query.location}" if query.device is None else f"{LOCAL_WATCHER}{query.device}"
        with self._lock:
            table = self._tables.setdefault(query.location, _Table(query.location, watcher))
            table.queries.add(query)
            if watcher not in self._watchers:
                self._watchers.add(watcher)
                threading.Thread(target=self._watch, args=(watcher,), name=watcher, daemon=True).start()

    def sleep(self, query: IdleQuery, clock: TriggerClock, delivered: int) -> None:
        """Let a query sleep until its table has a commit after ``delivered``, up to which it has read everything."""
        with self._lock:
            table = self._tables[query.location]
            table.notice(delivered)
            if table.newest == delivered:
                clock.sleep(LONGEST_SLEEP_SECONDS)

    def leave(self, query: IdleQuery) -> None:
        """Forget a query that ends."""
        with self._lock:
            table = self._tables[query.location]
            table.queries.discard(query)
            if not table.queries:
                del self._tables[query.location]

    def _watch(self, watcher: str) -> None:
        while tables := self._watched_by(watcher):
            for table in tables:
                try:
                    table.poll(self._spark, self._lock)
                except Exception:  # noqa: BLE001 - the triggers of the queries report an unavailable table
                    with suppress(Exception), self._lock:  # the next poll wakes it; without a JVM the service ends
                        table.wake()
            if self._stop.wait(self._interval(watcher)):
                break

    def _watched_by(self, watcher: str) -> list[_Table]:
        """Return the tables of a thread; without any, the thread ends."""
        with self._lock:
            tables = [table for table in self._tables.values() if table.watcher == watcher]
            if not tables:
                self._watchers.discard(watcher)
        return tables

    def _interval(self, watcher: str) -> float:
        """Return the seconds until the next poll, which is a paid request in an object store."""
        if not watcher.startswith(LOCAL_WATCHER):
            return self._seconds
        with self._lock:
            tables = sum(table.watcher.startswith(LOCAL_WATCHER) for table in self._tables.values())
        return free_poll_seconds(self._seconds, self._seconds / SOONER, tables / POLLS_PER_SECOND)


class IdleQuery:
    """A query that sleeps while it has nothing to read."""

    def __init__(self, tables: TableWatch, source: SourceTable, query: StreamingQuery) -> None:
        self.location, self.device = source.location, source.log.device
        self._tables = tables
        self._query: StreamingQuery | None = query
        self._clock: TriggerClock | None = None
        self._replaced: CommitMark | None = None

    @property
    def sleeps(self) -> bool:
        return self._clock is not None and self._clock.sleeps

    def poll(self, delivered: int | None) -> None:
        """Let the query sleep if it has read everything, up to ``delivered``; wake it if that is None."""
        if delivered is None:
            self.wake()
            return
        if self._query is not None:  # its trigger has a clock from the first trigger on
            self._clock, self._query = self._tables.clocks.install(self._query), None
            if self._clock is not None:
                self._tables.join(self)
        if self._clock is not None and not self.sleeps:
            self._tables.sleep(self, self._clock, delivered)

    def wake(self) -> None:
        if self._clock is not None and self._clock.sleeps:
            self._clock.wake()

    def report_replaced(self, mark: CommitMark) -> None:
        """Have the route check its table, since the file of a commit that the query has read was replaced."""
        self._replaced = mark
        self.wake()

    def take_replaced(self) -> CommitMark | None:
        """Return the commit whose file was replaced, once; None without such a commit."""
        mark, self._replaced = self._replaced, None
        return mark

    def close(self) -> None:
        """Forget the query, which ends."""
        self._query = None
        if self._clock is not None:
            self._tables.leave(self)
