"""Decide where a route starts, from its state, the source table's log and the target's claim."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from cdf_replicator.errors.conditions import RESYNC, RESYNC_RENAMED
from cdf_replicator.errors.exceptions import RouteHaltError, StateError
from cdf_replicator.pipeline import generation, target_claim
from cdf_replicator.route import ENTRY_NAMES
from cdf_replicator.source import continuity
from cdf_replicator.state import checkpoint
from cdf_replicator.state.route_state import RouteState

if TYPE_CHECKING:
    from cdf_replicator.delivery.dead_letters import DeadLetters
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.checkpoint import Offset
    from cdf_replicator.state.storage_path import StoragePath
    from cdf_replicator.state.store import StateStore
    from connectors import Sink

log = structlog.get_logger(__name__)


def resolve(
    route: Route,
    source: SourceTable,
    sink: Sink,
    state_path: StateStore,
    dead_letters: DeadLetters,
    *,
    requested_start_version: int | None = None,
    replay_from: int | None = None,
    share: float | None = None,
) -> RouteState:
    """Return the state from which the route starts, after saving it; raises ``RouteHaltError``.

    ``requested_start_version`` is the ``--starting-version`` of this run. A value equal to that of the last run has no effect, so that
    fixed arguments of a container never prevent a restart. ``replay_from`` is the version from which an operator's
    command delivers again. Both start a new epoch if the target is gone or was emptied. ``share`` is the largest share
    of the target's entries that a sweep may remove if the target was claimed before. If the target has lost changes,
    the state starts early enough to deliver them again, and dead letters whose redrive it may have lost are open again.
    """
    state = state_path.load(route.name)
    identity = route.identity(sink.target(route.spec(owner="", epoch=0)))
    wanted = requested_start_version is not None and (
        state is None or requested_start_version != state.requested_start_version
    )
    if state is None or (wanted and not state.target_prepared and state.epoch == 1):  # nothing was written yet
        state = _initial_state(route, source, identity, requested_start_version)
    else:
        if not state.target_prepared:  # nothing was written: the operator may have corrected the definition
            state = replace(state, identity=identity)
        state = _with_entry_names(state, identity)
        _verify_identity(state, identity, source)
        _verify_history(state, source, state_path)
        version = requested_start_version if wanted else replay_from
        if wanted:
            state = replace(state, requested_start_version=requested_start_version)
        spec = state_path.route_spec(route, state)
        if version is not None and state.target_prepared and sink.read_claim(spec) is None:
            state = generation.refilled(route, state, version, source)
        elif wanted and version is not None and state.phase == "streaming":
            state = generation.replayed(route, state, version, source, sink, state_path)
        else:
            if wanted:
                hint = f"Run: cdf-replicator replay {route.name} --starting-version {version}, after the bootstrap"
                log.warning(
                    "the bootstrap continues: --starting-version has no effect", route=route.name, next_step=hint
                )
            state = _resumable(state, source, state_path)
    claim = target_claim.verify(route, sink, state, state_path)
    if claim is not None:
        state = target_claim.apply(route, sink, claim, state, source, state_path, dead_letters, share)
    state_path.save(state)
    return state


def replay_requested(
    route: Route,
    source: SourceTable,
    sink: Sink,
    state_path: StateStore,
    dead_letters: DeadLetters,
    version: int,
    *,
    share: float,
) -> RouteState:
    """Return the state of an operator's ``replay``; raises ``RouteHaltError`` and then the route continues as before.

    For ``share``, see ``resolve``.
    """
    state = resolve(route, source, sink, state_path, dead_letters, replay_from=version, share=share)
    # A new epoch or a first start already begins there.
    if not state.target_prepared and state.start_version == version:
        return state
    return generation.replayed(route, state, version, source, sink, state_path)


def resync_requested(
    route: Route, source: SourceTable, sink: Sink, state_path: StateStore, *, share: float
) -> RouteState:
    """Return the state of an operator's ``resync``: the next epoch, or the present epoch if its sweep may now remove more."""
    state = None
    with suppress(StateError):
        state = state_path.load(route.name)
    if state is not None and state.phase == "bootstrapping" and state.snapshot_loaded:
        spec = route.spec(owner=state_path.owner, epoch=state.epoch)
        identity = route.identity(sink.target(spec))
        claim = sink.read_claim(spec)
        same = state.identity == identity and state.table_id == source.metadata.table_id
        readable = state.pinned_version is not None and source.log.available()[0] <= state.pinned_version + 1
        raised = state.max_removed_share is None or share > state.max_removed_share
        if raised and same and readable and claim and claim.is_of(spec) and claim.epoch == state.epoch:
            return replace(state, max_removed_share=share)
    return new_epoch(route, source, sink, state_path, share=share)


def new_epoch(
    route: Route,
    source: SourceTable,
    sink: Sink,
    state_path: StateStore,
    *,
    above: int = 0,
    share: float | None = None,
) -> RouteState:
    """Return the next epoch, above every epoch in the target, from the newest snapshot and the present definition.

    ``above`` is an epoch that the target's entries have and its claim does not show. For ``share``, see
    ``RouteState.max_removed_share``. Raises ``RouteHaltError`` if the sink can't delete the orphans of older epochs.
    """
    latest = source.log.available()[1]
    spec = route.spec(owner=state_path.owner, epoch=0)
    claim = sink.read_claim(spec)
    target_claim.check_resyncable(route, sink, claim)
    claimed = max(above, claim.epoch if claim else 0)
    identity = route.identity(sink.target(spec))
    state = None
    with suppress(StateError):  # damaged: the target's claim and the names of the checkpoint folders replace it
        state = state_path.load(route.name)
    if state is None:
        newest = state_path.newest_generation(route.name)
        state = RouteState(route.name, identity, source.metadata.table_id, epoch=claimed, generation=newest)
    fresh = state.next_epoch(latest, table_id=source.metadata.table_id, above=claimed, share=share)
    return replace(fresh, identity=identity).having_read(latest, source.log.committed_at(latest))


def _resumable(state: RouteState, source: SourceTable, state_path: StateStore) -> RouteState:
    """Return the state, in a new generation if Spark can't continue the old; raises ``RouteHaltError`` if commits are lost.

    On a restart Spark plans the last committed micro-batch again, without running it. Spark fails if log cleanup has
    removed the commits of that batch, although they are delivered. The batch may end within a commit, which is needed unless the
    state records that the batch ends it. The route uses the readable part of a damaged checkpoint and delivers again what it
    may have delivered since.
    """
    folder = state_path.checkpoint(state.route, state.generation)
    committed, damaged = checkpoint.last_committed(folder), generation.is_damaged(state, folder)
    if committed is None and not damaged:
        return state
    needed = committed.version if committed else state.start_version or 0
    if committed and str(committed) == state.completed_offset:
        needed = committed.version + 1
    earliest = source.log.available()[0]
    if needed < earliest:
        raise RouteHaltError(
            "history_lost",
            f"Route {state.route} still needs version {needed} of table {source.source.slug}; its log now begins at version "
            f"{earliest}.",
            RESYNC,
        )
    if damaged:
        log.warning("checkpoint is damaged: delivering again", route=state.route, path=str(folder), version=needed)
        return generation.following(state, needed, source, state_path)
    assert committed is not None  # it is absent in a damaged checkpoint alone
    began = checkpoint.start_of_last_committed(folder)
    planned_from = began.version if began else state.start_version or 0
    if planned_from < earliest:
        return generation.following(state, needed, source, state_path)
    if _needs_new_schema_log(source, folder, planned_from, committed):
        return generation.following(state, source.log.first_unread(committed), source, state_path)
    return state


def _needs_new_schema_log(source: SourceTable, folder: StoragePath, planned_from: int, end: Offset) -> bool:
    """Return whether column mapping was enabled after a micro-batch that reads over another change of the metadata.

    Delta begins its schema log with the last micro-batch, which Spark plans again, and fails if the schema changes in it
    (``DELTA_STREAMING_SCHEMA_LOG_INIT_FAILED_INCOMPATIBLE_METADATA``). A new generation has no such micro-batch.
    """
    if not source.metadata.column_mapping or any((folder / checkpoint.SCHEMA_LOG).glob("*")):
        return False
    return any(source.log.metadata_at(version) for version in range(planned_from + 1, end.version + 1))


def _initial_state(
    route: Route, source: SourceTable, identity: dict[str, object], requested_start_version: int | None
) -> RouteState:
    if not source.metadata.change_feed:
        raise RouteHaltError(
            "change_feed_off",
            f"Table {route.source.slug} ({route.source.location}) has no change feed.",
            f"Enable it: cdf-replicator enable {route.source.slug} (or ALTER TABLE delta.`{source.location}` SET "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)). Then run: cdf-replicator resume {route}",
        )
    version = requested_start_version if requested_start_version is not None else route.source.starting_version
    if version is None and route.source.starting_timestamp is not None:
        version = source.version_at(route.source.starting_timestamp)
    state = RouteState(route.name, identity, source.metadata.table_id, requested_start_version=requested_start_version)
    state = replace(state, first_generation=state.generation)
    if version is None:
        latest = source.log.available()[1]
        return replace(state, pinned_version=latest).having_read(latest, source.log.committed_at(latest))
    source.check_range(version)
    return replace(state, phase="streaming", start_version=version)


def _with_entry_names(state: RouteState, identity: dict[str, object]) -> RouteState:
    """Return the state with the present names of entries if an older release, which did not record them, wrote it."""
    names = {name: text for name, text in identity.items() if name == ENTRY_NAMES}
    return replace(state, identity={**names, **state.identity})


def _verify_identity(state: RouteState, identity: dict[str, object], source: SourceTable) -> None:
    """Check that the definition and the source table are unchanged: another definition would leave orphans."""
    changed = [name for name in {**state.identity, **identity} if identity.get(name) != state.identity.get(name)]
    if changed:
        was = "; ".join(f"{name} was {state.identity.get(name)!r}, is {identity.get(name)!r}" for name in changed)
        remedy = RESYNC_RENAMED if changed == [ENTRY_NAMES] else RESYNC
        raise RouteHaltError("route_changed", f"The definition of route {state.route} has changed: {was}.", remedy)
    source.newest_of(state.table_id)


def _verify_history(state: RouteState, source: SourceTable, state_path: StateStore) -> None:
    """Check that the table still has the last commit that the route has read; raises ``RouteHaltError``."""
    continuity.verify_last_read(source, state)
    folder = state_path.checkpoint(state.route, state.generation)
    planned = checkpoint.last_planned(folder)
    if planned is None:
        version, read_at = (state.start_version or 0) - 1, checkpoint.first_started_at(folder)
    else:
        version, read_at = planned[0].started_version, planned[1]
    if state.read_version is None or version > state.read_version:
        continuity.verify_read(source, version, read_at)
