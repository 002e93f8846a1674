"""One thread per route: it runs the stream, judges what ended it, and begins again until somebody stops it.

A route is a query of its own, so a slow or dead sink never delays another (design rule 1).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdf_replicator import evolution, feed, start
from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.report import Report
from cdf_replicator.requests import Progress, Request, answer
from cdf_replicator.source import SourceTable
from cdf_replicator.stream import POLL_SECONDS, Service, Stream
from cdf_replicator.verdict import HaltError, Verdict, judge
from connectors import RetryableError

if TYPE_CHECKING:
    from cdf_replicator.route import Route
    from cdf_replicator.state import RouteState
    from cdf_replicator.watch import Watch
    from connectors import Sink

__all__ = ["Runner", "Service"]

FAST_RESTARTS: Final = 5
"""Restarts within a minute that are free of waiting (a tracked schema change needs a few)."""
MINUTE: Final = 60.0
BETWEEN_RUNS: Final = RetryPolicy(first_seconds=1.0, cap_seconds=30.0)


class Runner:
    """``asked``: the starting version this run was given for the route. ``verdict``: why it ended badly, if it did."""

    def __init__(self, service: Service, route: Route, asked: int | None) -> None:
        self.route = route
        self.verdict: Verdict | None = None
        self._thread = threading.Thread(target=self._run, name=f"route-{route.name}", daemon=True)
        self._service = service
        self._asked = asked
        self._report = Report(route, service.metrics, service.board)
        self._stream = Stream(service, route, self._report, self._interrupted, self._looked)
        self._requests: deque[Request] = deque()
        self._serving: Request | None = None
        self._wake = threading.Event()
        self._watch: Watch | None = None
        self._failures = 0
        self._what = ""
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
        if not self._failures:  # a route that tries again stays in the state that says so
            self._report.state("starting")
        source = SourceTable(self._service.spark, self.route.source)
        sink = self._service.settings.sink(self.route.sink)
        try:
            self._stream.run(source, sink, self._asked, self._wake)
        finally:
            sink.close()

    def _interrupted(self) -> bool:
        return self._service.stop.is_set() or bool(self._requests)

    def _looked(self, watch: Watch, state: RouteState) -> None:
        self._watch = watch
        if watch.healthy:
            self._failures = 0
        self._progress(watch, state)

    # Failures

    def _goes_on(self, verdict: Verdict, error: BaseException) -> bool:
        """Act on a verdict; False ends the thread (``--once`` only)."""
        another_change = verdict.reason == "schema_change" and verdict.what != self._what
        self._failures = 1 if another_change else self._failures + 1  # to fail at a later version is to get on
        self._what = verdict.what
        if verdict.reason == "schema_change" and verdict.action != "halt" and self._failures == 1:
            self._report.event("the table's schema changed: the stream starts again with the new one")
        else:
            self._report.failed(verdict, detail=error)
        if verdict.of_sink:
            self._report.sink_down(verdict)
        if verdict.action == "retry_then_halt" and self._failures >= verdict.tries:
            verdict = replace(verdict, action="halt")
        if verdict.action == "halt":
            return self._halt(verdict)
        if self._service.once and verdict.action == "wait":
            self.verdict = verdict  # the retry budget is spent: whoever started us starts us again
            self._report.state("stopped", verdict.what)
            return False
        self._report.restarted(verdict.reason)
        if not (verdict.action == "restart" and self._may_restart_now()):
            self._report.state("retrying", verdict.what)
            asked = error.retry_after if isinstance(error, RetryableError) else None
            self._pause(max(asked or 0.0, BETWEEN_RUNS.backoff(self._failures)))
        return True

    def _halt(self, verdict: Verdict) -> bool:
        """Wait for an operator's request, or for the end."""
        what = f"{verdict.what} {verdict.next_step}"
        self._answer(Progress("failed", what))
        self._report.state("halted", what)
        self.verdict = verdict
        while not self._service.once and not self._service.stop.is_set():
            if self._requests:
                self.verdict = None
                self._failures = 0
                return True
            self._pause(POLL_SECONDS)
        return False

    def _pause(self, seconds: float) -> None:
        """Wait until the time is over or somebody wants something; the lag is told all the while."""
        deadline = time.monotonic() + seconds
        while not self._interrupted() and (left := deadline - time.monotonic()) > 0:
            self._tell_lag()
            self._wake.wait(min(left, POLL_SECONDS))
            self._wake.clear()

    def _tell_lag(self) -> None:
        if self._watch is None:
            return
        try:
            self._watch.look_at_source()
        except Exception:  # noqa: BLE001 - the source is away too; what it is will be said when the stream starts
            self._watch = None

    def _may_restart_now(self) -> bool:
        now = time.monotonic()
        recent = len(self._restarts) == FAST_RESTARTS and now - self._restarts[0] < MINUTE
        self._restarts.append(now)
        return not recent

    # Requests

    def _carry_out(self, request: Request) -> None:
        """Write the state that the request asks for; the stream then starts from it.

        A request that can't be carried out fails by itself: the route goes on as it was.
        """
        self._serving = request
        self._report.event(f"{request.kind} asked for")
        sink = self._service.settings.sink(self.route.sink)
        try:
            source = SourceTable(self._service.spark, self.route.source)
            if request.kind == "resync":
                share = request.max_removed_share
                if share is None:
                    share = self._service.settings.delivery.max_removed_share
                state = start.asked_resync(self.route, source, sink, self._service.state_path, share=share)
                self._service.state_path.save(state)
            else:
                self._replay(request, source, sink)
        except Exception as error:  # noqa: BLE001 - whatever it was, the asker is told
            verdict = judge(error, route=self.route.name)
            self._report.warning(f"{request.kind} refused: {verdict.what} {verdict.next_step}")
            self._answer(Progress("failed", f"{verdict.what} {verdict.next_step}"))
            return
        finally:
            sink.close()
        self._asked = None
        self._report.restarted("request")

    def _replay(self, request: Request, source: SourceTable, sink: Sink) -> None:
        """Start the next generation, or deliver a closed range of versions into an append sink."""
        state_path, first, last = self._service.state_path, request.starting_version, request.ending_version
        assert first is not None  # the command requires it
        state = start.resolve(self.route, source, sink, state_path, None)
        if state.phase == "bootstrapping":
            raise HaltError("bad_request", "The bootstrap is not finished.", "Wait for it, then ask again.")
        source.check_range(first)
        if last is None:
            start.check_delivered(state, first, state_path)
            state_path.save(start.replay_state(state, first, state_path, asked=state.asked))
            return
        if sink.mode == "upsert":
            raise HaltError(
                "bad_request",
                "A replay with an end would bring back keys that were deleted later, where a sink keeps one entry per key.",
                "Ask for one without an end.",
            )
        source.check_range(last)
        # What of the range the stream has yet to deliver will be there already.
        state_path.save(replace(state, replay_until=max(state.replay_until, last)))
        rows, read = source.changes(first, last), self._stream.row_schema
        _, rows = evolution.settled(self.route, source, state, rows, first, read)
        frame = feed.change_frame(rows, self.route, epoch=state.epoch)
        batch = replace(self._stream.batch(state, 0), replay=True)
        self._stream.delivering(sink).write(frame, batch)
        self._answer(Progress("done", f"versions {first} to {last} delivered", 1.0))

    def _progress(self, watch: Watch, state: RouteState) -> None:
        """Tell whoever asked for the replay or resync how far it is."""
        if self._serving is None or watch.source_version is None:
            return
        first = state.start_version or 0
        target = watch.target_of(self._serving.id)
        done, asked = watch.delivered_version - first + 1, target - first + 1
        ratio = min(1.0, max(0.0, done / asked)) if asked > 0 else 1.0
        self._report.replay(first, target, ratio)
        message = f"version {watch.delivered_version} of {target} delivered"
        self._answer(Progress("done" if ratio >= 1 else "running", message, ratio))

    def _answer(self, progress: Progress) -> None:
        if self._serving is None:
            return
        answer(self._service.state_path.requests, self._serving.id, progress)
        if progress.state != "running":
            self._serving = None
