"""Poll a running query and its source table for delivered version, source version and rates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdf_replicator.state.checkpoint import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.monitoring.retention import RetentionMonitor
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.storage_path import StoragePath

RATES_SECONDS: Final = 10
"""How long the rates of the last micro-batch are reported. Spark reports no progress for a query that sleeps."""


@dataclass(slots=True)
class BatchCount:
    """The number of micro-batches that a route has started since the service started."""

    started: int = 0


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where a route continues in its source table; ``committed`` is None before the generation's first commit."""

    source: SourceTable
    state: RouteState
    checkpoint: StoragePath
    committed: Offset | None

    @property
    def first_version(self) -> int:
        """Return the first commit version of the generation."""
        return self.state.start_version or 0

    @property
    def delivered_version(self) -> int:
        """Return the commit version up to which the generation has certainly delivered everything; -1 if there is none."""
        return self.committed.completed_version if self.committed else self.first_version - 1


@dataclass(slots=True)
class ProgressTracker:
    """Polls one run of a route's query. If ``query`` is None, it polls only the source table.

    The route's query increments ``batches``. All commits up to ``delivered_version`` are in the sink.
    """

    query: StreamingQuery | None
    position: StreamPosition
    report: RouteReporter
    batches: BatchCount
    headroom: RetentionMonitor
    source_version: int | None = field(default=None, init=False)
    delivered_version: int = field(init=False)
    offset: Offset | None = field(init=False)
    _seen: tuple[int, str] | None = field(default=None, init=False)
    _settled: int = field(default=-1, init=False)  # number of started batches when all commits were delivered
    _rates_until: float = field(default=math.inf, init=False)
    _planned: int = field(default=-1, init=False)  # last micro-batch whose planning is reported
    _reported: tuple[int, int] | None = field(default=None, init=False)
    _due_at: float | None = field(default=None, init=False)  # time of the file of the next commit to deliver
    _oldest: float | None = field(default=None, init=False)  # reported time of the oldest undelivered commit

    def __post_init__(self) -> None:
        self.offset, self.delivered_version = self.position.committed, self.position.delivered_version

    @property
    def has_committed(self) -> bool:
        """Return whether a trigger of this run has ended, so that earlier failures no longer count."""
        return self._seen is not None

    @property
    def has_read_all(self) -> bool:
        """Return whether the query has delivered every commit that the last poll saw, and has found no more data since."""
        return self.batches.started == self._settled and self.source_version == self.delivered_version

    def poll(self, *, idle: bool | None = None) -> None:
        """Poll once and report changes.

        Args:
            idle: True if the query has read all available data; None to read that from the query's status.
        """
        assert self.query is not None
        if idle is None and self._is_quiet():
            return
        began = self.batches.started
        progress = self.query.lastProgress
        status = self.query.status  # read after the progress: if idle now, the version is complete
        # The progress of a trigger without data has the id of the next batch, so the timestamp is compared too.
        if progress is not None and (progress.batchId, progress.timestamp) != self._seen:
            self._seen = (progress.batchId, progress.timestamp)
            end = progress.sources[0].endOffset
            if end != "null":  # "null": a trigger without data
                self.offset = Offset.parse(end)
            rates = progress.inputRowsPerSecond or 0.0, progress.processedRowsPerSecond or 0.0
            self._rates_until = time.monotonic() + RATES_SECONDS if any(rates) else math.inf
            self.report.rates(*rates)
            self._report_planning(progress)
        # The last version of an offset may be partly read. It is complete after a trigger that found no more data.
        # The status of a query before its first trigger is idle too, so only a query with progress counts as idle.
        if idle is None:
            idle = self.has_committed and not (status["isDataAvailable"] or status["isTriggerActive"])
        if self.offset is not None:
            version = self.offset.started_version if idle else self.offset.completed_version
            self.delivered_version = max(self.delivered_version, version)  # a new trigger does not lower it
        self.poll_source()
        self._settled = began if idle and self.delivered_version == self.source_version else -1

    def _report_planning(self, progress: StreamingQueryProgress) -> None:
        """Report the time in planning of each micro-batch since the last poll; Spark keeps a hundred of them."""
        assert self.query is not None
        recent = self.query.recentProgress if progress.batchId > self._planned + 1 else [progress]
        for each in recent:
            if each.batchId > self._planned and "addBatch" in each.durationMs:  # else a trigger without data
                self._planned = each.batchId
                self.report.planning(each.durationMs.get("queryPlanning", 0) / 1000)

    def _is_quiet(self) -> bool:
        """Poll only the source and return True if nothing else is due. This keeps idle routes cheap."""
        if self.batches.started != self._settled:
            return False
        if time.monotonic() > self._rates_until:
            self._rates_until = math.inf
            self.report.rates(0.0, 0.0)
        self.poll_source()
        return self.source_version == self.delivered_version

    def release(self) -> None:
        """Release the query. Its sink calls back into Python, so a reference kept here would leak both sides."""
        self.query = None

    def poll_source(self) -> None:
        """Read the newest source version and report the lag, also while no query runs, so that the lag grows."""
        self.source_version = self.position.source.log.latest_version()
        self._report_lag()

    def _report_lag(self) -> None:
        assert self.source_version is not None
        state = self.position.state
        pinned = state.pinned_version if state.phase == "bootstrapping" else None
        due = 1 + (self.delivered_version if pinned is None else pinned)  # VACUUM keeps the files of the newest version
        position = (self.source_version, self.delivered_version)
        moved = position != self._reported
        if moved:
            self._due_at = self.position.source.log.committed_at(due) if due <= self.source_version else None
            self._oldest = self._oldest_undelivered() if due <= self.source_version else None
            self._reported = position
        if moved or self._oldest is not None:
            self.report.versions(*position, self._oldest)
        self.headroom.update(self.position.source, self.source_version, due - 1, self._due_at)

    def _oldest_undelivered(self) -> float | None:
        """Return the time of the oldest undelivered commit.

        After the removal of that commit, return its last known time, or that of the oldest commit that can be read. The
        lag must not be 0 when history is lost.
        """
        if self._due_at is not None or self._oldest is not None:
            return self._oldest if self._due_at is None else self._due_at
        log = self.position.source.log
        return log.committed_at(log.available()[0])
