"""Run the service: take the lease, start Spark and a thread per route, serve HTTP, stop on SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.queries.handler import QueryHandler
from cdf_replicator.runtime import exit_codes
from cdf_replicator.runtime.pod import Pod
from cdf_replicator.runtime.reload import Configuration, Reload, ReloadRequests, Selection
from cdf_replicator.runtime.route_factory import RouteFactory
from cdf_replicator.runtime.route_pool import EXITING, JVM_GONE, Heartbeat, RoutePool
from cdf_replicator.runtime.status_sampler import status_sampled
from cdf_replicator.server import server
from cdf_replicator.server.control import Control
from cdf_replicator.server.queries import Queries
from cdf_replicator.spark import session
from cdf_replicator.state.command_queue import Command
from cdf_replicator.state.lease import Lease, LeaseHeldError
from cdf_replicator.state.location import state_folder
from cdf_replicator.state.store import StateStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.status import RouteStatus
    from cdf_replicator.runtime.pod import Role
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.storage_path import StoragePath

log = structlog.get_logger(__name__)


class RunResult(NamedTuple):
    """The exit code of a run, and the routes that it started."""

    code: int
    routes: tuple[RouteStatus, ...]


def run(
    settings: Settings,
    *,
    once: bool = False,
    tables: Iterable[str] = (),
    starting_versions: Mapping[str | None, int] | None = None,
    standby: bool = False,
) -> RunResult:
    """Run until SIGTERM, or with ``once`` until all pending changes are delivered.

    Args:
        settings: the configuration.
        once: deliver pending changes, then end.
        tables: slugs of the source tables to follow; empty follows all.
        starting_versions: first commit version by table slug; that of None is for every other table.
        standby: wait for the lease if another process holds it.

    """
    selection = Selection(frozenset(tables), starting_versions or {})
    supervisor = Supervisor(settings, selection, once=once, standby=standby)
    try:
        code = supervisor.run()
    except LeaseHeldError as error:
        log.error(str(error))  # noqa: TRY400 - the message is complete
        code = exit_codes.TEMPORARY
    return RunResult(code, supervisor.board.snapshot().routes)


class Supervisor:
    """One run of the service."""

    def __init__(self, settings: Settings, selection: Selection, *, once: bool, standby: bool = False) -> None:
        self._once = once
        self._standby = standby
        self._stop = threading.Event()
        self._signalled_at = 0.0
        self._heartbeat = Heartbeat()
        self._spark: SparkSession | None = None
        self._reloads = ReloadRequests()
        self.board = StatusStore()
        self._configuration = Configuration(settings, selection, self.board)
        self.metrics = Metrics(self.board)
        self._pod = None if once else Pod.of()  # a command in the lease holder's pod keeps the holder's label
        token = settings.http.token
        self._queries = Queries(token.get_secret_value() if token is not None else "")

    @property
    def _settings(self) -> Settings:
        return self._configuration.settings

    def run(self) -> int:
        """Run the routes and return the exit code; raise ``LeaseHeldError`` if another process holds the lease."""
        self._take_signals()
        self._become("standby")  # a restarted container finds the pod's earlier label
        try:
            state_path = StateStore.open(state_folder(self._settings))
            self.board.belongs_to(state_path.owner, self._settings.state_path)
            if not state_path.root.is_local:
                self._spark = session.start(self._settings.spark)  # the remote state path has started it
            url, http = self._url(self._settings.http.bind_port), None
            lease = None if self._standby else Lease.acquire(state_path.root, url=url)
        except (StateError, session.SparkStartError) as error:
            log.error(str(error))  # noqa: TRY400 - the message is complete
            return exit_codes.CONFIGURATION
        except OSError as error:
            log.error("CDF_STATE_PATH can't be used", path=self._settings.state_path, reason=error.strerror)  # noqa: TRY400
            return exit_codes.TEMPORARY
        try:
            control = self._control()
            http = server.start(
                self.board,
                self.metrics,
                self._settings.http.host,
                self._settings.http.bind_port,
                self._liveness_failure,
                control,
                self._settings.http.read_tokens,
                self._queries,
            )
            log.info("serving", url=self._url(http.port))
            lease = lease or self._taken_over(state_path.root, url)
            if lease is None:
                return exit_codes.DONE if self._stop.is_set() else exit_codes.FAILED
            self.board.set_standby(None)
            self._become("active")
            state_path.lease = lease
            if control is not None:
                control.open_to(state_path)
            lease.keep(self._on_lease_lost)
            return self._with_spark(state_path, control)
        except server.BindError as error:
            log.error(str(error))  # noqa: TRY400
            return exit_codes.CONFIGURATION
        finally:
            if http is not None:
                http.stop()
            if lease is not None:
                lease.release()

    def _taken_over(self, root: StoragePath, url: str | None) -> Lease | None:
        """Wait for the lease and read the configuration again, since the former holder may have reloaded it."""
        if (lease := Lease.wait(root, self._on_standby, self._wait_or_stop, url)) is not None:
            self._configuration.refresh(spark_runs=self._spark is not None)
        return lease

    def _wait_or_stop(self, seconds: float) -> bool:
        """Wait for the given seconds; return True if the service is stopping or the JVM is gone.

        A reload on a standby changes the configuration with which it takes over.
        """
        stopped = self._stop.wait(seconds)
        while self._reloads.take() is not None:
            if isinstance(found := self._configuration.read(), Reload):
                self._configuration.adopt(found)
        if self._spark is not None and not session.jvm_alive(self._spark):
            log.error(EXITING, reason=JVM_GONE)
            return True
        return stopped

    def _control(self) -> Control | None:
        token = self._settings.http.token
        routes = tuple(self._configuration.routes)
        return Control(token.get_secret_value(), routes, self.board) if token is not None else None

    def _become(self, role: Role) -> None:
        if self._pod is not None:
            self._pod.become(role)

    def _on_standby(self, holder: Mapping[str, Any]) -> None:
        log.info("standby: waiting for the lease", **holder)
        self.board.set_standby(", ".join(f"{name} {value}" for name, value in holder.items()) or "another process")

    def _on_lease_lost(self) -> None:
        """Kill the JVM and end at once, without another write to a sink, since another process writes now."""
        log.error("the lease is lost: another process has taken over, or the state path is gone; exiting")
        if self._spark is not None and (pid := session.jvm_pid(self._spark)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(exit_codes.TEMPORARY)

    def _url(self, port: int) -> str | None:
        """Return the service's URL; None if the configuration selects any free port."""
        return f"http://{self._settings.http.host}:{port}" if port else None

    def _with_spark(self, state_path: StateStore, control: Control | None) -> int:
        try:
            self._spark = session.start(self._settings.spark)
        except session.SparkStartError as error:
            log.error(str(error))  # noqa: TRY400
            return exit_codes.CONFIGURATION
        self._take_signals()  # pyspark has replaced the SIGINT handler
        try:
            self._publish_versions(self._spark)
            dead_letters = DeadLetters(self._spark, state_path.dead_letters)
            factory = RouteFactory(
                self._spark, self._settings, state_path, dead_letters, self.metrics, self._once, self._stop
            )
            pool = RoutePool(factory, self._configuration, self._reloads, self._heartbeat, control)
            answering = self._queries.opened(QueryHandler(self._spark, lambda: self._settings, state_path), state_path)
            with status_sampled(self._spark, self.board, pool.spark_stopped):
                with answering:  # queries end before the drain, which needs the cores
                    code = pool.run()
                if code is not None:
                    return code
                self.board.stopping()
                pool.drain(self._signalled_at)
                return exit_codes.DONE
        finally:
            if session.jvm_alive(self._spark):
                self._spark.stop()

    def _publish_versions(self, spark: SparkSession) -> None:
        found = session.versions(spark)
        self.board.runtime(**{name.removesuffix("_version"): version for name, version in found.items()})
        pid = session.jvm_pid(spark)
        if pid is not None:
            self.metrics.watch_jvm(pid)
        log.info("spark started", **found)

    def _liveness_failure(self) -> str | None:
        """Return why the service is not alive; None while it is."""
        if self._spark is not None and not session.jvm_alive(self._spark):
            return JVM_GONE
        return self._heartbeat.failure()

    def _take_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, lambda *_: self._reloads.submit(Command("reload")))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stop.is_set():
            log.warning("second stop signal ignored", signal=number)
        else:
            self._signalled_at = time.monotonic()
        self._stop.set()
