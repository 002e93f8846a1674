"""Submit commands to the lease holder, or execute them locally if the lease is free, and show their progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.prompt import Confirm

from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.runtime import exit_codes
from cdf_replicator.state import command_queue, lease
from cdf_replicator.state.lease import Lease, LeaseHeldError
from cdf_replicator.state.store import StateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.loader import StateSettings
    from cdf_replicator.settings.models import Spark
    from cdf_replicator.state.storage_path import StoragePath

log = structlog.get_logger(__name__)

USAGE: Final = 2
"""Exit code of a command that was not confirmed."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that a run handles."""
POLL_SECONDS: Final = 0.3
LINE_SECONDS: Final = 5.0


def confirm(question: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        log.error("confirmation required, but stdin is not a terminal: add --yes")
        return False
    return Confirm.ask(question, console=Console(stderr=True), default=False)


def execute(settings: Settings, commands: Sequence[command_queue.Command], question: str, *, yes: bool) -> int:
    """Submit the commands if the operator confirms ``question``, and return the exit code.

    This process executes them if the lease is free, else it waits for the lease holder.
    """
    if not confirm(question, yes=yes):
        return USAGE
    from cdf_replicator.runtime import supervisor
    from cdf_replicator.runtime.reload import Selection

    routes = {command.route: settings.routes[command.route] for command in commands}
    own = replace(settings, routes=routes, http=settings.http.model_copy(update={"bind_port": 0, "token": None}))

    def run_once(_: StateStore) -> int:
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            return supervisor.Supervisor(own, Selection(), once=True).run()
        finally:  # the wait for a lease holder ends with Ctrl-C
            for number, handler in handlers.items():
                signal.signal(number, handler)

    return _submit(settings, commands, run_once)


def set_paused(settings: Settings, commands: Sequence[command_queue.Command]) -> int:
    """Pause or resume routes: through the lease holder, or by writing the state path if the lease is free."""

    def alone(state_path: StateStore) -> int:
        lock = Lease.acquire(state_path.root)
        try:
            for command in commands:
                state_path.set_paused(command.route, paused=command.kind == "pause")
                done = command_queue.CommandStatus("done", f"{command.kind}d: no service is running", 1.0)
                command_queue.supersede(state_path.requests, command)
                command_queue.answer(state_path.requests, command.id, done)
        finally:
            lock.release()
        return exit_codes.DONE

    return _submit(replace(settings, spark=_without_executors(settings.spark)), commands, alone)


def reload(settings: StateSettings, *, dry_run: bool) -> int:
    """Let the running service read its configuration again, print what it did and return the exit code."""

    def submit(root: StoragePath) -> int:
        holder = lease.holder(root)
        if holder is None:
            log.error("no service is running, so there is nothing to reload", state_path=settings.state_path)
            return exit_codes.TEMPORARY
        folder, command = StateStore(root).requests, command_queue.Command("reload", dry_run=dry_run)
        command_queue.enqueue(folder, command)
        code = wait_answered(root, holder, folder, [command])
        outcome = command_queue.read_status(folder, command.id)
        command_queue.delete(folder, command.id)
        if code or outcome is None:
            log.error("the service ended before it answered; it reads its configuration at its next start")
            return exit_codes.TEMPORARY
        done = outcome.state == "done"
        (sys.stdout if done else sys.stderr).write(f"{outcome.message}\n")
        return exit_codes.DONE if done else outcome.exit_code

    return _in_state_path(replace(settings, spark=_without_executors(settings.spark)), submit)


def _without_executors(spark: Spark) -> Spark:
    """Return the settings of a Spark in this process alone, for a command that reads and writes the state path only.

    With the service's master it would request executors, beside the service in its own container.
    """
    return spark.model_copy(update={"master": "local[1]"})


def _submit(
    settings: Settings, commands: Sequence[command_queue.Command], run_locally: Callable[[StateStore], int]
) -> int:
    """Submit the commands and return the exit code.

    ``run_locally`` is called if the lease is free. It raises ``LeaseHeldError`` if another process holds the lease.
    """
    return _in_state_path(settings, lambda root: _followed(StateStore.open(root), commands, run_locally))


def _in_state_path(settings: Settings | StateSettings, submit: Callable[[StoragePath], int]) -> int:
    """Call ``submit`` with the folder of the state path, log why the path can't be used, and return the exit code."""
    from cdf_replicator.spark import SparkStartError  # a command that only reads starts without pyspark
    from cdf_replicator.state.location import state_folder

    try:
        return submit(state_folder(settings))
    except (StateError, SparkStartError) as error:
        log.error(str(error))  # noqa: TRY400 - the message is complete
        return exit_codes.CONFIGURATION
    except OSError as error:
        next_step = "Repeat the command once it can be; the service may still execute this one."
        log.error("CDF_STATE_PATH can't be used", reason=error.strerror, next_step=next_step)  # noqa: TRY400
        return exit_codes.TEMPORARY


def _followed(
    state_path: StateStore, commands: Sequence[command_queue.Command], run_locally: Callable[[StateStore], int]
) -> int:
    """Return 0 if every command is done, also if a stream that ran after it in this process has failed."""
    folder = state_path.requests
    for command in commands:
        command_queue.enqueue(folder, command)
    following = threading.Event()
    follower = threading.Thread(target=_show, args=(folder, commands, following), daemon=True)
    follower.start()
    try:
        code = run_locally(state_path)
    except LeaseHeldError as error:
        log.info("the running service executes the command; interrupting this process does not stop it")
        code = wait_answered(state_path.root, error.holder, folder, commands)
    finally:
        following.set()
        follower.join()
    outcomes = {command.route: command_queue.read_status(folder, command.id) for command in commands}
    for command in commands:
        outcome = outcomes[command.route]
        if outcome is None or outcome.state != "running":  # the next lease holder finds an accepted command
            command_queue.delete(folder, command.id)
    failed = {route: outcome for route, outcome in outcomes.items() if outcome is None or outcome.state != "done"}
    for route, outcome in failed.items():
        log.error("command not executed", route=route, why=_why(outcome))
    return (code or exit_codes.FAILED) if failed else exit_codes.DONE


def wait_answered(
    root: StoragePath,
    holder: Mapping[str, Any],
    folder: StoragePath,
    commands: Sequence[command_queue.Command],
) -> int:
    """Wait until every command is answered or the lease holder has changed or stopped; return the exit code."""
    watched = lease.HeartbeatMonitor(root)
    while any(
        (found := command_queue.read_status(folder, command.id)) is None or found.state == "running"
        for command in commands
    ):
        present, _ = watched.poll()  # an empty dict is a holder that can't be read
        if present is None or (present and holder and present != holder) or watched.expired:
            return exit_codes.TEMPORARY
        time.sleep(POLL_SECONDS)
    return exit_codes.DONE


def _why(outcome: command_queue.CommandStatus | None) -> str:
    if outcome is None:
        return "no service accepted it; repeat the command"
    if outcome.state == "running":
        return f"interrupted ({outcome.message}); the service continues it after a restart, see its status"
    return outcome.message


def _read_status(folder: StoragePath, request_id: str) -> command_queue.CommandStatus | None:
    with suppress(OSError):  # the waiting thread reports a store that does not answer
        return command_queue.read_status(folder, request_id)
    return None


def _show(folder: StoragePath, commands: Sequence[command_queue.Command], done: threading.Event) -> None:
    """Show a progress bar per route on a terminal, else log a line every few seconds."""
    if not sys.stderr.isatty():
        logged: dict[str, str] = {}
        while not done.wait(LINE_SECONDS):
            for command in commands:
                found = _read_status(folder, command.id)
                if found is not None and logged.get(command.id) != found.message:
                    logged[command.id] = found.message
                    log.info("progress", route=command.route, percent=round(found.ratio * 100), what=found.message)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {command.id: bars.add_task(command.route, total=1.0, what="waiting") for command in commands}
        while True:
            ended = done.wait(POLL_SECONDS)
            for request_id, task in tasks.items():
                found = _read_status(folder, request_id)
                if found is not None:
                    bars.update(task, completed=found.ratio, what=found.message)
            if ended:
                return
