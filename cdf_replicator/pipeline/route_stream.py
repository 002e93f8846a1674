"""Run a route once: prepare its target, bootstrap it if needed, follow the source table until the query stops.

``runtime.route_runner`` starts the next run after a failure.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.monitoring.progress import StreamPosition
from cdf_replicator.pipeline import generation, start_position
from cdf_replicator.pipeline.bootstrap import Bootstrap
from cdf_replicator.pipeline.context import cancelled_for_command
from cdf_replicator.pipeline.maintenance import MaintenanceRunner
from cdf_replicator.source import continuity, schema_evolution
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state import checkpoint, watermark
from cdf_replicator.transform import change_frame

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import DataFrame

    from cdf_replicator.monitoring.lag import LagMonitor, Progress
    from cdf_replicator.pipeline.context import Interrupt, RouteContext, StartGate
    from cdf_replicator.pipeline.streaming_query import StreamingQueryRunner
    from cdf_replicator.pipeline.target import RouteTarget, TargetFactory
    from cdf_replicator.source.commit_log import Size
    from cdf_replicator.state.route_state import RouteState
    from connectors import RetryableError, Sink

SMALL_BYTES: Final = 2**20
SMALL_FILES: Final = 8
"""One task delivers a micro-batch up to these sizes. A shuffle and a second stage would take longer than its rows."""


@dataclass(frozen=True, slots=True)
class RouteStream:
    """The runs of one route, one after the other."""

    context: RouteContext
    targets: TargetFactory
    query: StreamingQueryRunner
    lag: LagMonitor
    interrupt: Interrupt
    starts: StartGate

    def run(self, requested_start_version: int | None, *, retries: bool) -> Generator[Progress, None, None]:
        """Prepare the target, bootstrap it if needed, then follow the source table; yield the progress of each poll.

        Ends after an interrupt or, with ``once``, after every commit is delivered. The caller closes the iterator, which
        stops the query. The caller reports the state ``running``.

        Args:
            requested_start_version: The ``--starting-version`` of this run.
            retries: Whether the former run has failed. A check of the sink then does not prove that it accepts writes.
        """
        source = SourceTable(self.context.spark, self.context.route.source)
        with closing(self.targets.new_sink()) as sink:
            self._check(sink)
            if not retries:
                self.context.report.sink_up()
            with self.starts.place(self.interrupt) as entered:
                if not entered or self.interrupt.requested:
                    return
                state = self._start(source, sink, requested_start_version)
                if self.interrupt.requested:  # a load takes long
                    return
                target = self.targets.target(sink)
                self._set_job_group()
                if state.phase == "bootstrapping":
                    loaded = self._bootstrap(source, target, state)
                    if loaded is None:
                        return
                    state = loaded
            spec = self.context.state_store.route_spec(self.context.route, state)
            maintenance = MaintenanceRunner(self.context.spark, sink, spec, self.context.report)
            try:
                yield from self._follow(state, source, target, maintenance)
                if self.context.once:
                    maintenance.finish(self.interrupt)
            finally:
                maintenance.cancel()

    def report_letters(self) -> None:
        """Report the open dead letters if no run has read them; the next run, or the next call, repeats a failed read.

        The read takes a place among the starts, so that hundreds of routes that can't run do not read at once.
        """
        if self.targets.has_read_letters:
            return
        with self.starts.place(self.interrupt) as entered, suppress(Exception):
            if entered:
                self.targets.read_letters()

    def report_refusal(self) -> None:
        """Report the sink as down if it refuses every request, not only the target of this route; waits for one check."""
        try:
            with closing(self.targets.new_sink()) as sink:
                sink.check()
        except BaseException as error:  # noqa: BLE001 - also a sink's SystemExit
            self._report_down(error)

    def _check(self, sink: Sink) -> None:
        self.targets.policy.retrying(self._report_unreachable)(sink.check)

    def _start(self, source: SourceTable, sink: Sink, requested_start_version: int | None) -> RouteState:
        """Return the saved state from which the run starts; raises ``RouteHaltError``."""
        route, store, report = self.context.route, self.context.state_store, self.context.report
        share = self.context.settings.delivery.max_removed_share
        letters = self.targets.dead_letters
        state = start_position.resolve(
            route, source, sink, store, letters, requested_start_version=requested_start_version, share=share
        )
        if missing := generation.what_is_missing(state):
            report.warning(missing)
        folder = store.checkpoint(route.name, state.generation)
        report.checkpoint_location(state.generation, state.epoch, str(folder))
        return state

    def _bootstrap(self, source: SourceTable, target: RouteTarget, state: RouteState) -> RouteState | None:
        """Load the snapshot; return None if a command has ended the load, which the next run of the route repeats."""
        report, share = self.context.report, self.context.settings.delivery.max_removed_share
        report.state("bootstrapping")
        report.sink_up()  # the first proof of a write is the end of the load
        report.bootstrap(0.0)
        with cancelled_for_command(self.context, self.interrupt) as cancelled, self.lag.load_polled():
            try:
                state = Bootstrap(source, target, share).run(state)
            except Exception:
                if not cancelled.is_set():
                    raise
                report.event("the load was cancelled for a command, and starts again after it")
                return None
        report.bootstrap(1.0)
        return state

    def _report_unreachable(self, error: RetryableError) -> None:
        self.context.report.state("retrying", str(error))
        self._report_down(error)
        self.report_letters()

    def _report_down(self, error: BaseException) -> None:
        self.context.report.sink_down(classify_error(error, route=self.context.route.name))

    def _set_job_group(self) -> None:
        """Limit the cancellation of a bootstrap to the jobs of this route."""
        context, name = self.context.spark.sparkContext, self.context.route.name
        context.setJobGroup(self.context.job_group, name, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", name)

    def _follow(
        self, state: RouteState, source: SourceTable, target: RouteTarget, maintenance: MaintenanceRunner
    ) -> Iterator[Progress]:
        route, store = self.context.route, self.context.state_store
        folder = store.checkpoint(route.name, state.generation)
        committed = checkpoint.last_committed(folder)
        position = StreamPosition(source, state, folder, committed)
        schema_log = str(folder / checkpoint.SCHEMA_LOG) if source.metadata.column_mapping else None
        # Delta reads a tracked schema at the version of the first commit to follow, and fails if that commit is absent.
        if schema_log and committed is None and not (yield from self.query.await_commit(position)):
            return
        newest = source.newest_of(state.table_id)
        continuity.verify_last_read(source, state)
        frame = source.stream(state.start_version, schema_log)
        first = position.delivered_version + 1
        guard = schema_evolution.CommitGuard(route, source, frame, first, newest)
        state, frame = target.reconcile(state, source, frame, first)
        store.save(state)
        state = target.prepare(state, frame.schema)
        spec = target.spec(state)
        reached = spec.watermark if state.query_started else None
        target.save_watermark(spec, reached or watermark.beginning(state))
        if not state.query_started:
            state = replace(state, query_started=True)
            store.save(state)
        followed_since = checkpoint.first_started_at(folder)

        def deliver(rows: DataFrame, number: int) -> None:
            planned = checkpoint.last_offset(folder)
            size = guard.check(planned.started_version) if planned else None
            batch = target.batch(state, number + 1)
            target.writer.write(_in_one_task(rows, size), batch, followed_since=followed_since)
            if planned:
                target.save_watermark(batch.route, watermark.after(state, number, planned.completed_version))

        changes = change_frame.change_frame(frame, route, epoch=state.epoch)
        yield from self.query.follow(replace(position, state=state), changes, deliver, maintenance)


def _in_one_task(rows: DataFrame, size: Size | None) -> DataFrame:
    """Return the rows of a small micro-batch in one partition, which Spark reduces to one change per key without a shuffle.

    Args:
        rows: The rows of the micro-batch.
        size: What the micro-batch reads; None if that is not known.
    """
    return rows.coalesce(1) if size and size.bytes <= SMALL_BYTES and size.files <= SMALL_FILES else rows
