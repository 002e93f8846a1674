"""Compute the generations of a route's stream: their position and its end, the start and the abandonment of a replay."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from cdf_replicator.errors.bounded_read import step_for
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import RESYNC_CLAUSE, UNKNOWN_SPARK_ERROR, UNREADABLE, USE_RANGE_OR_RESYNC
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.source import schema_evolution
from cdf_replicator.source.schema import TableSchema
from cdf_replicator.state import checkpoint, watermark
from cdf_replicator.transform import change_frame

if TYPE_CHECKING:
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.monitoring.progress import ProgressTracker
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.storage_path import StoragePath
    from cdf_replicator.state.store import StateStore
    from connectors import Sink

GIVEN_UP: Final = UNREADABLE | {UNKNOWN_SPARK_ERROR, "table_replaced", "unknown_change", "start_out_of_range"}
"""Reasons for which a replay is given up. If they concern later versions too, the route halts at its former position."""
IDLE_SECONDS: Final = 600.0
"""How long a query has nothing to read before its state records that; a write is a paid request in an object store."""


@dataclass(slots=True)
class EndRecord:
    """Records in the state that the offset of a query ends its commit, so that a restart does not need that commit.

    Spark does not record it: the offset of an update is a file of the commit.
    """

    state_path: StateStore
    state: RouteState
    _idle_since: float | None = field(default=None, init=False)

    def update(self, tracker: ProgressTracker, *, ends: bool = False) -> None:
        """Record the offset if the query has had nothing to read for long, or has nothing to read when it ends."""
        offset = tracker.offset if tracker.has_read_all else None
        if offset is None or offset.index < 0 or str(offset) == self.state.completed_offset:
            self._idle_since = None
            return
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if ends or now - self._idle_since >= IDLE_SECONDS:
            with suppress(OSError):  # the state path does not answer: a later call repeats the write
                state = replace(self.state, completed_offset=str(offset))
                self.state_path.save(state)
                self.state = state


def delivered_version(state: RouteState, state_path: StateStore) -> int:
    """Return the commit version up to which this generation has certainly delivered everything; -1 if there is none."""
    committed = checkpoint.last_committed(state_path.checkpoint(state.route, state.generation))
    return committed.completed_version if committed else (state.start_version or 0) - 1


def is_damaged(state: RouteState, folder: StoragePath) -> bool:
    """Return whether Spark would fail on the checkpoint, or silently restart the generation from its start version."""
    return state.query_started and not checkpoint.is_intact(folder)


def following(state: RouteState, version: int, source: SourceTable, state_path: StateStore) -> RouteState:
    """Return the next generation, from ``version`` on, with the highest version that an append sink may hold."""
    folder = state_path.checkpoint(state.route, state.generation)
    may_hold = state.pinned_version
    if planned := checkpoint.last_offset(folder):
        may_hold = planned.started_version
    if is_damaged(state, folder):
        may_hold = source.log.available()[1]
    known = watermark.known(state, state_path)
    further = state.next_generation(version, replay_end_version=-1 if may_hold is None else may_hold, watermark=known)
    read = version - 1 if planned is None else max(version - 1, planned.started_version)
    return further.having_read(read, source.log.committed_at(read))


def check_bootstrapped(state: RouteState) -> None:
    """Raise ``RouteHaltError`` before the bootstrap is done. It never is if its sweep waits for an operator."""
    if state.phase != "bootstrapping":
        return
    next_step = "Wait for it, then repeat the command."
    if state.snapshot_loaded and state.epoch > 1:
        next_step = (
            "The snapshot is loaded, and orphans are not deleted yet. If the route is halted because they are too many, and they "
            f"may go, run: cdf-replicator resync {state.route} --yes. Otherwise wait. Then repeat the command."
        )
    raise RouteHaltError("bad_request", "The bootstrap is not finished.", next_step)


def replayed(
    route: Route,
    state: RouteState,
    version: int,
    source: SourceTable,
    sink: Sink,
    state_path: StateStore,
) -> RouteState:
    """Return the generation of an operator's replay; raises ``RouteHaltError`` and then changes nothing.

    The state keeps the version that was delivered before. The route returns to it if the replay is unreadable.
    """
    check_bootstrapped(state)
    source.check_range(version, USE_RANGE_OR_RESYNC)
    reached = delivered_version(state, state_path)
    delivered = max(state.held_version, reached)
    if sink.mode == "upsert":
        _check_unfinished(state, version, reached)
    claim = sink.read_claim(replace(state_path.route_spec(route, state), watermark=watermark.known(state, state_path)))
    if claim is not None and claim.restored:  # the target was restored from an older copy
        delivered = -1 if claim.watermark is None else min(delivered, claim.watermark.version)
    if version > delivered + 1:
        raise RouteHaltError(
            "bad_request",
            f"Versions {delivered + 1} to {version - 1} may not be delivered yet: a start at version {version} would leave them out.",
            f"Start at version {delivered + 1} or at an earlier version.",
        )
    check_readable(route, source, version, state.table_schema)
    return replace(following(state, version, source, state_path), held_version=delivered)


def _check_unfinished(state: RouteState, version: int, reached: int) -> None:
    """Raise ``RouteHaltError`` if a replay would leave out deletes that an unfinished replay has yet to deliver again.

    The unfinished replay may have written a key again whose tombstone the sink no longer keeps.
    """
    if reached < state.held_version and version > reached + 1:
        raise RouteHaltError(
            "bad_request",
            f"The replay from version {state.start_version} is not finished: it has reached version {reached} of "
            f"{state.held_version}. A start at version {version} would leave out versions {reached + 1} to {version - 1}, "
            "and a key that they delete could stay in the target.",
            f"Start at version {reached + 1} or at an earlier version, or wait until the replay is finished. To deliver the "
            "current rows only, " + RESYNC_CLAUSE.format(route=state.route),
        )


def refilled(route: Route, state: RouteState, version: int, source: SourceTable) -> RouteState:
    """Return the next epoch of a target that is gone or was emptied, with the changes from ``version`` on alone.

    Raises ``RouteHaltError`` and then changes nothing.
    """
    source.check_range(version, USE_RANGE_OR_RESYNC)
    check_readable(route, source, version)
    epoch = state.next_epoch(version, table_id=state.table_id)
    return replace(epoch, phase="streaming", pinned_version=None, start_version=version, snapshot_version=None)


def what_is_missing(state: RouteState) -> str | None:
    """Return the warning about the keys that a refilled target will lack; None if it will lack none."""
    if state.target_prepared or state.phase == "bootstrapping" or state.epoch == 1 or not state.start_version:
        return None
    return (
        f"The target was gone or emptied, and is filled with the changes from version {state.start_version} on, in epoch "
        f"{state.epoch}: keys that have not changed since then will be missing. To restore them, run: cdf-replicator resync "
        f"{state.route}"
    )


def check_readable(route: Route, source: SourceTable, first: int, schema: dict[str, Any] | None = None) -> None:
    """Check that the changes from version ``first`` to the newest version are readable; raises ``RouteHaltError``.

    Spark opens every file of the range and reads its footer alone. The columns that the route names must exist at the
    first version. The stream reads later versions with their own schemas. ``schema`` is the schema that the route delivers,
    which policy ``ignore`` keeps.
    """
    latest = source.log.available()[1]
    try:
        feed = source.changes(first, first)
        if schema and route.schema_changes == "ignore":
            _, feed = schema_evolution.reconcile(route, source, TableSchema.from_json(schema), feed, first, None)
        change_frame.change_frame(feed, route, epoch=1)
        try:
            source.changes(first, latest).select().count()
        except PySparkException as error:
            if "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE" not in str(error):  # a batch read has one schema, a stream several
                raise
            source.changes(first, first).select().count()
    except Exception as error:
        decision = classify_error(error, route=route.name)
        if decision.reason not in UNREADABLE:
            raise
        raise RouteHaltError(
            "bad_request",
            f"Versions {first} to {latest} of table {route.source.slug} can't be read: {decision.message}",
            f"Nothing was changed. {step_for(error) or 'Start at a later version.'} If changes before it were not delivered, {RESYNC_CLAUSE}",
        ) from error


def given_up(route: Route, sink: Sink, state_path: StateStore, decision: ErrorDecision) -> ErrorDecision | None:
    """Return a route to its position before an unreadable replay; returns the decision, None if the route must halt.

    The route continues in a new generation, so that the numbers of micro-batches that a sink has recorded never repeat.
    """
    state = state_path.load(route.name) if decision.reason in GIVEN_UP else None
    if state is None or state.phase == "bootstrapping":
        return None
    delivered = delivered_version(state, state_path)
    if state.held_version <= delivered:  # there is no replay, or it has passed that version
        return None
    known = watermark.known(state, state_path)
    spec = replace(state_path.route_spec(route, state), watermark=known)
    claim = sink.read_claim(spec)
    if claim is None or claim.restored or (claim.owner, claim.epoch) != (spec.owner, spec.epoch):
        return None
    has_batch = checkpoint.newest_batch(state_path.checkpoint(state.route, state.generation)) >= 0
    version, until = state.held_version + 1, state.replay_end_version
    state_path.save(state.next_generation(version, replay_end_version=until, watermark=known))
    next_step = f"The replay is given up, and the route continues after version {state.held_version}, as before."
    if has_batch and sink.mode == "upsert":
        next_step += (
            f" It may have delivered a part of the changes from version {state.start_version} on. A key that was deleted "
            "since then, longer ago than the sink keeps tombstones, may have returned. "
            "To be sure, " + RESYNC_CLAUSE
        )
    return replace(decision, remedy=next_step.replace("{route}", route.name))
