"""Execute one operator command on a route: write the state for the stream, or deliver the rows at once."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.delivery.dead_letters import id_filter
from cdf_replicator.errors.conditions import USE_RANGE_OR_RESYNC
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import generation, start_position
from cdf_replicator.runtime.redrive import redrive, repair
from cdf_replicator.source.table import SourceTable
from cdf_replicator.transform import change_frame

if TYPE_CHECKING:
    from cdf_replicator.delivery.dead_letters import DeadLetters
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.pipeline.context import RouteContext
    from cdf_replicator.pipeline.target import TargetFactory
    from cdf_replicator.state.command_queue import Command
    from cdf_replicator.state.route_state import RouteState
    from connectors import Sink


ON_LETTERS: Final = ("redrive", "discard")


@dataclass(frozen=True, slots=True)
class CommandExecutor:
    """Executes the commands of one route that change its target. Every command may be executed twice."""

    context: RouteContext
    targets: TargetFactory
    dead_letters: DeadLetters

    @property
    def _share(self) -> float:
        """Largest share of the target's entries that a sweep may remove, if the command does not set it."""
        return self.context.settings.delivery.max_removed_share

    def check(self, command: Command) -> int:
        """Return the number of open dead letters that a command selects.

        Raise ``RouteHaltError`` if the command can't be executed.
        """
        if command.kind != "discard" and self.context.state_store.is_paused(self.context.route.name):
            raise RouteHaltError(
                "bad_request",
                f"Route {self.context.route.name} is paused.",
                f"Run: cdf-replicator resume {self.context.route.name}",
            )
        return self._count_letters(command) if command.kind in ON_LETTERS else 0

    def execute(self, command: Command, selected: int) -> str:
        """Execute a command; ``selected`` is the number of its open dead letters.

        Returns what was done, or for a replay or resync, which the stream executes from the state that is now written,
        a warning for the operator, which may be empty.
        """
        if command.kind in ON_LETTERS and not selected:
            return "0 open (closed already)"
        if command.kind == "discard":  # also works if the source table is gone
            return self._discard(command, selected)
        with closing(self.targets.new_sink()) as sink:
            source = SourceTable(self.context.spark, self.context.route.source)
            write = self._write_present
            execute = {"replay": self._replay, "resync": self._resync, "redrive": write, "repair": write}
            return execute[command.kind](command, source, sink)

    def record_start_version(self, requested: int | None) -> None:
        """Record that a command has replaced the ``--starting-version`` of this run, which a restart then does not repeat."""
        if requested is None:
            return
        store = self.context.state_store
        state = store.load(self.context.route.name)
        if state is not None:
            store.save(replace(state, requested_start_version=requested))

    def abandon_replay(self, decision: ErrorDecision) -> ErrorDecision | None:
        """Return the route to its position before an unreadable replay; returns None if the route must halt."""
        with closing(self.targets.new_sink()) as sink:
            return generation.given_up(self.context.route, sink, self.context.state_store, decision)

    def _resync(self, command: Command, source: SourceTable, sink: Sink) -> str:
        share = self._share if command.max_removed_share is None else command.max_removed_share
        state = start_position.resync_requested(self.context.route, source, sink, self.context.state_store, share=share)
        self.context.state_store.save(state)
        return ""

    def _replay(self, command: Command, source: SourceTable, sink: Sink) -> str:
        """Start the next generation, or deliver a closed range of versions into an append sink."""
        first = command.starting_version
        assert first is not None  # the command requires it
        if command.ending_version is not None:
            return self._deliver_range(first, command.ending_version, source, sink)
        store = self.context.state_store
        state = start_position.replay_requested(
            self.context.route, source, sink, store, self.dead_letters, first, share=self._share
        )
        store.save(state)
        return generation.what_is_missing(state) or ""

    def _deliver_range(self, first: int, last: int, source: SourceTable, sink: Sink) -> str:
        state = self._streaming_state(source, sink)
        source.check_range(first, USE_RANGE_OR_RESYNC)
        if sink.mode == "upsert":
            raise RouteHaltError(
                "bad_request",
                "In a sink that keeps one entry per key, a replay with an end would bring back keys that were deleted later.",
                "Replay without --ending-version.",
            )
        source.check_range(last, USE_RANGE_OR_RESYNC)
        # The sink will already hold the versions of the range that the stream has not delivered yet.
        state = replace(state, replay_end_version=max(state.replay_end_version, last))
        self.context.state_store.save(state)
        target = self.targets.target(sink)
        state, rows = target.reconcile(state, source, source.changes(first, last), first)
        state = target.prepare(state, rows.schema)
        frame = change_frame.change_frame(rows, self.context.route, epoch=state.epoch)
        target.writer.write(frame, replace(target.batch(state, 0), may_exist=True))
        return f"versions {first} to {last} delivered"

    def _write_present(self, command: Command, source: SourceTable, sink: Sink) -> str:
        """Write the current rows of some keys outside the stream's sequence, while no stream runs."""
        state = self._streaming_state(source, sink)
        version = source.log.available()[1]
        first = generation.delivered_version(state, self.context.state_store) + 1
        target = self.targets.target(sink)
        # apply the schema rules of the stream: it may halt or leave out a column
        _, snapshot = target.reconcile(state, source, source.snapshot(version), first)
        state = target.prepare(state, snapshot.schema)
        # The command may be repeated when the table has other rows.
        batch = replace(target.batch(state, 0), request=f"{command.id}:{version}")
        at = source.log.committed_at(version) or time.time()
        rows = change_frame.snapshot_frame(
            snapshot, self.context.route, epoch=state.epoch, version=version, committed_at=at
        )
        if command.kind == "redrive":
            done = redrive(rows, version, target.writer, batch, command.letters)
        else:
            done = repair(rows, version, target.writer, batch, command.identities)
        self.context.report.event(f"{command.kind}: {done}")
        return done

    def _streaming_state(self, source: SourceTable, sink: Sink) -> RouteState:
        """Return the state of the route; raise ``RouteHaltError`` before its bootstrap is done."""
        state = start_position.resolve(
            self.context.route, source, sink, self.context.state_store, self.dead_letters, share=self._share
        )
        generation.check_bootstrapped(state)
        return state

    def _count_letters(self, command: Command) -> int:
        """Return the number of open dead letters that a command selects.

        It is zero if all of them are closed, as after a kill before the answer to the command. Raise ``RouteHaltError`` if
        the command selects no dead letter at all.
        """
        is_open, selected = self.dead_letters.count(self.context.route.name, id_filter(command.letters))
        if not selected:
            named = f" of {', '.join(command.letters)}" if command.letters else ""
            raise RouteHaltError(
                "bad_request",
                f"Route {self.context.route.name} has no open dead letter{named}.",
                "See: cdf-replicator dead-letters list",
            )
        return is_open

    def _discard(self, command: Command, selected: int) -> str:
        self.dead_letters.close(self.context.route.name, id_filter(command.letters), "discarded")
        self.context.report.dead_letters(self.dead_letters.open(self.context.route.name).count())
        self.context.report.event(f"{selected} dead letters discarded")
        return f"{selected} discarded"
