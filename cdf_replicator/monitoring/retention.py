"""Compute the time until Delta may remove changes that a route has not read: retention minus lag.

VACUUM removes change files after ``delta.deletedFileRetentionDuration``. Log cleanup removes commits after
``delta.logRetentionDuration``. Both are lower bounds, unless VACUUM ran with a shorter retention. The table's history
shows such a VACUUM.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.source.table import SourceTable

READ_SECONDS: Final = 600.0
"""Interval of reading the table's properties and history. The lag is checked at each poll."""
FIRST_SECONDS: Final = 30.0
"""Interval of reading a table's properties as long as no read has succeeded."""
COMMITS_LOOKED_AT: Final = 100
WARN_SHARE: Final = 0.5
"""Share of the retention that the lag may use before the service logs a warning."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Delta keeps the changes of a table for ``seconds``; those left are in commits from ``from_version`` on."""

    seconds: float
    from_version: int


@dataclass(slots=True)
class _Table:
    """The retention of one table, None until the first read that succeeds; it was last read, or could not be, at ``read_at``."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    read_at: float | None = None
    retention: Retention | None = None

    def is_due(self, now: float) -> bool:
        seconds = FIRST_SECONDS if self.retention is None else READ_SECONDS
        return self.read_at is None or now - self.read_at >= seconds

    def read(self, source: SourceTable, now: float) -> None:
        # The first read skips the history, which costs a Spark job, so that a start stays fast.
        self.read_at = now
        kept = source.retention_seconds()
        if self.retention is not None:
            kept = min(kept, source.shortest_vacuum_retention(COMMITS_LOOKED_AT))
        self.retention = Retention(kept, source.log.first_since(now - kept))


@dataclass(frozen=True, slots=True)
class RetentionReader:
    """Reads the retention of each source table once for all of its routes, since its history takes a Spark job."""

    _tables: dict[str, _Table] = field(default_factory=dict, init=False)

    def read(self, source: SourceTable, now: float) -> Retention | None:
        """Return the retention of a table, None if it is not known yet.

        Raises the error of Spark or Delta in the route whose call reads the table.
        """
        table = self._tables.setdefault(source.location, _Table())
        with table.lock:
            if table.is_due(now):
                table.read(source, now)
            return table.retention


@dataclass(slots=True)
class RetentionMonitor:
    """The headroom of one route.

    ``trigger_seconds`` is the time that a commit may wait until it is read, even without lag.
    """

    report: RouteReporter
    trigger_seconds: float
    reader: RetentionReader
    now: Callable[[], float] = time.time
    _kept: Retention | None = field(default=None, init=False)
    _reported: tuple[float, int] | None = field(default=None, init=False)
    _low: bool = field(default=False, init=False)

    def update(self, source: SourceTable, newest: int, delivered: int, oldest: float | None) -> None:
        """Compute and report the headroom; warn if it is low.

        Args:
            source: The route's source table.
            newest: Newest commit version.
            delivered: Version up to which all changes are delivered.
            oldest: Time of the oldest undelivered commit in epoch seconds; None if all commits are delivered or its file
                was removed.
        """
        now = self.now()
        try:
            self._kept = self.reader.read(source, now)
        except (PySparkException, Py4JJavaError) as error:  # a failure here must not stop a delivering route
            self.report.warning(f"can't read the retention of the source table: {str(error).splitlines()[0]}")
        if self._kept is None:
            return
        gone = oldest is None and delivered < newest
        age = self._kept.seconds if gone else now - (oldest or now)
        left = max(0.0, self._kept.seconds - age), max(0, delivered + 1 - self._kept.from_version)
        if left != self._reported:
            self._reported = left
            self.report.headroom(*left)
        self._warn(age, self._kept.seconds)

    def _warn(self, age: float, kept: float) -> None:
        """Log a warning when the lag exceeds ``WARN_SHARE`` of the retention; repeats only after it was below."""
        waited = max(age, self.trigger_seconds)
        low = waited > WARN_SHARE * kept
        if low and not self._low:
            what = (
                "the age of the oldest undelivered change is"
                if age >= self.trigger_seconds
                else "CDF_TRIGGER_SECONDS is"
            )
            self.report.warning(
                f"{what} {_hours(waited)}; the source table may remove changes after {_hours(kept)}: "
                "changes that are removed before they are read require a resync. Raise delta.deletedFileRetentionDuration and "
                "delta.logRetentionDuration of the table, or let the route catch up."
            )
        self._low = low


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds:.0f} s"  # noqa: PLR2004 - an hour
