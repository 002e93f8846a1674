"""Handle operator commands on a route's thread, between stream runs, and report their progress."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from cdf_replicator.errors.bounded_read import step_for
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.spark.session import clear_delta_cache, is_spark_exit
from cdf_replicator.state.command_queue import SWITCHES, Command, CommandStatus, answer, complete, write_status

if TYPE_CHECKING:
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.monitoring.lag import Progress
    from cdf_replicator.pipeline.context import Interrupt, RouteContext
    from cdf_replicator.runtime.command_executor import CommandExecutor

CHANGES_STREAM: Final = ("replay", "resync")
_TRIES: Final = 3
"""Attempts per command if an error may be temporary, since an operator waits for the answer."""


@dataclass(slots=True)
class CommandHandler:
    """Handles the commands of one route, one at a time, on the route's thread."""

    context: RouteContext
    executor: CommandExecutor
    interrupt: Interrupt
    _active: Command | None = field(default=None, init=False)
    """The replay or resync that the stream is executing. Other commands are answered at once."""
    _target_version: int | None = field(default=None, init=False)
    """The version that completes the active command: the newest version at its first progress."""
    _note: str = field(default="", init=False)
    _reported: CommandStatus | None = field(default=None, init=False)
    """The newest status of the active command."""
    _executed: dict[str, CommandStatus] = field(default_factory=dict, init=False)
    """The answer to a command that the state path has not taken yet, by the command's id."""
    _unwritten: dict[str, CommandStatus] = field(default_factory=dict, init=False)
    """The newest status of each replay or resync that the state path has not taken yet, by the command's id."""

    def handle(self, command: Command, requested_start_version: int | None) -> bool:
        """Execute a command, or write the state from which the stream then executes it.

        Return False if the route continues as before. A command that can't be executed is answered as failed. Raise ``OSError`` if
        the state path is not writable; the command then stays in the queue, and the caller repeats it. An executed command is then
        only answered. A replay or a resync replaces the run's ``requested_start_version``, also after a restart with the same
        arguments.
        """
        requests = self.context.state_store.requests
        if command.id not in self._executed:
            self.context.report.event(f"{command.kind} requested")
            if command.kind in SWITCHES:
                self._set_paused(command)
                return False
            self._executed[command.id] = self._execute(command, requested_start_version)
        status = self._executed[command.id]
        if status.state == "running":
            complete(requests, command.id)
        else:
            answer(requests, command.id, status)
        del self._executed[command.id]
        if status.state == "failed":
            return False
        self.context.report.restarted("request")
        if status.state == "running":
            self._note = status.message
            self._activate(command)
        return command.kind in CHANGES_STREAM

    def _execute(self, command: Command, requested_start_version: int | None) -> CommandStatus:
        """Return the answer to a command; ``running`` if the stream executes it from the state that was written."""
        changes_stream = command.kind in CHANGES_STREAM
        try:
            selected = self.executor.check(command)
            for attempt in self._retrying(command):
                with attempt:
                    message = self.executor.execute(command, selected)
                    if changes_stream:
                        self.executor.record_start_version(requested_start_version)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the answer reports any error
            why = self._why(error, command)
            self.context.report.warning(f"{command.kind} refused: {why}")
            return CommandStatus("failed", why)
        if changes_stream and command.ending_version is None:
            return CommandStatus("running", message)
        return CommandStatus("done", message, 1.0)

    def _set_paused(self, command: Command) -> None:
        """Pause or resume the route; a running replay continues once the route does."""
        store = self.context.state_store
        store.set_paused(self.context.route.name, paused=command.kind == "pause")
        answer(store.requests, command.id, CommandStatus("done", f"{command.kind}d", 1.0))

    def _activate(self, command: Command) -> None:
        """Report the progress of a replay or resync, whose state is written, from now on."""
        self.answer(CommandStatus("failed", f"a later {command.kind} took its place"))
        self._active, self._target_version, self._reported = command, None, None

    def _why(self, error: BaseException, command: Command | None = None) -> str:
        if is_spark_exit(self.context.spark, error):
            return "Spark has ended, and the service ends. Repeat the command once it has started."
        decision = classify_error(error, route=self.context.route.name)
        if command and command.ending_version is not None and (next_step := step_for(error)):
            return f"{decision.message} {next_step}"
        remedy = decision.remedy if decision.action == "halt" else "Repeat the command once the error is over."
        return f"{decision.message} {remedy}"

    def _retrying(self, command: Command) -> Retrying:
        """Return the retry policy; every command may be executed twice."""

        def may_pass(error: BaseException) -> bool:
            decision = classify_error(error, route=self.context.route.name)
            again = decision.action != "halt" and not self.interrupt.stopping
            if decision.reason == UNKNOWN_SPARK_ERROR:
                clear_delta_cache(self.context.spark)
            if again:
                self.context.report.warning(f"{command.kind} failed, retrying: {decision.message}")
            return again

        return Retrying(
            retry=retry_if_exception(may_pass), stop=stop_after_attempt(_TRIES), wait=wait_fixed(1), reraise=True
        )

    def report_progress(self, progress: Progress) -> None:
        """Report the progress of the running replay or resync."""
        self.write_answers()
        if self._active is None or progress.source_version is None:
            return
        if self._target_version is None:
            self._target_version = progress.source_version
        first, target = progress.start_version, self._target_version
        delivered, total = progress.delivered_version - first + 1, target - first + 1
        ratio = min(1.0, max(0.0, delivered / total)) if total > 0 else 1.0
        self.context.report.replay(first, target, ratio)
        parts = f"version {progress.delivered_version} of {target} delivered", self._note
        self.answer(CommandStatus("done" if ratio >= 1 else "running", ". ".join(filter(None, parts)), ratio))

    def abandon_replay(self, decision: ErrorDecision) -> ErrorDecision | None:
        """Abandon a replay that can't be read and report it; return None if the route must halt."""
        try:
            back = self.executor.abandon_replay(decision)
            if back is not None:
                what = f"{back.message} {back.remedy}"
                self.context.report.warning(what)
                self.answer(CommandStatus("failed", what))
        except Exception as error:  # noqa: BLE001 - the route then halts with the first error
            self.context.report.warning(f"replay not abandoned: {self._why(error)}")
            return None
        return back

    def answer(self, status: CommandStatus) -> None:
        """Answer the running replay or resync, if there is one; an answer that can't be written is written later."""
        active = self._active
        if active is None or status == self._reported:
            return
        self._reported = self._unwritten[active.id] = status
        if status.state != "running":
            self._active = None
        if status.state == "failed":
            self.context.report.replay_failed()
        self.write_answers()

    def write_answers(self) -> None:
        """Write the answers that the state path has not taken yet."""
        with suppress(OSError):  # the next poll tries again
            for command_id, status in list(self._unwritten.items()):
                write_status(self.context.state_store.requests, command_id, status)
                del self._unwritten[command_id]
