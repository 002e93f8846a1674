"""One run of a route: from start to a clean stop of its query. ``runner`` begins the next one after a failure."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdf_replicator import checkpoint, evolution, feed, pace, start
from cdf_replicator.batch import Delivering, check_duplicates
from cdf_replicator.bootstrap import Bootstrap
from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.enrichment import Dimensions
from cdf_replicator.upkeep import Upkeep
from cdf_replicator.watch import Watch
from connectors import Batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from cdf_replicator.board import Board
    from cdf_replicator.dead_letters import DeadLetters
    from cdf_replicator.metrics import Metrics
    from cdf_replicator.report import Report
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.source import SourceTable
    from cdf_replicator.state import RouteState, StatePath
    from connectors import Sink

POLL_SECONDS: Final = 0.5


class StoppedError(Exception):
    """Raised inside foreachBatch instead of writing: a parked call must never return normally (design rule 7)."""


@dataclass(frozen=True, slots=True)
class Service:
    """What every route shares. ``once``: deliver what is there, then end. ``stop``: set by SIGTERM."""

    spark: SparkSession
    settings: Settings
    state_path: StatePath
    letters: DeadLetters
    metrics: Metrics
    board: Board
    once: bool
    stop: threading.Event


class Stream:
    """``interrupted``: whether to stop after the running micro-batch; ``looked``: called now and then with the watch."""

    def __init__(
        self,
        service: Service,
        route: Route,
        report: Report,
        interrupted: Callable[[], bool],
        looked: Callable[[Watch, RouteState], None],
    ) -> None:
        self._service = service
        self._route = route
        self._report = report
        self._interrupted = interrupted
        self._looked = looked
        self._policy = RetryPolicy(budget_seconds=service.settings.delivery.retry_seconds)
        self._dimensions = Dimensions(service.spark, route)
        self._look_seconds = pace.look_seconds(len(service.settings.resolved))
        self._in_batch = threading.Event()
        self._batches = 0
        self._batch_error: BaseException | None = None
        self._fits: StructType | None = None
        self._upkeep: Upkeep

    def run(self, source: SourceTable, sink: Sink, asked: int | None, wake: threading.Event) -> None:
        """Prepare, bootstrap if need be, follow; returns once interrupted or, with ``once``, when all is delivered."""
        self._policy.retrying(lambda error: self._report.state("retrying", str(error)))(sink.check)
        self._report.sink_up()
        state = start.resolve(self._route, source, sink, self._service.state_path, asked)
        self._report.position(state.generation, state.epoch)
        delivering = self.delivering(sink)
        self._fits = None
        # Cancelled by this group, a bootstrap takes no other route's jobs along.
        context = self._service.spark.sparkContext
        context.setJobGroup(f"cdf-{self._route.name}", self._route.name, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", self._route.name)
        if state.phase == "bootstrapping":
            state = self._bootstrap(state, source, delivering)
        spec = self._route.spec(owner=self._service.state_path.owner, epoch=state.epoch)
        self._upkeep = Upkeep(self._service.spark, sink, spec, self._report)
        try:
            self._follow(state, source, delivering, wake)
            if self._service.once:
                self._upkeep.finish(self._interrupted)
        finally:
            self._upkeep.cancel()

    def delivering(self, sink: Sink) -> Delivering:
        letters = self._service.letters
        limits = self._service.settings.delivery
        count = letters.open_count(self._route.name)
        self._report.dead_letters(count)
        return Delivering(self._route, sink, self._policy, limits, letters, self._report, count, self._dimensions)

    def batch(self, state: RouteState, number: int) -> Batch:
        """Identity of a micro-batch; it says whether an append sink may hold rows of it already."""
        committed = checkpoint.last_committed(self._service.state_path.checkpoint(state.route, state.generation))
        delivered = committed.complete if committed else (state.start_version or 0) - 1
        return Batch(
            route=self._route.spec(owner=self._service.state_path.owner, epoch=state.epoch),
            generation=state.generation,
            number=number,
            table_id=state.table_id,
            replay=delivered < state.replay_until,
        )

    def row_schema(self, table: StructType) -> StructType:
        """Return what the sink gets of rows of the source table, with what is joined; raises ``HaltError``."""
        return feed.row_schema(table, self._route, self._dimensions.columns(table))

    def _prepare(self, state: RouteState, table: StructType, sink: Sink) -> RouteState:
        """Make the target fit for what is about to be written, once for each schema of a run."""
        row = self.row_schema(table)
        if state.prepared and row == self._fits:
            return state
        spec = self._route.spec(owner=self._service.state_path.owner, epoch=state.epoch)
        for warning in sink.prepare(row, spec):
            self._report.warning(warning)
        self._fits = row
        if not state.prepared:
            state = replace(state, prepared=True)
            self._service.state_path.save(state)
        return state

    def _bootstrap(self, state: RouteState, source: SourceTable, delivering: Delivering) -> RouteState:
        self._report.state("bootstrapping")
        return Bootstrap(
            source,
            delivering,
            self._service.state_path,
            self._service.settings.delivery.max_removed_share,
            load=lambda pinned: self._load(pinned, source, delivering),
            prepare=lambda pinned: self._prepare_snapshot(pinned, source, delivering.sink),
        ).run(state)

    def _prepare_snapshot(self, state: RouteState, source: SourceTable, sink: Sink) -> RouteState:
        """Make the target fit for the pinned snapshot, and remember the columns the epoch begins with."""
        assert state.pinned_version is not None
        snapshot = source.snapshot(state.pinned_version)
        known = evolution.known_as(source, snapshot, state.pinned_version)
        state = replace(self._prepare(state, snapshot.schema, sink), table_schema=known.to_json())
        self._service.state_path.save(state)
        return state

    def _load(self, state: RouteState, source: SourceTable, delivering: Delivering) -> int:
        """Write the pinned snapshot; returns how many of its rows an upsert sink did not take, since it held newer ones."""
        version = state.pinned_version
        assert version is not None
        at = source.committed_at(version) or time.time()
        snapshot = source.snapshot(version)
        frame = feed.snapshot_frame(snapshot, self._route, epoch=state.epoch, version=version, committed_at=at)
        if delivering.sink.mode == "upsert":
            check_duplicates(snapshot, self._route, version)
        stale = delivering.write(frame, self.batch(state, 0), snapshot_of=version)
        return stale if delivering.sink.mode == "upsert" else 0

    def _follow(self, state: RouteState, source: SourceTable, delivering: Delivering, wake: threading.Event) -> None:
        folder = self._service.state_path.checkpoint(self._route.name, state.generation)
        committed = checkpoint.last_committed(folder)
        schema_log = str(folder / "schema") if source.detail.column_mapping else None
        if schema_log and committed is None and not self._first_commit(state, source, wake):
            return
        frame = source.stream(state.start_version, schema_log)
        first = committed.complete + 1 if committed else state.start_version or 0
        lookout = evolution.Lookout(self._route, source, frame, first)
        state, frame = evolution.settled(self._route, source, state, frame, first, self.row_schema)
        self._service.state_path.save(state)
        state = self._prepare(state, frame.schema, delivering.sink)
        changes = feed.change_frame(frame, self._route, epoch=state.epoch)
        query = self._started(changes, folder, state, delivering, lookout, free=source.is_local)
        self._report.state("running")
        watch = Watch(query, source, self._report, state, committed, batches=lambda: self._batches)
        try:
            self._watched(query, watch, state, wake)
        finally:
            watch.end()

    def _watched(self, query: StreamingQuery, watch: Watch, state: RouteState, wake: threading.Event) -> None:
        """Look at a query until it ends, and raise what ended it."""
        while query.isActive:
            if self._interrupted():
                self._finish(query)
                break
            watch.look()
            self._looked(watch, state)
            if not self._service.once:
                self._upkeep.look()
            wake.wait(self._look_seconds)
            wake.clear()
        if self._interrupted():
            return  # a query that ended now ended because its next batch was parked
        error = query.exception()
        watch.look(idle=error is None)
        self._looked(watch, state)
        if error is not None:
            raise self._batch_error or error

    def _first_commit(self, state: RouteState, source: SourceTable, wake: threading.Event) -> bool:
        """Wait for the first commit to follow: Delta reads a schema to be tracked at that very version, and fails without.

        False: there is none, and nothing to wait for.
        """
        first = state.start_version or 0
        if source.latest_version() >= first:
            return True
        self._report.state("running")
        watch = Watch(None, source, self._report, state, None, batches=lambda: 0)
        while source.latest_version() < first:
            watch.look_at_source()
            self._looked(watch, state)
            if self._interrupted() or self._service.once:
                return False
            wake.wait(POLL_SECONDS)
            wake.clear()
        return True

    def _started(
        self,
        changes: DataFrame,
        folder: Path,
        state: RouteState,
        delivering: Delivering,
        lookout: evolution.Lookout,
        *,
        free: bool,
    ) -> StreamingQuery:
        no_ops_above = state.no_ops_above if self._route.skip_unchanged else None

        def on_batch(frame: DataFrame, batch_id: int) -> None:
            if self._interrupted():
                raise StoppedError
            self._in_batch.set()
            self._batches += 1
            try:
                if planned := checkpoint.last_planned(folder):
                    lookout.check(planned.touched)
                delivering.write(frame, self.batch(state, batch_id + 1), no_ops_above=no_ops_above)
            except BaseException as error:
                self._batch_error = error  # Spark would leave only its text
                raise
            finally:
                self._in_batch.clear()

        self._batch_error = None  # that of an earlier run says nothing of this one
        writer = changes.writeStream.queryName(self._route.name).option("checkpointLocation", str(folder))
        settings = self._service.settings
        seconds = pace.trigger_seconds(settings.trigger_seconds, len(settings.resolved), free=free)
        trigger = (
            {"availableNow": True}
            if self._service.once
            else {"processingTime": f"{round(seconds * 1000)} milliseconds"}
        )
        writer = writer.trigger(**trigger)
        return writer.foreachBatch(on_batch).start()

    def _finish(self, query: StreamingQuery) -> None:
        """Let the running micro-batch end and be committed; the next one raises before it writes."""
        deadline = time.monotonic() + self._service.settings.shutdown_seconds
        while query.isActive and time.monotonic() < deadline:
            if not self._in_batch.is_set() and not query.status["isTriggerActive"]:
                break
            time.sleep(POLL_SECONDS / 10)
        query.stop()
