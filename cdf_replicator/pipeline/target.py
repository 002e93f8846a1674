"""Prepare the target of a route, write snapshots and micro-batches to it, and store its watermark."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.delivery.driver import SinkRun
from cdf_replicator.pipeline.batch_writer import BatchWriter
from cdf_replicator.pipeline.rejections import Rejections, most_known
from cdf_replicator.source import schema_evolution
from cdf_replicator.source.schema import TableSchema
from cdf_replicator.spark import jobs
from cdf_replicator.state import watermark
from cdf_replicator.transform import change_frame
from cdf_replicator.transform.enrichment import Dimensions
from connectors import Batch, Watermarked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdf_replicator.delivery.dead_letters import DeadLetters, Known
    from cdf_replicator.pipeline.context import RouteContext
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore
    from connectors import RouteSpec, Sink, Watermark


@dataclass(slots=True)
class RouteTarget:
    """The target of a route during one run or one command."""

    writer: BatchWriter
    state_store: StateStore
    _prepared_schema: StructType | None = field(default=None, init=False)

    @property
    def route(self) -> Route:
        return self.writer.route

    @property
    def sink(self) -> Sink:
        return self.writer.sink

    def spec(self, state: RouteState) -> RouteSpec:
        """Return the route's spec with the watermark that a write must find in the target."""
        spec = self.state_store.route_spec(self.route, state)
        return replace(spec, watermark=watermark.known(state, self.state_store))

    def batch(self, state: RouteState, number: int) -> Batch:
        """Return the identity of a micro-batch; ``may_exist`` is true if an append sink may already hold rows of it."""
        spec = self.spec(state)
        known = spec.watermark if state.query_started else None
        delivered = known.version if known else (state.start_version or 0) - 1
        return Batch(
            route=spec,
            generation=state.generation,
            number=number,
            table_id=state.table_id,
            may_exist=delivered < state.replay_end_version,
        )

    def reconcile(
        self, state: RouteState, source: SourceTable, frame: DataFrame, first: int
    ) -> tuple[RouteState, DataFrame]:
        """Apply the route's schema rules to a frame; raises ``RouteHaltError``.

        Returns the state with the schema that the route delivers, which the caller saves, and the frame without the
        columns that the route leaves out.
        """
        known = None if state.table_schema is None else TableSchema.from_json(state.table_schema)
        misfit = self._misfit(frame.schema) if known and source.metadata.column_mapping else None
        schema, frame = schema_evolution.reconcile(self.route, source, known, frame, first, misfit)
        return replace(state, table_schema=schema.to_json()), frame

    def prepare(self, state: RouteState, table: StructType) -> RouteState:
        """Prepare the target for the row schema, once per schema of a run."""
        row = self._row_schema(table)
        if state.target_prepared and row == self._prepared_schema:
            return state
        for warning in self.sink.prepare(row, self.state_store.route_spec(self.route, state)):
            self.writer.report.warning(warning)
        self._prepared_schema = row
        if not state.target_prepared:
            state = replace(state, target_prepared=True)
            self.state_store.save(state)
        return state

    def prepare_snapshot(self, state: RouteState, source: SourceTable) -> RouteState:
        """Prepare the target for the pinned snapshot and save the columns with which the epoch starts."""
        assert state.pinned_version is not None
        snapshot = source.snapshot(state.pinned_version)
        known = schema_evolution.table_schema_at(source, snapshot, state.pinned_version)
        state = replace(self.prepare(state, snapshot.schema), table_schema=known.to_json())
        self.state_store.save(state)
        return state

    def prepare_loaded(self, state: RouteState) -> RouteState:
        """Prepare the target for the columns with which the epoch started; log cleanup may have removed their version."""
        assert state.table_schema is not None  # ``prepare_snapshot`` saved it before the load
        return self.prepare(state, StructType.fromJson(state.table_schema["columns"]))

    def write_snapshot(self, state: RouteState, source: SourceTable) -> int:
        """Write the pinned snapshot; returns the number of rows for which an upsert sink has a newer entry."""
        version = state.pinned_version
        assert version is not None
        at = source.log.committed_at(version) or time.time()
        snapshot = source.snapshot(version)
        frame = change_frame.snapshot_frame(snapshot, self.route, epoch=state.epoch, version=version, committed_at=at)
        doubled = None
        if self.sink.mode == "upsert" and not change_frame.repeated_keys(snapshot, self.route).isEmpty():
            keys = change_frame.duplicate_keys(snapshot, self.route)
            doubled = self.writer.rejections.check_doubled(keys, frame, version)
        with jobs.tagged(frame.sparkSession, jobs.load_tag(self.route.name)):
            written = self.writer.write(frame, self.batch(state, 0), snapshot_version=version, doubled=doubled)
        return written.stale if self.sink.mode == "upsert" else 0

    def save_watermark(self, spec: RouteSpec, reached: Watermark) -> None:
        """Store the watermark in the target, before Spark commits the micro-batch or the state path saves a phase.

        Does nothing if the sink keeps no watermark.
        """
        if isinstance(self.sink, Watermarked):
            self.writer.policy.retrying(lambda _: None)(self.sink.save_watermark, spec, reached)

    def _row_schema(self, table: StructType) -> StructType:
        """Return the schema of the rows that the sink receives, joined columns included; raises ``RouteHaltError``."""
        return change_frame.row_schema(table, self.route, self.writer.dimensions.columns(table))

    def _misfit(self, table: StructType) -> Exception | None:
        """Return the error of the route's definition with the columns of a table; None if it fits them."""
        try:
            self._row_schema(table)
        except Exception as error:  # noqa: BLE001 - the caller raises it, or ``prepare`` raises it again
            return error
        return None


class TargetFactory:
    """Opens the target of one route for each run and each command. ``sink`` is never opened itself."""

    def __init__(self, context: RouteContext, sink: Sink, dead_letters: DeadLetters) -> None:
        self._context = context
        self._sink = sink
        self.dead_letters = dead_letters
        self._dimensions = Dimensions(context.spark, context.route)
        self.policy = RetryPolicy(budget_seconds=context.settings.delivery.retry_seconds)
        self.has_read_letters = False

    def new_sink(self) -> Sink:
        """Return a new, unopened sink, which the caller closes."""
        return type(self._sink)(self._sink.settings)

    def target(self, sink: Sink) -> RouteTarget:
        """Return the target behind a sink; reads the open dead letters of the route."""
        route, report = self._context.route, self._context.report
        known = self.read_letters(most_known(sink))
        limits = self._context.settings.delivery
        run = SinkRun()
        rejections = Rejections(route, sink, run, self.policy, limits, self.dead_letters, report, known)
        writer = BatchWriter(route, sink, run, self.policy, report, rejections, self._dimensions)
        return RouteTarget(writer, self._context.state_store)

    def read_letters(self, most: int = 0) -> Known:
        """Read the dead letters of the route, with at most ``most`` keys, and report how many are open."""
        known = self.dead_letters.known(self._context.route.name, most)
        self._context.report.dead_letters(known.open)
        self.has_read_letters = True
        return known
