"""Looks at a running query: how far it is, how far the source is, how fast it goes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from cdf_replicator.state.checkpoint import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.monitoring.reporter import Report
    from cdf_replicator.monitoring.retention import Headroom
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState

WHOLE_SECONDS: Final = 10
"""Spark tells an idle query's rates no more often."""


class Watch:
    """Of one run of a route's query; ``query`` is None as long as there is none, and only the source is looked at.

    ``batches``: how many micro-batches the query has begun.
    ``delivered_version``: every commit up to it is in the sink.
    """

    def __init__(
        self,
        query: StreamingQuery | None,
        source: SourceTable,
        report: Report,
        state: RouteState,
        committed: Offset | None,
        *,
        batches: Callable[[], int],
        headroom: Headroom,
    ) -> None:
        self._query = query
        self._source = source
        self._report = report
        self._offset = committed
        self._seen: tuple[int, str] | None = None
        self._batches = batches
        self._headroom = headroom
        self._settled = -1  # after how many batches everything was seen to be delivered
        self._next_whole = 0.0
        self._rests = False  # Spark has told that it does nothing; of that there is no more to tell
        self._pinned = state.pinned_version if state.phase == "bootstrapping" else None
        self._told: tuple[int, int] | None = None
        self._oldest: float | None = None
        self._targets: dict[str, int] = {}
        self.source_version: int | None = None
        self.delivered_version = committed.complete if committed else (state.start_version or 0) - 1

    @property
    def batches_begun(self) -> int:
        """Micro-batches of the route since the service started."""
        return self._batches()

    @property
    def healthy(self) -> bool:
        """A trigger of this run came to its end: earlier failures are over."""
        return self._seen is not None

    def look(self, *, idle: bool | None = None) -> None:
        """Look once, tell what changed; ``idle``: whether the query has read all there was, None to ask it."""
        assert self._query is not None
        if idle is None and self._is_quiet():
            return
        began = self._batches()
        progress = self._query.lastProgress
        status = self._query.status  # after the progress: idle now means that no more of its version follows
        # A trigger that found nothing has the number of the batch to come.
        if progress is not None and (progress.batchId, progress.timestamp) != self._seen:
            self._seen = (progress.batchId, progress.timestamp)
            end = progress.sources[0].endOffset
            if end != "null":  # a trigger that found nothing
                self._offset = Offset.parse(end)
            rates = progress.inputRowsPerSecond or 0.0, progress.processedRowsPerSecond or 0.0
            self._rests = not any(rates)
            self._report.rates(*rates)
        # The last version of an offset may be read in part only; it is whole once a trigger found nothing more. A query that
        # has yet to begin looks idle too: only one that has told a progress has looked for more.
        if idle is None:
            idle = self.healthy and not (status["isDataAvailable"] or status["isTriggerActive"])
        if self._offset is not None:
            version = self._offset.touched if idle else self._offset.complete
            self.delivered_version = max(self.delivered_version, version)  # a new trigger takes nothing back
        self.look_at_source()
        self._settled = began if idle and self.delivered_version == self.source_version else -1
        self._next_whole = math.inf if self._rests else time.monotonic() + WHOLE_SECONDS

    def _is_quiet(self) -> bool:
        """Whether only the source has to be looked at, which a service of many idle routes does all day: it is cheap."""
        if self._batches() != self._settled or time.monotonic() > self._next_whole:
            return False
        self.look_at_source()
        return self.source_version == self.delivered_version

    def end(self) -> None:
        """Let the query go. Its sink calls back into Python, so that held from here neither side would ever free it."""
        self._query = None

    def look_at_source(self) -> None:
        """Tell the lag, also while no query runs: it must not seem to stand still."""
        self.source_version = self._source.log.latest_version()
        self._tell()

    def target_of(self, request_id: str) -> int:
        """The version at which a request is fulfilled: the newest when it was first looked at."""
        return self._targets.setdefault(request_id, self.source_version or 0)

    def _tell(self) -> None:
        assert self.source_version is not None
        due = self.delivered_version + 1 if self._pinned is None else self._pinned  # of a snapshot, what it is of
        position = (self.source_version, self.delivered_version)
        moved = position != self._told
        if moved:
            self._oldest = self._source.log.committed_at(due) if due <= self.source_version else None
            self._told = position
        if moved or self._oldest is not None:
            self._report.versions(*position, self._oldest)
        self._headroom.look(self._source, self.source_version, due - 1, self._oldest)
