"""Run a route once: prepare its target, bootstrap it if needed, follow the source table until the query stops.

``runtime.route_runner`` starts the next run after a failure.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.pipeline import generation, start_position
from cdf_replicator.pipeline.batch_writer import BatchWriter
from cdf_replicator.pipeline.bootstrap import Bootstrap
from cdf_replicator.pipeline.maintenance import MaintenanceRunner
from cdf_replicator.pipeline.rejections import Rejections, most_known
from cdf_replicator.source import schema_evolution
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state import checkpoint, watermark
from cdf_replicator.transform import change_frame
from cdf_replicator.transform.enrichment import Dimensions
from connectors import Batch, Watermarked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from cdf_replicator.monitoring.progress import ProgressTracker
    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.pipeline.context import ServiceContext
    from cdf_replicator.pipeline.streaming_query import StreamingQueryRunner
    from cdf_replicator.route import Route
    from cdf_replicator.state.route_state import RouteState
    from connectors import RetryableError, RouteSpec, Sink, Watermark

LOOK_ON_SECONDS: Final = 5.0
"""Interval at which a bootstrap reports the lag."""


class RouteStream:
    def __init__(
        self, service: ServiceContext, route: Route, report: RouteReporter, query: StreamingQueryRunner
    ) -> None:
        self._service = service
        self._route = route
        self._report = report
        self._query = query
        self._policy = RetryPolicy(budget_seconds=service.settings.delivery.retry_seconds)
        self._dimensions = Dimensions(service.spark, route)
        self._prepared_schema: StructType | None = None

    def run(self, source: SourceTable, sink: Sink, requested_start_version: int | None, wake: threading.Event) -> None:
        """Prepare the target, bootstrap it if needed, then follow the source table.

        Returns after an interruption or, with ``once``, after every commit is delivered. ``requested_start_version`` is the
        ``--starting-version`` of this run. ``wake`` ends the wait between two polls.
        """
        self._policy.retrying(self._on_sink_unreachable)(sink.check)
        self._report.sink_up()
        share = self._service.settings.delivery.max_removed_share
        state = start_position.resolve(
            self._route,
            source,
            sink,
            self._service.state_path,
            requested_start_version=requested_start_version,
            share=share,
        )
        if missing := generation.what_is_missing(state):
            self._report.warning(missing)
        folder = self._service.state_path.checkpoint(self._route.name, state.generation)
        self._report.checkpoint_location(state.generation, state.epoch, str(folder))
        delivering = self.batch_writer(sink)
        self._prepared_schema = None
        # The job group limits the cancellation of a bootstrap to the jobs of this route.
        context = self._service.spark.sparkContext
        context.setJobGroup(f"cdf-{self._route.name}", self._route.name, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", self._route.name)
        if state.phase == "bootstrapping":
            state = self._bootstrap(state, source, delivering)
        spec = self._service.state_path.route_spec(self._route, state)
        upkeep = MaintenanceRunner(self._service.spark, sink, spec, self._report)
        try:
            self._follow(state, source, delivering, upkeep, wake)
            if self._service.once:
                upkeep.finish(self._query.should_stop)
        finally:
            upkeep.cancel()

    def lag_tracker(self, source: SourceTable) -> ProgressTracker | None:
        """Return a watch of the source table for a route without a query; None before the route's first start."""
        state_path = self._service.state_path
        state = state_path.load(self._route.name)
        if state is None:
            return None
        committed = checkpoint.last_committed(state_path.checkpoint(self._route.name, state.generation))
        return self._query.lag_tracker(source, state, committed)

    def batch_writer(self, sink: Sink) -> BatchWriter:
        letters = self._service.letters
        limits = self._service.settings.delivery
        known = letters.known(self._route.name, most_known(sink))
        self._report.dead_letters(known.open)
        rejections = Rejections(self._route, sink, self._policy, limits, letters, self._report, known)
        return BatchWriter(self._route, sink, self._policy, self._report, rejections, self._dimensions)

    def batch_identity(self, state: RouteState, number: int) -> Batch:
        """Return the identity of a micro-batch; ``replay`` is true if an append sink may already hold rows of it."""
        spec = self._spec(state)
        delivered = spec.watermark.version if state.streamed and spec.watermark else (state.start_version or 0) - 1
        return Batch(
            route=spec,
            generation=state.generation,
            number=number,
            table_id=state.table_id,
            may_exist=delivered < state.replay_until,
        )

    def _spec(self, state: RouteState) -> RouteSpec:
        """Return the route's spec with the watermark that a write must find in the target."""
        state_path = self._service.state_path
        return replace(state_path.route_spec(self._route, state), watermark=watermark.known(state, state_path))

    def row_schema(self, table: StructType) -> StructType:
        """Return the schema of the rows that the sink receives, joined columns included; raises ``RouteHaltError``."""
        return change_frame.row_schema(table, self._route, self._dimensions.columns(table))

    def prepare(self, state: RouteState, table: StructType, sink: Sink) -> RouteState:
        """Prepare the target for the row schema, once per schema of a run."""
        row = self.row_schema(table)
        if state.prepared and row == self._prepared_schema:
            return state
        spec = self._service.state_path.route_spec(self._route, state)
        for warning in sink.prepare(row, spec):
            self._report.warning(warning)
        self._prepared_schema = row
        if not state.prepared:
            state = replace(state, prepared=True)
            self._service.state_path.save(state)
        return state

    def _on_sink_unreachable(self, error: RetryableError) -> None:
        self._report.state("retrying", str(error))
        self._report.sink_down(classify_error(error, route=self._route.name))

    def _bootstrap(self, state: RouteState, source: SourceTable, delivering: BatchWriter) -> RouteState:
        self._report.state("bootstrapping")
        bootstrap = Bootstrap(
            source,
            delivering,
            self._service.state_path,
            self._service.settings.delivery.max_removed_share,
            load=lambda pinned: self._load(pinned, source, delivering),
            prepare=lambda pinned: self._prepare_snapshot(pinned, source, delivering.sink),
            mark=lambda pinned: self._write_watermark(
                delivering.sink, self._spec(pinned), watermark.bootstrapped(pinned)
            ),
        )
        ended = threading.Event()
        onlooker = threading.Thread(
            target=self._report_lag, args=(ended,), name=f"look-on-{self._route.name}", daemon=True
        )
        onlooker.start()
        try:
            return bootstrap.run(state)
        finally:
            ended.set()
            onlooker.join()  # its last report must precede the reports of the query's watch

    def _report_lag(self, ended: threading.Event) -> None:
        """Report the lag while the route's own thread loads a snapshot."""
        source = None  # not shared with the route's thread: an object of a commit log belongs to a single thread
        while not ended.wait(LOOK_ON_SECONDS):
            with suppress(Exception):  # the bootstrap reports a fault of the table or of the state path
                source = source or SourceTable(self._service.spark, self._route.source)
                watch = self.lag_tracker(source)  # reads the state again: the bootstrap may pin a newer snapshot
                if watch is not None:
                    watch.poll_source()

    def _prepare_snapshot(self, state: RouteState, source: SourceTable, sink: Sink) -> RouteState:
        """Prepare the target for the pinned snapshot and save the columns with which the epoch starts."""
        assert state.pinned_version is not None
        snapshot = source.snapshot(state.pinned_version)
        known = schema_evolution.table_schema_at(source, snapshot, state.pinned_version)
        state = replace(self.prepare(state, snapshot.schema, sink), table_schema=known.to_json())
        self._service.state_path.save(state)
        return state

    def _load(self, state: RouteState, source: SourceTable, delivering: BatchWriter) -> int:
        """Write the pinned snapshot; returns the number of rows for which an upsert sink held a newer entry."""
        version = state.pinned_version
        assert version is not None
        at = source.log.committed_at(version) or time.time()
        snapshot = source.snapshot(version)
        frame = change_frame.snapshot_frame(snapshot, self._route, epoch=state.epoch, version=version, committed_at=at)
        if delivering.sink.mode == "append":
            delivering.write(frame, self.batch_identity(state, 0), snapshot_version=version)
            return 0
        keys = change_frame.duplicate_keys(snapshot, self._route)
        doubled = delivering.rejections.check_doubled(keys, frame, version)
        return delivering.write(frame, self.batch_identity(state, 0), snapshot_version=version, doubled=doubled).stale

    def _follow(
        self,
        state: RouteState,
        source: SourceTable,
        delivering: BatchWriter,
        upkeep: MaintenanceRunner,
        wake: threading.Event,
    ) -> None:
        folder = self._service.state_path.checkpoint(self._route.name, state.generation)
        committed = checkpoint.last_committed(folder)
        schema_log = str(folder / "schema") if source.metadata.column_mapping else None
        # Delta reads a tracked schema at the version of the first commit to follow, and fails if that commit is absent.
        if schema_log and committed is None and not self._query.await_commit(source, state, wake):
            return
        planned = source.newest_of(state.table_id)
        frame = source.stream(state.start_version, schema_log)
        first = committed.completed_version + 1 if committed else state.start_version or 0
        lookout = schema_evolution.CommitGuard(self._route, source, frame, first, planned)
        state, frame = schema_evolution.reconcile(self._route, source, state, frame, first, self.row_schema)
        self._service.state_path.save(state)
        state = self.prepare(state, frame.schema, delivering.sink)
        spec = self._spec(state)
        reached = spec.watermark if state.streamed else None
        self._write_watermark(delivering.sink, spec, reached or watermark.beginning(state))
        if not state.streamed:
            state = replace(state, streamed=True)
            self._service.state_path.save(state)

        def deliver(rows: DataFrame, number: int) -> None:
            planned = checkpoint.last_offset(folder)
            if planned:
                lookout.check(planned.started_version)
            batch = self.batch_identity(state, number + 1)
            delivering.write(rows, batch)
            if planned:
                self._write_watermark(
                    delivering.sink, batch.route, watermark.after(state, number, planned.completed_version)
                )

        changes = change_frame.change_frame(frame, self._route, epoch=state.epoch)
        self._query.follow(changes, deliver, source, state, committed, upkeep, wake)

    def _write_watermark(self, sink: Sink, spec: RouteSpec, reached: Watermark) -> None:
        """Record the watermark in the target, before Spark commits the micro-batch or the state path saves a phase."""
        if isinstance(sink, Watermarked):
            self._policy.retrying(lambda _: None)(sink.save_watermark, spec, reached)
