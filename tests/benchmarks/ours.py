"""Our arm: what the service does with one bootstrap or one micro-batch, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyarrow import parquet

from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.pipeline.context import RouteContext
from cdf_replicator.pipeline.target import TargetFactory
from cdf_replicator.settings import load
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state import watermark
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from cdf_replicator.transform import change_frame
from connectors import Watermark, change
from tests.benchmarks.works import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from cdf_replicator.monitoring.totals import BatchStatus
    from cdf_replicator.pipeline.target import RouteTarget
    from connectors import Sink
    from tests.benchmarks.works import Work

TABLE, ROUTE = "rows", "rows_sink"


class OurRoute:
    """A route from a work's table to a sink, configured by ``environ`` (``CDF_SINKS__SINK__...``).

    ``deliver`` is all that the service does of a bootstrap after it has pinned a version, or of a micro-batch inside
    foreachBatch.
    """

    def __init__(self, spark: SparkSession, work: Work, environ: Mapping[str, str]) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._folder = TemporaryDirectory(dir=FOLDER, prefix="state-")  # gone with the route
        folder = Path(self._folder.name)
        given = {
            "CDF_STATE_PATH": str(folder),
            f"CDF_TABLES__{TABLE.upper()}__PATH": str(work.table),
            f"CDF_TABLES__{TABLE.upper()}__KEYS": ",".join(work.keys),
            f"CDF_TABLES__{TABLE.upper()}__SINKS": "sink",
        }
        settings = load({**given, **environ})
        self._spark, self._work, self._batches = spark, work, 0
        self.route, self.sink = settings.routes[ROUTE], settings.sink("sink")
        self.state_store, self._board = StateStore.open(LocalPath(folder)), StatusStore()
        self._metrics = Metrics(self._board)
        self._sent = 0
        self._board.add_sink("sink", settings.sinks["sink"].type, "")
        letters = DeadLetters(spark, self.state_store.dead_letters)
        report = RouteReporter(self.route, self._metrics, type(self.sink))
        context = RouteContext(spark, self.route, self.state_store, report, settings)
        self._targets = TargetFactory(context, self.sink, letters)
        self._source = SourceTable(spark, self.route.source)
        self.spec = self.route.spec(owner=self.state_store.owner, epoch=1)
        self._state = RouteState(
            ROUTE,
            self.route.identity(self.sink.target(self.spec)),
            self._source.metadata.table_id,
            pinned_version=self._source.log.latest_version() if work.versions is None else None,
            start_version=work.versions and work.versions[0],
        )

    def prepare(self) -> None:
        """Prepare the target by a new sink, as the service does at its start. The caller has emptied it."""
        self.sink.close()
        self.sink = self._targets.new_sink()
        self.sink.read_claim(self.spec)
        self._targets.target(self.sink).prepare(self._state, self._source.schema())
        if self._work.versions is not None:
            # of no batch: ``deliver_before`` writes the first one
            self.sink.save_watermark(self.spec, Watermark(-1, 0, self._work.versions[0] - 1))

    def key_text(self) -> Column:
        """Return the key of the work's rows as the service's sinks receive it."""
        return change_frame.key_column(self._work.frame(self._spark).schema, self.route)

    def rendered(self) -> pa.Table:
        """Return all rendered rows, for arms without rendering. They pass through a file: the JVM is small."""
        if self._work.versions is None:
            version = self._state.pinned_version
            changes = change_frame.snapshot_frame(
                self._work.frame(self._spark), self.route, epoch=1, version=version, committed_at=0
            )
        else:
            changes = change_frame.change_frame(self._work.frame(self._spark), self.route, epoch=1)
        changes = change_frame.latest_per_key(changes)
        row = changes.schema[change.ROW].dataType
        kept = (change.KEY, change.GUARD, change.CHANGE_TYPE)
        with TemporaryDirectory(dir=FOLDER) as folder:
            rows = changes.select(*kept, *self.sink.render(row, self.spec))
            rows.write.mode("overwrite").parquet(folder)
            return parquet.read_table(folder)

    def deliver(self) -> int:
        """Returns how many rows or changes were read."""
        target = self._targets.target(self.sink)
        if self._work.versions is None:
            target.write_snapshot(self._state, self._source)
            self.save_loaded()
        else:
            self._work.read(
                self._spark,
                self._next_batch(target),
                lambda frame: change_frame.change_frame(frame, self.route, epoch=1),
            )
        assert not self.last.rejected, self.last.rejected
        return self._work.rows

    def save_loaded(self) -> None:
        """Save the watermark of a load, as the service does after it."""
        self._targets.target(self.sink).save_watermark(self.spec, watermark.bootstrapped(self._state))

    def new_sink(self) -> Sink:
        return self._targets.new_sink()

    def save_delivered(self) -> None:
        """Save the state of a route that has delivered its snapshot, from which ``verify`` begins."""
        assert self._state.pinned_version is not None
        state = replace(self._state, phase="streaming", start_version=self._state.pinned_version + 1)
        self.state_store.save(state)

    def _next_batch(self, target: RouteTarget) -> Callable[[DataFrame], int]:
        def deliver(changes: DataFrame) -> int:
            self._batches += 1
            return target.writer.write(changes, target.batch(self._state, self._batches)).stale

        return deliver

    def deliver_before(self) -> None:
        """The rows that a feed's changes meet."""
        assert self._work.versions is not None
        state = replace(self._state, pinned_version=self._work.versions[0] - 1)
        self._targets.target(self.sink).write_snapshot(state, self._source)

    @property
    def last(self) -> BatchStatus:
        return self._board.snapshot().routes[0].batches[0]

    def sent(self) -> int:
        """Bytes sent since the last call."""
        before = self._sent
        self._sent = int(self._metrics.registry.get_sample_value("cdf_sink_bytes_total", {"sink": "sink"}) or 0)
        return self._sent - before
