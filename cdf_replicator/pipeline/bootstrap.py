"""Start an epoch: load the pinned snapshot, then delete the entries that it did not write.

    pinned -> loaded, watermark stored -> swept -> streaming

The service records each step before the next step starts. Every step may run twice, since a kill can occur anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.conditions import RESYNC, RESYNC_CLAUSE
from cdf_replicator.errors.exceptions import EnrichmentError, RouteHaltError
from cdf_replicator.pipeline import start_position
from cdf_replicator.state import watermark
from connectors import EntryCount, Resyncable, guard_of
from connectors.change import EPOCH_STEP

if TYPE_CHECKING:
    from cdf_replicator.pipeline.target import RouteTarget
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState
    from connectors import RouteSpec

PINNED_GONE: Final = ("FILE_NOT_EXIST", "DELTA_UNSUPPORTED_TIME_TRAVEL", "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE")
LAST_EPOCH: Final = 2**63 // EPOCH_STEP - 1
OURS: Final = guard_of(1, 0, upsert=False)
"""The lowest guard that a route can write."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """First load of one route.

    Args:
        source: The route's source table.
        target: The route's target.
        max_removed_share: Largest share of the target's entries that a sweep may delete; the operator can replace it.
    """

    source: SourceTable
    target: RouteTarget
    max_removed_share: float

    def run(self, state: RouteState) -> RouteState:
        """Run the remaining steps; raises ``RouteHaltError`` before a sweep that would remove too much."""
        state = self.target.prepare_loaded(state) if state.snapshot_loaded else self._load(state)
        if state.epoch > 1:
            entries = self._count(state)
            if entries.highest >= guard_of(state.epoch + 1, 0, upsert=False):
                state = self._reload_in_higher_epoch(state, entries)
                entries = self._count(state)
            self._sweep(state, entries)
        self._save_watermark(state)
        assert state.pinned_version is not None
        return self._save(replace(state, phase="streaming", start_version=state.pinned_version + 1))

    def _load(self, state: RouteState) -> RouteState:
        try:
            state = self.target.prepare_snapshot(state, self.source)
            newer = self.target.write_snapshot(state, self.source)
        except EnrichmentError:  # a joined table is read at its newest version, never at the pinned version
            raise
        except Exception as error:
            gone = any(name in str(error) for name in PINNED_GONE)
            if not gone or self.source.log.latest_version() == state.pinned_version:
                raise
            # A newer pin needs a new epoch: its sweep removes the keys that were deleted between the two versions.
            self.target.writer.report.warning(
                f"version {state.pinned_version} can no longer be read: the bootstrap restarts"
            )
            state = self._next_epoch(above=0, share=state.max_removed_share)
            newer = self.target.write_snapshot(state, self.source)
        if newer:
            return self._reload_in_higher_epoch(state, self._count(state))
        return self._loaded(state)

    def _reload_in_higher_epoch(self, state: RouteState, entries: EntryCount) -> RouteState:
        """Load again in an epoch above every entry that another writer left in the target; raises ``RouteHaltError``."""
        found = entries.highest // EPOCH_STEP
        if not state.epoch < found + 1 <= LAST_EPOCH:
            self._halt_foreign_guards(entries)
        self.target.writer.report.warning(
            f"the target holds entries with guards up to {entries.highest}, above epoch {state.epoch}, from another writer; "
            f"loading again in epoch {found + 1}"
        )
        share = self.max_removed_share if state.max_removed_share is None else state.max_removed_share
        state = self._next_epoch(above=found, share=share)
        if self.target.write_snapshot(state, self.source):
            self._halt_foreign_guards(entries)
        return self._loaded(state)

    def _loaded(self, state: RouteState) -> RouteState:
        """Record the load in the target, then in the state: the absence of a recorded load in the target is a loss."""
        self._save_watermark(state)
        return self._save(replace(state, snapshot_loaded=True))

    def _halt_foreign_guards(self, entries: EntryCount) -> None:
        route = self.target.route
        raise RouteHaltError(
            "foreign_guards",
            f"The target of route {route.name} holds entries or tombstones of another writer that no change of this route "
            f"can replace (highest guard found: {entries.highest}).",
            "Remove them, or the whole target. " + RESYNC,
        )

    def _next_epoch(self, *, above: int, share: float | None) -> RouteState:
        route, sink = self.target.route, self.target.sink
        state = start_position.new_epoch(route, self.source, sink, self.target.state_store, above=above, share=share)
        return self.target.prepare_snapshot(self._save(state), self.source)

    def _count(self, state: RouteState) -> EntryCount:
        """Count the entries that a sweep would remove; if a first load restarted, only those of other writers."""
        below = OURS if state.max_removed_share is None else guard_of(state.epoch, 0, upsert=False)
        sink = self.target.sink
        return sink.count_entries(self._spec(state), below) if isinstance(sink, Resyncable) else EntryCount()

    def _sweep(self, state: RouteState, entries: EntryCount) -> None:
        share = self.max_removed_share if state.max_removed_share is None else state.max_removed_share
        if entries.orphans > share * entries.total:
            raise RouteHaltError(
                "too_many_orphans",
                f"The sweep that ends the resync of route {state.route} would remove {entries.orphans} of the target's "
                f"{entries.total} entries ({entries.orphans / entries.total:.1%}), more than {share:.1%}; version "
                f"{state.pinned_version} is loaded, and nothing was removed.",
                "If they may go, " + RESYNC_CLAUSE + " --yes (the route continues with the deletion of orphans)",
            )
        sink = self.target.sink
        if isinstance(sink, Resyncable):
            swept = sink.delete_orphans(self._spec(state), guard_of(state.epoch, 0, upsert=False))
            self.target.writer.report.event(f"swept {swept} orphans of older epochs")
        self.target.writer.rejections.close_letters_before_epoch(state.epoch)

    def _spec(self, state: RouteState) -> RouteSpec:
        spec = self.target.state_store.route_spec(self.target.route, state)
        return replace(spec, watermark=watermark.bootstrapped(state))

    def _save_watermark(self, state: RouteState) -> None:
        """Record in the target that it is loaded; raises an error if the target was replaced meanwhile."""
        self.target.save_watermark(self.target.spec(state), watermark.bootstrapped(state))

    def _save(self, state: RouteState) -> RouteState:
        self.target.state_store.save(state)
        return state
