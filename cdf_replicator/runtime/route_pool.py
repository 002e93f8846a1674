"""Run the threads of all routes until they end, the service stops, or the JVM is gone; start and stop some at a reload."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.runtime import exit_codes
from cdf_replicator.runtime.command_dispatcher import CommandDispatcher
from cdf_replicator.spark import session
from cdf_replicator.state.command_queue import CommandStatus
from cdf_replicator.verification import BackgroundVerifier, VerifierThread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cdf_replicator.route import Route
    from cdf_replicator.runtime.reload import Configuration, Reload, ReloadRequests
    from cdf_replicator.runtime.reload.plan import ReloadPlan
    from cdf_replicator.runtime.route_factory import RouteFactory
    from cdf_replicator.runtime.route_runner import RouteRunner
    from cdf_replicator.server import Control
    from cdf_replicator.state.command_queue import Command
    from connectors import SinkSettings

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 0.5
CANCEL_SECONDS: Final = 5.0
"""Longest wait for the end of a cancelled comparison, and of cancelled micro-batches."""
END_SECONDS: Final = 15.0
"""Time kept for what follows a drain: cancelled micro-batches, the end of Spark and of the HTTP server."""
EXITING: Final = "exiting so that the process manager restarts the service"
JVM_GONE: Final = "the JVM is gone"
SILENT_SECONDS: Final = 30
"""The service is not alive if its main loop has not ticked for this time."""
ONCE: Final = "run --once reads its configuration at the start only"


class Heartbeat:
    """The ticks of the main loop, which the liveness probe reads from another thread."""

    def __init__(self) -> None:
        self._last: float | None = None

    def tick(self) -> None:
        self._last = time.monotonic()

    def failure(self) -> str | None:
        """Return why the main loop is not alive; None while it is, and before its first tick."""
        silent = 0.0 if self._last is None else time.monotonic() - self._last
        return None if silent < SILENT_SECONDS else f"the main loop has not ticked for {silent:.0f} s"


class RoutePool:
    """The threads of the routes, the thread that dispatches commands to them, and the thread that compares their targets.

    The main loop runs here, and executes the reloads of the configuration in steps between its ticks. ``spark_stopped`` is set
    if Spark has stopped its context in a JVM that lives.
    """

    def __init__(
        self,
        factory: RouteFactory,
        configuration: Configuration,
        reloads: ReloadRequests,
        heartbeat: Heartbeat,
        control: Control | None = None,
    ) -> None:
        self._factory, self._board = factory, factory.metrics.board
        self._configuration, self._reloads = configuration, reloads
        self._heartbeat, self._control = heartbeat, control
        self._runners: dict[str, RouteRunner] = {}
        self._verifier, self.spark_stopped = VerifierThread(), threading.Event()
        if control is not None:
            control.comparisons = self._verifier.requests

    def run(self) -> int | None:
        """Run the routes to their end, and return the exit code; None if the service stops first."""
        stop = self._factory.stop
        self._publish_sinks({})
        for route in self._configuration.routes.values():
            self._add(route, self._configuration.selection.starting_version(route))
        self._publish_routes()
        dispatcher = CommandDispatcher(self._runners, self._factory.state_store, self._reloads, self._factory.once)
        dispatcher.poll()  # before the start: with --once a runner may end soon
        for runner in self._runners.values():
            runner.start()
        over = threading.Event()
        threading.Thread(target=dispatcher.run, args=(over,), name="requests", daemon=True).start()
        self._start_comparisons()
        reloads = self._executed_reloads()
        while not self._fault() and not stop.is_set() and (next(reloads) or _alive(self._runners.values())):
            self._heartbeat.tick()
            stop.wait(TICK_SECONDS)
        over.set()
        self._verifier.stop()
        self._verifier.join(CANCEL_SECONDS)
        if fault := self._fault():
            log.error(EXITING, reason=fault)
            return exit_codes.FAILED
        return None if stop.is_set() else self._exit_code()

    def drain(self, signalled_at: float) -> None:
        """Wait for running micro-batches; cancel those that exceed the limit, which the next run delivers again.

        The limit counts from the signal. Its last ``END_SECONDS``, and at most half of it, are kept for what follows.
        """
        seconds = self._configuration.settings.shutdown_seconds
        deadline = signalled_at + max(seconds - END_SECONDS, seconds / 2)
        log.info("stopping after the running micro-batches", seconds=round(max(0.0, deadline - time.monotonic()), 1))
        for runner in self._runners.values():
            runner.wake()
        while _alive(self._runners.values()) and time.monotonic() < deadline:
            self._heartbeat.tick()
            time.sleep(TICK_SECONDS / 10)
        if _alive(self._runners.values()):
            self._factory.spark.sparkContext.cancelAllJobs()
            deadline = time.monotonic() + CANCEL_SECONDS
            for runner in self._runners.values():
                runner.join(max(0.0, deadline - time.monotonic()))
        log.info("stopped")

    def _fault(self) -> str:
        """Return why the service must end with an error; empty while it need not."""
        if not session.jvm_alive(self._factory.spark):
            return JVM_GONE
        if self.spark_stopped.is_set():
            return "Spark has stopped its context"
        return next(filter(None, (runner.fault for runner in self._runners.values())), "")

    def _exit_code(self) -> int:
        failures = [runner.failure for runner in self._runners.values() if runner.failure is not None]
        if any(failure.action != "wait" for failure in failures):
            return exit_codes.FAILED
        return exit_codes.TEMPORARY if failures else exit_codes.DONE

    def _add(self, route: Route, start_version: int | None) -> RouteRunner:
        """Add the runner and the row of a route; the caller starts the runner."""
        runner = self._runners[route.name] = self._factory.runner(route, start_version)
        self._board.update(route.name, definition=self._configuration.names.definitions[route.name])
        return runner

    def _start_comparisons(self) -> None:
        """Start the comparisons of the present routes with their tables: on request, and by the configured period."""
        factory, settings, routes = self._factory, self._configuration.settings, self._configuration.routes
        if settings.verify.every_hours is None:
            for name in routes:
                self._board.update(name, verify_deadline=None)
        if not factory.once:
            given = factory.spark, settings, factory.state_store, self._board, routes.values()
            self._verifier.start(BackgroundVerifier(*given, self._verifier.requests))

    def _publish_routes(self) -> None:
        """Publish the routes that have a thread, for control over HTTP."""
        if self._control is not None:
            self._control.routes = tuple(self._runners)

    def _publish_sinks(self, former: Mapping[str, SinkSettings]) -> None:
        """Publish the sinks that differ from ``former`` on the status page."""
        settings, names = self._configuration.settings, self._configuration.names
        for slug, name in names.sinks.items():
            if settings.sinks[slug] != former.get(slug):
                self._board.add_sink(slug, *name)

    def _executed_reloads(self) -> Iterator[bool]:
        """Execute the requested reloads, one after the other; yield whether one waits for the end of a route."""
        while True:
            command = self._reloads.take()
            if command is None:
                yield False
            else:
                for _ in self._reload(command):
                    yield True

    def _reload(self, command: Command) -> Iterator[None]:
        """Execute one reload and answer it; yield while it waits. A stop of the service ends it where it waits.

        The command then stays in the queue, and the next start answers it.
        """
        if self._factory.once:
            log.warning("reload refused", reason=ONCE)
            status = CommandStatus("failed", ONCE)
        elif isinstance(found := self._configuration.read(dry_run=command.dry_run), CommandStatus):
            status = found
        else:
            if not command.dry_run:
                yield from self._apply(found)
            status = CommandStatus("done", found.plan.text(dry_run=command.dry_run), 1.0)
        self._reloads.answers.append((command, status))

    def _apply(self, reload: Reload) -> Iterator[None]:
        """Put a configuration in force, and stop, start and restart the routes that are concerned; yield while it waits.

        A route starts when its former thread has ended, and those of the routes whose target it may write to, since a target
        may pass from one route to another. A route that does not end delays no other route.
        """
        plan, former = reload.plan, self._configuration.settings
        ending = {name: self._runners[name] for name in plan.ends}
        if plan.changes_running:
            self._verifier.stop()
        self._configuration.adopt(reload)
        self._factory = replace(self._factory, settings=reload.settings)
        self._publish_sinks(former.sinks)
        for _ in self._end(ending.values(), former.shutdown_seconds):
            self._exchange(plan, ending)
            yield
        self._exchange(plan, ending)
        for slug in former.sinks.keys() - reload.settings.sinks.keys():
            self._board.remove_sink(slug)
        if plan.changes_running:
            self._start_comparisons()

    def _exchange(self, plan: ReloadPlan, ending: Mapping[str, RouteRunner]) -> None:
        """Start the routes that wait for none of the threads that still run, and remove the routes that have ended for good."""
        ended = {name for name, runner in ending.items() if not runner.is_alive()}
        routes, selection = self._configuration.routes, self._configuration.selection
        for name in plan.begins:
            again = ending.get(name)
            # A route that restarts is never absent here, since the dispatcher would refuse its commands.
            if self._runners.get(name) is again and plan.waits[name] <= ended:
                if again is not None:
                    again.remove_status()
                route = routes[name]
                self._add(route, again.requested_start_version if again else selection.starting_version(route)).start()
        for name in ended & self._runners.keys() - routes.keys():
            self._runners.pop(name).remove_status()
        self._publish_routes()

    def _end(self, runners: Collection[RouteRunner], seconds: float) -> Iterator[None]:
        """Stop routes after their running micro-batches; cancel the jobs of those that exceed the limit."""
        deadline = time.monotonic() + seconds
        for runner in runners:
            runner.end()
        while (late := _alive(runners)) and time.monotonic() < deadline:
            yield
        if late:
            log.warning("routes do not stop, cancelling their jobs", routes=[runner.route.name for runner in late])
        while late := _alive(runners):
            for runner in late:
                runner.cancel_jobs()
            yield


def _alive(runners: Iterable[RouteRunner]) -> list[RouteRunner]:
    return [runner for runner in runners if runner.is_alive()]
