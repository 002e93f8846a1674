"""Poll the command queue and dispatch commands to route threads, and reloads to the main loop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.pipeline.context import Interrupt
from cdf_replicator.state import command_queue

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from cdf_replicator.runtime.reload import ReloadRequests
    from cdf_replicator.runtime.route_runner import RouteRunner
    from cdf_replicator.state.storage_path import StoragePath
    from cdf_replicator.state.store import StateStore

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.5
REMOTE_LOOK_SECONDS: Final = 5.0
"""Each poll of an object store is a billed request."""
TIDY_SECONDS: Final = 3600


class Inbox(Interrupt):
    """The commands of one route, oldest first, which other threads submit and the route's thread takes."""

    def submit(self, command: command_queue.Command) -> None:
        self._commands.append(command)
        self._wake.set()

    def wake(self) -> None:
        """End a wait, so that the route's thread reads the stop flag."""
        self._wake.set()

    def take(self) -> command_queue.Command | None:
        """Return the oldest command; None if there is none."""
        return self._commands.popleft() if self._commands else None

    def put_back(self, command: command_queue.Command) -> None:
        """Return a command that could not be executed yet."""
        self._commands.appendleft(command)

    @property
    def has_command(self) -> bool:
        return bool(self._commands)

    def wait_stop(self, seconds: float) -> None:
        """Wait for the given time; only the stop of the service ends the wait."""
        self._stop.wait(seconds)


@dataclass(slots=True)
class CommandDispatcher:
    """Dispatches commands from a thread of its own, so that a store without answer does not fail the liveness probe.

    A reload changes ``runners``. A command that a stopped runner has not executed is dispatched again. A command for a route
    without a runner is answered as failed. With ``once`` it stays in the queue instead, since such a run may have a part of
    the routes: the next start of the service executes it.
    """

    runners: Mapping[str, RouteRunner]
    state_store: StateStore
    reloads: ReloadRequests
    once: bool = False
    _given: dict[str, RouteRunner | ReloadRequests] = field(default_factory=dict, init=False)
    """The receiver of each command in the queue, by the command's id."""
    _began: bool = field(default=False, init=False)
    _tidied: float = field(default=-math.inf, init=False)

    def run(self, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS if self.state_store.root.is_local else REMOTE_LOOK_SECONDS):
            self.poll()

    def poll(self) -> None:
        """Dispatch new commands.

        It logs every error instead of raising it, since the end of the thread would leave all later commands unanswered.
        """
        folder = self.state_store.requests
        try:
            if not self._began:
                command_queue.answer_interrupted(folder)
                self._began = True
            if time.monotonic() - self._tidied > TIDY_SECONDS:
                command_queue.purge_expired(folder)
                self._tidied = time.monotonic()
            self._answer_reloads(folder)
            pending = command_queue.pending(folder)
            for request in pending:
                self._dispatch(folder, request)
            for command_id in self._given.keys() - {request.id for request in pending}:
                if not command_queue.is_waiting(folder, command_id):  # a file may be unreadable for a moment
                    del self._given[command_id]
        except OSError as error:
            log.warning("command queue not readable", reason=error.strerror)
        except Exception:
            log.exception("command queue not readable")

    def _dispatch(self, folder: StoragePath, request: command_queue.Command) -> None:
        receiver = self.reloads if request.kind == "reload" else self.runners.get(request.route)
        if receiver is None and self.once:
            return
        if receiver is None:
            refused = command_queue.CommandStatus("failed", f"this instance does not run route {request.route}")
            command_queue.answer(folder, request.id, refused)
        elif receiver is not self._given.get(request.id) and command_queue.is_waiting(folder, request.id):
            command_queue.accept(folder, request)
            receiver.submit(request)
            self._given[request.id] = receiver

    def _answer_reloads(self, folder: StoragePath) -> None:
        while self.reloads.answers:
            command, status = self.reloads.answers[0]
            if command.id in self._given:  # a reload by a signal has no reader
                command_queue.answer(folder, command.id, status)
            self.reloads.answers.popleft()
