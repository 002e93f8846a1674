"""Poll a running query and its source table for delivered version, source version and rates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdf_replicator.state.checkpoint import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.monitoring.retention import RetentionMonitor
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState

WHOLE_SECONDS: Final = 10
"""Spark reports progress of an idle query only this often."""


@dataclass(slots=True)
class BatchCount:
    """The number of micro-batches that a route has started since the service started."""

    started: int = 0


class ProgressTracker:
    """Polls one run of a route's query. If ``query`` is None, it polls only the source table.

    The route's query increments ``batches``. All commits up to ``delivered_version`` are in the sink.
    """

    def __init__(
        self,
        query: StreamingQuery | None,
        source: SourceTable,
        report: RouteReporter,
        state: RouteState,
        committed: Offset | None,
        *,
        batches: BatchCount,
        headroom: RetentionMonitor,
    ) -> None:
        self._query = query
        self._source = source
        self._report = report
        self._offset = committed
        self._seen: tuple[int, str] | None = None
        self._batches = batches
        self._headroom = headroom
        self._settled = -1  # number of started batches when all commits were delivered
        self._next_whole = 0.0
        self._rests = False  # the last reported rates are 0, so no further report is due
        self._pinned = state.pinned_version if state.phase == "bootstrapping" else None
        self._told: tuple[int, int] | None = None
        self._oldest: float | None = None
        self.source_version: int | None = None
        self.delivered_version = committed.completed_version if committed else (state.start_version or 0) - 1

    @property
    def batches_begun(self) -> int:
        return self._batches.started

    @property
    def has_committed(self) -> bool:
        """Return whether a trigger of this run has ended, so that earlier failures no longer count."""
        return self._seen is not None

    def poll(self, *, idle: bool | None = None) -> None:
        """Poll once and report changes.

        Args:
            idle: True if the query has read all available data; None to read that from the query's status.
        """
        assert self._query is not None
        if idle is None and self._is_quiet():
            return
        began = self._batches.started
        progress = self._query.lastProgress
        status = self._query.status  # read after the progress: if idle now, the version is complete
        # The progress of a trigger without data has the id of the next batch, so the timestamp is compared too.
        if progress is not None and (progress.batchId, progress.timestamp) != self._seen:
            self._seen = (progress.batchId, progress.timestamp)
            end = progress.sources[0].endOffset
            if end != "null":  # "null": a trigger without data
                self._offset = Offset.parse(end)
            rates = progress.inputRowsPerSecond or 0.0, progress.processedRowsPerSecond or 0.0
            self._rests = not any(rates)
            self._report.rates(*rates)
        # The last version of an offset may be partly read. It is complete after a trigger that found no more data.
        # The status of a query before its first trigger is idle too, so only a query with progress counts as idle.
        if idle is None:
            idle = self.has_committed and not (status["isDataAvailable"] or status["isTriggerActive"])
        if self._offset is not None:
            version = self._offset.started_version if idle else self._offset.completed_version
            self.delivered_version = max(self.delivered_version, version)  # a new trigger does not lower it
        self.poll_source()
        self._settled = began if idle and self.delivered_version == self.source_version else -1
        self._next_whole = math.inf if self._rests else time.monotonic() + WHOLE_SECONDS

    def _is_quiet(self) -> bool:
        """Poll only the source and return True if nothing else is due. This keeps idle routes cheap."""
        if self._batches.started != self._settled or time.monotonic() > self._next_whole:
            return False
        self.poll_source()
        return self.source_version == self.delivered_version

    def release(self) -> None:
        """Release the query. Its sink calls back into Python, so a reference kept here would leak both sides."""
        self._query = None

    def poll_source(self) -> None:
        """Read the newest source version and report the lag, also while no query runs, so that the lag grows."""
        self.source_version = self._source.log.latest_version()
        self._tell()

    def _tell(self) -> None:
        assert self.source_version is not None
        due = (
            self.delivered_version + 1 if self._pinned is None else self._pinned
        )  # of a bootstrap, the snapshot's version
        position = (self.source_version, self.delivered_version)
        moved = position != self._told
        if moved:
            self._oldest = self._source.log.committed_at(due) if due <= self.source_version else None
            self._told = position
        if moved or self._oldest is not None:
            self._report.versions(*position, self._oldest)
        self._headroom.update(self._source, self.source_version, due - 1, self._oldest)
