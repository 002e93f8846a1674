"""One thread per route: prepare, bootstrap, stream, and start again after a failure until somebody stops it.

A route is a query of its own, so a slow or dead sink never delays another (design rule 1).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdf_replicator import checkpoint, feed, start
from cdf_replicator.batch import Delivering, check_duplicates
from cdf_replicator.conditions import HaltError, Verdict, judge
from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.report import Report
from cdf_replicator.requests import Progress, Request, answer
from cdf_replicator.source import SourceTable
from cdf_replicator.watch import Watch
from connectors import Batch, guard_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdf_replicator.dead_letters import DeadLetters
    from cdf_replicator.metrics import Metrics
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state import RouteState, StatePath
    from cdf_replicator.status import Board
    from connectors import Sink

POLL_SECONDS: Final = 0.5
FAST_RESTARTS: Final = 5
"""Restarts within a minute that are free of waiting (a tracked schema change needs a few)."""
TRIES_BEFORE_HALT: Final = 5
PINNED_GONE: Final = ("FILE_NOT_EXIST", "DELTA_UNSUPPORTED_TIME_TRAVEL", "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE")


class StoppedError(Exception):
    """Raised inside foreachBatch instead of writing: a parked call must never return normally (design rule 7)."""


@dataclass(frozen=True, slots=True)
class Service:
    """What every runner shares. ``once``: deliver what is there, then end. ``stop``: set by SIGTERM."""

    spark: SparkSession
    settings: Settings
    state_path: StatePath
    letters: DeadLetters
    metrics: Metrics
    board: Board
    once: bool
    stop: threading.Event


class Runner:
    """``asked``: the starting version this run was given for the route. ``verdict``: why it ended badly, if it did."""

    def __init__(self, service: Service, route: Route, asked: int | None) -> None:
        self.route = route
        self._thread = threading.Thread(target=self._run, name=f"route-{route.name}", daemon=True)
        self.verdict: Verdict | None = None
        self._service = service
        self._asked = asked
        self._report = Report(route, service.metrics, service.board)
        self._policy = RetryPolicy(budget_seconds=service.settings.delivery.retry_seconds)
        self._requests: deque[Request] = deque()
        self._serving: Request | None = None
        self._wake = threading.Event()
        self._in_batch = threading.Event()
        self._batch_error: BaseException | None = None
        self._failures = 0
        self._restarts: deque[float] = deque(maxlen=FAST_RESTARTS)

    # What other threads may call

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def submit(self, request: Request) -> None:
        """Have a replay or resync carried out by this route's thread."""
        self._requests.append(request)
        self._wake.set()

    def wake(self) -> None:
        """Look at the stop flag now."""
        self._wake.set()

    # The thread

    def _run(self) -> None:
        while not self._service.stop.is_set():
            try:
                if self._requests:
                    self._carry_out(self._requests.popleft())
                self._live()
            except Exception as error:  # noqa: BLE001 - every error is judged, none ends the thread unseen
                if self._service.stop.is_set() or not self._goes_on(judge(error, route=self.route.name), error):
                    break
            else:
                if self._service.once and not self._requests:
                    break
        if self.verdict is None:
            self._report.state("stopped")

    def _live(self) -> None:
        """From start to a clean stop of the query; returns early when there is a request."""
        service, route = self._service, self.route
        self._report.state("starting")
        source = SourceTable(service.spark, route.source)
        sink = service.settings.sink(route.sink)
        try:
            self._policy.retrying(lambda _: None)(sink.check)
            self._report.sink_up()
            state = start.resolve(route, source, sink, service.state_path, self._asked)
            self._report.position(state.generation, state.epoch)
            state = self._prepare(state, source, sink)
            delivering = Delivering(
                route,
                sink,
                self._policy,
                service.settings.delivery,
                service.letters,
                self._report,
                service.letters.open_count(route.name),
            )
            self._report.dead_letters(delivering.open_letters)
            # Cancelling a bootstrap by this group must not touch another route's jobs.
            service.spark.sparkContext.setJobGroup(f"cdf-{route.name}", route.name, interruptOnCancel=True)
            service.spark.sparkContext.setLocalProperty("spark.scheduler.pool", route.name)
            if state.phase == "bootstrapping":
                state = self._bootstrap(state, source, delivering)
            self._stream(state, source, delivering)
        finally:
            sink.close()

    def _prepare(self, state: RouteState, source: SourceTable, sink: Sink) -> RouteState:
        spec = self.route.spec(owner=self._service.state_path.owner, epoch=state.epoch)
        for warning in sink.prepare(feed.row_schema(source.schema(), self.route), spec):
            self._report.warning(warning)
        if not state.prepared:
            state = replace(state, prepared=True)
            self._service.state_path.save(state)
        return state

    def _bootstrap(self, state: RouteState, source: SourceTable, delivering: Delivering) -> RouteState:
        """Load the pinned snapshot, then remove what an older epoch left; both may run again after a kill."""
        self._report.state("bootstrapping")
        version = state.pinned_version
        assert version is not None
        try:
            self._load(version, state, source, delivering)
        except Exception as error:
            if not any(name in str(error) for name in PINNED_GONE) or source.latest_version() == version:
                raise
            # Pinning again is a new epoch: what was deleted between the two versions is swept afterwards.
            state = start.resync_state(self.route, source, delivering.sink, self._service.state_path)
            self._service.state_path.save(state)
            self._report.warning(f"version {version} can no longer be read; bootstrap starts again at the newest")
            state = self._prepare(state, source, delivering.sink)
            self._load(state.pinned_version or 0, state, source, delivering)
        if state.epoch > 1:
            spec = self.route.spec(owner=self._service.state_path.owner, epoch=state.epoch)
            swept = delivering.sink.sweep(spec, guard_of(state.epoch, 0, upsert=False))
            self._report.event(f"swept {swept} orphans of older epochs")
        state = replace(state, phase="streaming", start_version=(state.pinned_version or 0) + 1)
        self._service.state_path.save(state)
        return state

    def _load(self, version: int, state: RouteState, source: SourceTable, delivering: Delivering) -> None:
        at = source.committed_at(version) or time.time()
        snapshot = source.snapshot(version)
        frame = feed.snapshot_frame(snapshot, self.route, epoch=state.epoch, version=version, committed_at=at)
        if delivering.sink.mode == "upsert":
            check_duplicates(frame, self.route, version)
        delivering.write(frame, self._batch(state, 0))

    def _stream(self, state: RouteState, source: SourceTable, delivering: Delivering) -> None:
        service, route = self._service, self.route
        folder = service.state_path.checkpoint(route.name, state.generation)
        committed = checkpoint.last_committed(folder)
        starting: int | None = state.start_version
        if committed is not None and starting is not None and starting < source.available()[0]:
            starting = None  # log cleanup passed the start; the checkpoint alone says where to go on (design rule 5)
        schema_log = str(folder / "schema") if source.detail.column_mapping else None
        changes = feed.change_frame(source.stream(starting, schema_log), route, epoch=state.epoch)

        def on_batch(frame: DataFrame, batch_id: int) -> None:
            self._on_batch(frame, self._batch(state, batch_id + 1), delivering)

        writer = changes.writeStream.queryName(route.name).option("checkpointLocation", str(folder))
        seconds = f"{service.settings.trigger_seconds} seconds"
        writer = writer.trigger(availableNow=True) if service.once else writer.trigger(processingTime=seconds)
        self._batch_error = None
        query = writer.foreachBatch(on_batch).start()
        self._report.state("running")
        watch = Watch(query, source, self._report, state, committed)
        while query.isActive:
            if service.stop.is_set() or self._requests:
                self._finish(query)
                return
            if watch.look() and watch.healthy:
                self._failures = 0
            self._progress(watch, state)
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
        error = query.exception()
        if error is not None:
            raise self._batch_error or error
        watch.look(ended=True)
        self._progress(watch, state)

    def _on_batch(self, frame: DataFrame, batch: Batch, delivering: Delivering) -> None:
        if self._service.stop.is_set() or self._requests:
            raise StoppedError
        self._in_batch.set()
        try:
            delivering.write(frame, batch)
        except BaseException as error:
            self._batch_error = error  # Spark would leave only its text
            raise
        finally:
            self._in_batch.clear()

    def _finish(self, query: StreamingQuery) -> None:
        """Let the running micro-batch end and be committed; the next one raises before it writes."""
        deadline = time.monotonic() + self._service.settings.shutdown_seconds
        while query.isActive and time.monotonic() < deadline:
            if not self._in_batch.is_set() and not query.status["isTriggerActive"]:
                break
            time.sleep(POLL_SECONDS / 10)
        query.stop()

    def _batch(self, state: RouteState, number: int) -> Batch:
        committed = checkpoint.last_committed(self._service.state_path.checkpoint(state.route, state.generation))
        delivered = committed.complete if committed else (state.start_version or 0) - 1
        return Batch(
            route=self.route.spec(owner=self._service.state_path.owner, epoch=state.epoch),
            generation=state.generation,
            number=number,
            table_id=state.table_id,
            replay=delivered < state.replay_until,
        )

    # Failures

    def _goes_on(self, verdict: Verdict, error: BaseException) -> bool:
        """Act on a verdict; False ends the thread (``--once`` only)."""
        self._failures += 1
        self._report.failed(verdict, detail=error)
        if verdict.action == "retry_then_halt" and self._failures >= TRIES_BEFORE_HALT:
            verdict = replace(verdict, action="halt")
        if verdict.action == "halt":
            return self._halt(verdict)
        if verdict.action == "wait" and verdict.reason not in ("table_missing", "conflict"):
            self._report.sink_down(verdict)
        if self._service.once and verdict.action != "restart" and self._failures >= TRIES_BEFORE_HALT:
            self.verdict = verdict
            self._report.state("stopped", verdict.what)
            return False
        self._report.restarted(verdict.reason)
        if not (verdict.action == "restart" and self._may_restart_now()):
            self._report.state("retrying", verdict.what)
            self._wake.wait(RetryPolicy(first_seconds=1.0, cap_seconds=30.0).backoff(self._failures))
            self._wake.clear()
        return True

    def _halt(self, verdict: Verdict) -> bool:
        """Wait for an operator's request, or for the end."""
        self._answer(Progress("failed", f"{verdict.what} {verdict.next_step}"))
        self._report.state("halted", f"{verdict.what} {verdict.next_step}")
        self.verdict = verdict
        if self._service.once:
            return False
        while not self._service.stop.is_set():
            if self._requests:
                self.verdict = None
                self._failures = 0
                return True
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
        return False

    def _may_restart_now(self) -> bool:
        now = time.monotonic()
        recent = len(self._restarts) == FAST_RESTARTS and now - self._restarts[0] < 60  # noqa: PLR2004 - a minute
        self._restarts.append(now)
        return not recent

    # Requests

    def _carry_out(self, request: Request) -> None:
        """Write the state that the request asks for; the stream then starts from it.

        A request that can't be carried out fails by itself: the route goes on as it was.
        """
        service = self._service
        self._serving = request
        source = SourceTable(service.spark, self.route.source)
        sink = service.settings.sink(self.route.sink)
        self._report.event(f"{request.kind} asked for")
        try:
            if request.kind == "resync":
                state = start.resync_state(self.route, source, sink, service.state_path)
                service.state_path.save(state)
            elif request.ending_version is not None:
                self._replay_range(request, source, sink)
            else:
                state = start.resolve(self.route, source, sink, service.state_path, None)
                version = _required(request.starting_version)
                source.check_range(version)
                service.state_path.save(start.replay_state(state, version, service.state_path, asked=state.asked))
        except Exception as error:  # noqa: BLE001 - whatever it was, the asker is told
            verdict = judge(error, route=self.route.name)
            self._report.warning(f"{request.kind} refused: {verdict.what} {verdict.next_step}")
            self._answer(Progress("failed", f"{verdict.what} {verdict.next_step}"))
            return
        finally:
            sink.close()
        self._asked = None
        self._report.restarted("request")

    def _replay_range(self, request: Request, source: SourceTable, sink: Sink) -> None:
        """Deliver a closed range of versions again, into an append sink, which adds only what it lacks."""
        first, last = _required(request.starting_version), _required(request.ending_version)
        source.check_range(first)
        source.check_range(last)
        state = start.resolve(self.route, source, sink, self._service.state_path, None)
        frame = feed.change_frame(source.changes(first, last), self.route, epoch=state.epoch)
        delivering = Delivering(
            self.route,
            sink,
            self._policy,
            self._service.settings.delivery,
            self._service.letters,
            self._report,
            open_letters=0,
        )
        delivering.write(frame, replace(self._batch(state, 0), replay=True))
        self._answer(Progress("done", f"versions {first} to {last} delivered", 1.0))

    def _progress(self, watch: Watch, state: RouteState) -> None:
        """Tell whoever asked for the replay or resync how far it is."""
        if self._serving is None or watch.source_version is None:
            return
        first = state.start_version or 0
        target = watch.target_of(self._serving.id)
        ratio = (
            1.0 if target < first else min(1.0, max(0.0, (watch.delivered_version - first + 1) / (target - first + 1)))
        )
        self._report.replay(first, target, ratio)
        message = f"version {watch.delivered_version} of {target} delivered"
        self._answer(Progress("done" if ratio >= 1 else "running", message, ratio))

    def _answer(self, progress: Progress) -> None:
        if self._serving is None:
            return
        answer(self._service.state_path.requests, self._serving.id, progress)
        if progress.state != "running":
            self._serving = None


def _required(version: int | None) -> int:
    if version is None:
        raise HaltError("bad_request", "A replay needs a starting version.", "Give --starting-version.")
    return version
