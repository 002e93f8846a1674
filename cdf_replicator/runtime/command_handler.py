"""Execute operator commands on a route's thread, between stream runs, and report their progress."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from cdf_replicator.delivery.dead_letters import id_filter
from cdf_replicator.errors.bounded_read import step_for
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import generation, start_position
from cdf_replicator.pipeline.redrive import redrive
from cdf_replicator.source import schema_evolution
from cdf_replicator.source.table import SourceTable
from cdf_replicator.spark.session import clear_delta_cache, is_jvm_exit
from cdf_replicator.state.command_queue import Command, CommandStatus, complete, write_status
from cdf_replicator.transform import change_frame

if TYPE_CHECKING:
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.monitoring.progress import ProgressTracker
    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.pipeline.context import ServiceContext
    from cdf_replicator.pipeline.route_stream import RouteStream
    from cdf_replicator.route import Route
    from cdf_replicator.state.route_state import RouteState
    from connectors import Sink

_TRIES: Final = 3
"""Attempts per command if an error may be temporary, since an operator waits for the answer."""


class CommandHandler:
    """Executes the commands of one route, one at a time, on the route's thread."""

    def __init__(self, service: ServiceContext, route: Route, stream: RouteStream, report: RouteReporter) -> None:
        self._service = service
        self._route = route
        self._stream = stream
        self._report = report
        self._active: Command | None = None
        """The replay or resync that the stream is executing. Other commands are answered at once."""
        self._note = ""

    def handle(self, request: Command) -> bool:
        """Execute a command, or write the state from which the stream then executes it.

        Return False if the route continues as before. A command that can't be executed is answered as failed. Raise ``OSError`` if
        the state path is not writable; the caller then repeats the command.
        """
        self._report.event(f"{request.kind} requested")
        if request.kind in ("pause", "resume"):
            self._set_paused(request)
            return False
        if request.kind in ("replay", "resync"):
            self._note = ""
        try:
            self._require_not_paused(request)
            wanted = self._count_letters(request) if request.kind in ("redrive", "discard") else 0
            for attempt in self._retrying(request):
                with attempt:
                    self._carry(request, wanted)
        except Exception as error:  # noqa: BLE001 - the answer reports any error
            why = self._why(error, request)
            self._report.warning(f"{request.kind} refused: {why}")
            self._answer(request, CommandStatus("failed", why))
            return False
        finally:
            complete(self._service.state_path.requests, request.id)
        self._report.restarted("request")
        if request.kind in ("replay", "resync") and request.ending_version is None:
            self._succeed(request)
        return request.kind in ("replay", "resync")

    def _succeed(self, request: Command) -> None:
        """Report the progress of a replay or resync, whose state is written, from now on."""
        self.answer(CommandStatus("failed", f"a later {request.kind} took its place"))
        self._active = request

    def _why(self, error: Exception, request: Command | None = None) -> str:
        if is_jvm_exit(self._service.spark, error):
            return "The JVM is gone, and the service ends. Repeat the command once it has started."
        verdict = classify_error(error, route=self._route.name)
        if request and request.ending_version is not None and (next_step := step_for(error)):
            return f"{verdict.message} {next_step}"
        return f"{verdict.message} {verdict.remedy if verdict.action == 'halt' else 'Repeat the command once the error is over.'}"

    def _retrying(self, request: Command) -> Retrying:
        """Return the retry policy; every command may be executed twice."""

        def may_pass(error: BaseException) -> bool:
            verdict = classify_error(error, route=self._route.name)
            again = verdict.action != "halt" and not self._service.stop.is_set()
            if verdict.reason == UNKNOWN_SPARK_ERROR:
                clear_delta_cache(self._service.spark)
            if again:
                self._report.warning(f"{request.kind} failed, retrying: {verdict.message}")
            return again

        return Retrying(
            retry=retry_if_exception(may_pass), stop=stop_after_attempt(_TRIES), wait=wait_fixed(1), reraise=True
        )

    def _carry(self, request: Command, wanted: int) -> None:
        """Execute a command; ``wanted`` is the number of its dead letters."""
        if request.kind == "discard":  # also works if the source table is gone
            self._discard(request, wanted)
            return
        sink = self._service.settings.sink(self._route.sink)
        try:
            source = SourceTable(self._service.spark, self._route.source)
            carry = {"replay": self._replay, "resync": self._resync, "redrive": self._redrive}
            carry[request.kind](request, source, sink)
        finally:
            sink.close()

    def _set_paused(self, request: Command) -> None:
        """Pause or resume the route; a running replay continues once the route does."""
        state_path = self._service.state_path
        state_path.set_paused(self._route.name, paused=request.kind == "pause")
        write_status(state_path.requests, request.id, CommandStatus("done", f"{request.kind}d", 1.0))
        complete(state_path.requests, request.id)

    def _require_not_paused(self, request: Command) -> None:
        """Raise ``RouteHaltError`` if the route is paused."""
        if request.kind != "discard" and self._service.state_path.is_paused(self._route.name):
            raise RouteHaltError(
                "bad_request",
                f"Route {self._route.name} is paused.",
                f"Run: cdf-replicator resume {self._route.name}",
            )

    def _resync(self, request: Command, source: SourceTable, sink: Sink) -> None:
        share = request.max_removed_share
        if share is None:
            share = self._service.settings.delivery.max_removed_share
        state = start_position.resync_requested(self._route, source, sink, self._service.state_path, share=share)
        self._service.state_path.save(state)

    def _redrive(self, request: Command, source: SourceTable, sink: Sink) -> None:
        """Write the current rows of dead letters' keys outside the stream's sequence, while no stream runs."""
        state = self._require_streaming(source, sink)
        version = source.log.available()[1]
        snapshot, read = source.snapshot(version), self._stream.row_schema
        # apply the schema rules of the stream: it may halt or leave out a column
        _, snapshot = schema_evolution.reconcile(self._route, source, state, snapshot, version, read)
        state = self._stream.prepare(state, snapshot.schema, sink)
        batch = replace(self._stream.batch_identity(state, 0), request=request.id)
        at = source.log.committed_at(version) or time.time()
        rows = change_frame.snapshot_frame(snapshot, self._route, epoch=state.epoch, version=version, committed_at=at)
        done = redrive(rows, version, self._stream.batch_writer(sink), batch, request.letters)
        self._report.event(f"dead letters redriven: {done}")
        self._answer(request, CommandStatus("done", done, 1.0))

    def _count_letters(self, request: Command) -> int:
        """Return the number of open dead letters that a command selects; raise ``RouteHaltError`` if there are none."""
        wanted = self._service.letters.open(self._route.name).where(id_filter(request.letters)).count()
        if not wanted:
            asked = f" of {', '.join(request.letters)}" if request.letters else ""
            raise RouteHaltError(
                "bad_request",
                f"Route {self._route.name} has no open dead letter{asked}.",
                "See: cdf-replicator dead-letters list",
            )
        return wanted

    def _discard(self, request: Command, wanted: int) -> None:
        letters = self._service.letters
        letters.close(self._route.name, id_filter(request.letters), "discarded")
        self._report.dead_letters(letters.open(self._route.name).count())
        self._report.event(f"{wanted} dead letters discarded")
        self._answer(request, CommandStatus("done", f"{wanted} discarded", 1.0))

    def _require_streaming(self, source: SourceTable, sink: Sink) -> RouteState:
        """Return the state of the route; raise ``RouteHaltError`` before its bootstrap is done."""
        state = start_position.resolve(self._route, source, sink, self._service.state_path)
        if state.phase == "bootstrapping":
            raise RouteHaltError(
                "bad_request", "The bootstrap is not finished.", "Wait for it, then repeat the command."
            )
        return state

    def _replay(self, request: Command, source: SourceTable, sink: Sink) -> None:
        """Start the next generation, or deliver a closed range of versions into an append sink."""
        state_path, first, last = self._service.state_path, request.starting_version, request.ending_version
        assert first is not None  # the command requires it
        if last is None:
            state = start_position.replay_requested(self._route, source, sink, state_path, first)
            state_path.save(state)
            self._note = generation.what_is_missing(state) or ""
            return
        state = self._require_streaming(source, sink)
        source.check_range(first)
        if sink.mode == "upsert":
            raise RouteHaltError(
                "bad_request",
                "In a sink that keeps one entry per key, a replay with an end would bring back keys that were deleted later.",
                "Replay without --ending-version.",
            )
        source.check_range(last)
        # The sink will already hold the versions of the range that the stream has not delivered yet.
        state_path.save(replace(state, replay_end_version=max(state.replay_end_version, last)))
        rows, read = source.changes(first, last), self._stream.row_schema
        _, rows = schema_evolution.reconcile(self._route, source, state, rows, first, read)
        frame = change_frame.change_frame(rows, self._route, epoch=state.epoch)
        batch = replace(self._stream.batch_identity(state, 0), may_exist=True)
        self._stream.batch_writer(sink).write(frame, batch)
        self._answer(request, CommandStatus("done", f"versions {first} to {last} delivered", 1.0))

    def progress(self, watch: ProgressTracker, state: RouteState) -> None:
        """Report the progress of the running replay or resync."""
        if self._active is None or watch.source_version is None:
            return
        first = state.start_version or 0
        target = watch.target_of(self._active.id)
        done, asked = watch.delivered_version - first + 1, target - first + 1
        ratio = min(1.0, max(0.0, done / asked)) if asked > 0 else 1.0
        self._report.replay(first, target, ratio)
        told = f"version {watch.delivered_version} of {target} delivered", self._note
        message = ". ".join(filter(None, told))
        self.answer(CommandStatus("done" if ratio >= 1 else "running", message, ratio))

    def given_up(self, verdict: ErrorDecision) -> ErrorDecision | None:
        """Abandon a replay that can't be read and report it; return None if the route must halt."""
        sink = self._service.settings.sink(self._route.sink)
        try:
            back = generation.given_up(self._route, sink, self._service.state_path, verdict)
            if back is not None:
                what = f"{back.message} {back.remedy}"
                self._report.warning(what)
                self.answer(CommandStatus("failed", what))
        except Exception as error:  # noqa: BLE001 - the route then halts with the first error
            self._report.warning(f"replay not abandoned: {self._why(error)}")
            return None
        else:
            return back
        finally:
            sink.close()

    def answer(self, progress: CommandStatus) -> None:
        """Answer the running replay or resync, if there is one."""
        serving = self._active
        if serving is None:
            return
        if progress.state != "running":
            self._active = None  # first, so that a failed write is not answered with another outcome later
        if progress.state == "failed":
            self._report.replay_failed()
        self._answer(serving, progress)

    def _answer(self, request: Command, progress: CommandStatus) -> None:
        write_status(self._service.state_path.requests, request.id, progress)
