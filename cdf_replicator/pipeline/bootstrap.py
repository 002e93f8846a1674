"""Start an epoch: load the pinned snapshot, then delete the entries that it did not write.

    pinned -> loaded, marked -> swept -> streaming

The service records each step before the next step starts. Every step may run twice, since a kill can occur anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.conditions import RESYNC, RESYNC_CLAUSE
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import start_position
from cdf_replicator.state import watermark
from connectors import EntryCount, Resyncable, guard_of
from connectors.change import EPOCH_STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdf_replicator.pipeline.batch_writer import BatchWriter
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore
    from connectors import RouteSpec

PINNED_GONE: Final = ("FILE_NOT_EXIST", "DELTA_UNSUPPORTED_TIME_TRAVEL", "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE")
LAST_EPOCH: Final = 2**63 // EPOCH_STEP - 1
OURS: Final = guard_of(1, 0, upsert=False)
"""The lowest guard that a route can write."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """First load of one route.

    Args:
        load: Writes the snapshot of a state; returns the number of rows for which the sink held a newer entry.
        prepare: Prepares the target.
        mark: Records in the target that it is loaded; raises an error if the target was replaced meanwhile.
        max_removed_share: Largest share of the target's entries that a sweep may delete; the operator can replace it.
    """

    source: SourceTable
    delivering: BatchWriter
    state_path: StateStore
    max_removed_share: float
    load: Callable[[RouteState], int]
    prepare: Callable[[RouteState], RouteState]
    mark: Callable[[RouteState], None]

    def run(self, state: RouteState) -> RouteState:
        """Run the remaining steps; raises ``RouteHaltError`` before a sweep that would remove too much."""
        state = self.prepare(state) if state.loaded else self._load(state)
        if state.epoch > 1:
            held = self._count(state)
            if held.highest >= guard_of(state.epoch + 1, 0, upsert=False):
                state = self._reload_in_higher_epoch(state, held)
                held = self._count(state)
            self._sweep(state, held)
        self.mark(state)
        assert state.pinned_version is not None
        return self._save(replace(state, phase="streaming", start_version=state.pinned_version + 1))

    def _load(self, state: RouteState) -> RouteState:
        try:
            state = self.prepare(state)
            newer = self.load(state)
        except Exception as error:
            gone = any(name in str(error) for name in PINNED_GONE)
            if not gone or self.source.log.latest_version() == state.pinned_version:
                raise
            # A newer pin needs a new epoch: its sweep removes the keys that were deleted between the two versions.
            self.delivering.report.warning(
                f"version {state.pinned_version} can no longer be read: the bootstrap restarts"
            )
            state = self._next_epoch(above=0, share=state.max_removed_share)
            newer = self.load(state)
        if newer:
            return self._reload_in_higher_epoch(state, self._count(state))
        return self._marked(state)

    def _reload_in_higher_epoch(self, state: RouteState, held: EntryCount) -> RouteState:
        """Load again in an epoch above every entry that another writer left in the target; raises ``RouteHaltError``."""
        found = held.highest // EPOCH_STEP
        if not state.epoch < found + 1 <= LAST_EPOCH:
            self._halt_foreign_guards(held)
        self.delivering.report.warning(
            f"the target holds entries with guards up to {held.highest}, above epoch {state.epoch}, from another writer; "
            f"loading again in epoch {found + 1}"
        )
        share = self.max_removed_share if state.max_removed_share is None else state.max_removed_share
        state = self._next_epoch(above=found, share=share)
        if self.load(state):
            self._halt_foreign_guards(held)
        return self._marked(state)

    def _marked(self, state: RouteState) -> RouteState:
        """Record the load in the target, then in the state: the absence of a recorded load in the target is a loss."""
        self.mark(state)
        return self._save(replace(state, loaded=True))

    def _halt_foreign_guards(self, held: EntryCount) -> None:
        route = self.delivering.route
        raise RouteHaltError(
            "foreign_guards",
            f"The target of route {route.name} holds entries or tombstones of another writer that no change of this route "
            f"can replace (highest guard found: {held.highest}).",
            "Remove them, or the whole target. " + RESYNC,
        )

    def _next_epoch(self, *, above: int, share: float | None) -> RouteState:
        route, sink = self.delivering.route, self.delivering.sink
        state = start_position.new_epoch(route, self.source, sink, self.state_path, above=above, share=share)
        return self.prepare(self._save(state))

    def _count(self, state: RouteState) -> EntryCount:
        """Count the entries that a sweep would remove; if a first load restarted, only those of other writers."""
        below = OURS if state.max_removed_share is None else guard_of(state.epoch, 0, upsert=False)
        sink = self.delivering.sink
        return sink.count_entries(self._spec(state), below) if isinstance(sink, Resyncable) else EntryCount()

    def _sweep(self, state: RouteState, held: EntryCount) -> None:
        share = self.max_removed_share if state.max_removed_share is None else state.max_removed_share
        if held.orphans > share * held.total:
            raise RouteHaltError(
                "too_many_orphans",
                f"The sweep that ends the resync of route {state.route} would remove {held.orphans} of the target's "
                f"{held.total} entries ({held.orphans / held.total:.1%}), more than {share:.1%}; version "
                f"{state.pinned_version} is loaded, and nothing was removed.",
                "If they may go, " + RESYNC_CLAUSE + " --yes (it goes on with the sweep)",
            )
        sink = self.delivering.sink
        if isinstance(sink, Resyncable):
            swept = sink.delete_orphans(self._spec(state), guard_of(state.epoch, 0, upsert=False))
            self.delivering.report.event(f"swept {swept} orphans of older epochs")
        self.delivering.rejections.close_letters_before_epoch(state.epoch)

    def _spec(self, state: RouteState) -> RouteSpec:
        return replace(
            self.state_path.route_spec(self.delivering.route, state), watermark=watermark.bootstrapped(state)
        )

    def _save(self, state: RouteState) -> RouteState:
        self.state_path.save(state)
        return state
