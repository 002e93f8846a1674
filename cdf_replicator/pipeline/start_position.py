"""Decide where a route starts, from its state, the source table's log and the target's claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from cdf_replicator.errors.conditions import RESYNC, RESYNC_CLAUSE
from cdf_replicator.errors.exceptions import RouteHaltError, StateError
from cdf_replicator.pipeline import generation
from cdf_replicator.state import checkpoint, watermark
from cdf_replicator.state.route_state import RouteState
from connectors import Resyncable
from connectors.change import GENERATION_STEP
from connectors.errors import target_restored

if TYPE_CHECKING:
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.store import StateStore
    from connectors import Claim, Sink

log = structlog.get_logger(__name__)


def resolve(
    route: Route,
    source: SourceTable,
    sink: Sink,
    state_path: StateStore,
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
    the state starts early enough to deliver them again.
    """
    state = state_path.load(route.name)
    identity = route.identity(sink.target(route.spec(owner="", epoch=0)))
    wanted = requested_start_version is not None and (state is None or requested_start_version != state.asked)
    if state is None or (wanted and not state.prepared and state.epoch == 1):  # nothing was written yet
        state = _initial_state(route, source, identity, requested_start_version)
    else:
        if not state.prepared:  # nothing was written under the saved definition: the operator may have corrected it
            state = replace(state, identity=identity)
        _verify_identity(state, identity, source)
        version = requested_start_version if wanted else replay_from
        if version is not None and state.prepared and sink.read_claim(state_path.route_spec(route, state)) is None:
            state = generation.refilled(
                route, state, version, source, asked=requested_start_version if wanted else state.asked
            )
        elif wanted and version is not None:
            state = generation.replayed(route, state, version, source, sink, state_path, asked=requested_start_version)
        else:
            state = _resumable(state, source, state_path)
    claim = _verify_claim(route, sink, state, state_path)
    if claim is not None:
        state = _made_up(claim, state, source, state_path)
        state = _new_epoch_after_restore(route, sink, claim, state, state_path, share)
        state = _skip_recorded_txns(claim, state, source, state_path)
    state_path.save(state)
    return state


def replay_requested(route: Route, source: SourceTable, sink: Sink, state_path: StateStore, version: int) -> RouteState:
    """Return the state of an operator's ``replay``; raises ``RouteHaltError`` and then the route continues as before."""
    state = resolve(route, source, sink, state_path, replay_from=version)
    if not state.prepared and state.start_version == version:  # a new epoch or a first start already begins there
        return state
    return generation.replayed(route, state, version, source, sink, state_path, asked=state.asked)


def resync_requested(
    route: Route, source: SourceTable, sink: Sink, state_path: StateStore, *, share: float
) -> RouteState:
    """Return the state of an operator's ``resync``: the next epoch, or the present epoch if its sweep was refused."""
    try:
        state = state_path.load(route.name)
    except StateError:
        state = None
    if state is not None and state.phase == "bootstrapping" and state.loaded:
        identity = route.identity(sink.target(route.spec(owner="", epoch=0)))
        spec = route.spec(owner=state_path.owner, epoch=state.epoch)
        claim = sink.read_claim(spec)
        same = state.identity == identity and state.table_id == source.metadata.table_id
        goes_on = state.pinned_version is not None and source.log.available()[0] <= state.pinned_version + 1
        if same and goes_on and claim and claim.is_of(spec) and claim.epoch == state.epoch:
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
    check_resyncable(route, sink, claim)
    held = max(above, claim.epoch if claim else 0)
    identity = route.identity(sink.target(spec))
    try:
        state = state_path.load(route.name)
    except StateError:  # damaged: the target's claim and the names of the checkpoint folders replace it
        state = None
    if state is None:
        newest = state_path.newest_generation(route.name)
        state = RouteState(route.name, identity, source.metadata.table_id, epoch=held, generation=newest)
    fresh = state.next_epoch(latest, table_id=source.metadata.table_id, above=held, share=share)
    return replace(fresh, identity=identity)


def check_resyncable(route: Route, sink: Sink, claim: Claim | None) -> None:
    """Raise ``RouteHaltError`` if a new epoch would leave orphans in a claimed target, since the sink can't delete them."""
    if claim is None or sink.mode == "append" or isinstance(sink, Resyncable):
        return
    raise RouteHaltError(
        "not_resyncable",
        f"Sink {route.sink} can't delete entries of keys that table {route.source.slug} no longer holds: they would stay in "
        f"the target of route {route.name} ({sink.target(route.spec(owner='', epoch=0))}). Nothing was changed.",
        "Delete that target, its claim included. Then " + RESYNC_CLAUSE.format(route=route.name),
    )


def _resumable(state: RouteState, source: SourceTable, state_path: StateStore) -> RouteState:
    """Return the state, in a new generation if Spark can't continue the old; raises ``RouteHaltError`` if commits are lost.

    On a restart Spark plans the last committed micro-batch again, without running it. Spark fails if log cleanup has
    removed the commits of that batch, although they are delivered. The route uses the readable part of a damaged
    checkpoint and delivers again what it may have delivered since.
    """
    folder = state_path.checkpoint(state.route, state.generation)
    committed, damaged = checkpoint.last_committed(folder), generation.is_damaged(state, folder)
    if committed is None and not damaged:
        return state
    needed = committed.version if committed else state.start_version or 0
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
        return generation.following(state, needed, source, state_path, asked=state.asked)
    began = checkpoint.start_of_last_committed(folder)
    planned_from = began.version if began else state.start_version or 0
    if planned_from >= earliest:
        return state
    return generation.following(state, needed, source, state_path, asked=state.asked)


def _initial_state(
    route: Route, source: SourceTable, identity: dict[str, object], requested_start_version: int | None
) -> RouteState:
    if not source.metadata.change_feed:
        raise RouteHaltError(
            "change_feed_off",
            f"Table {route.source.slug} ({route.source.location}) has no change feed.",
            f"Enable it: cdf-replicator enable {route.source.slug} (or ALTER TABLE delta.`{source.location}` SET "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)). Then restart.",
        )
    version = requested_start_version if requested_start_version is not None else route.source.starting_version
    if version is None and route.source.starting_timestamp is not None:
        version = source.version_at(route.source.starting_timestamp)
    state = RouteState(route.name, identity, source.metadata.table_id, asked=requested_start_version)
    if version is None:
        return replace(state, pinned_version=source.log.available()[1])
    source.check_range(version)
    return replace(state, phase="streaming", start_version=version)


def _verify_identity(state: RouteState, identity: dict[str, object], source: SourceTable) -> None:
    """Check that the definition and the source table are unchanged: another definition would leave orphans."""
    names = {**state.identity, **identity}
    changed = [name for name in names if identity.get(name) != state.identity.get(name)]
    if changed:
        was = "; ".join(f"{name} was {state.identity.get(name)!r}, is {identity.get(name)!r}" for name in changed)
        raise RouteHaltError("route_changed", f"The definition of route {state.route} has changed: {was}.", RESYNC)
    source.newest_of(state.table_id)


def _new_epoch_after_restore(
    route: Route, sink: Sink, claim: Claim, state: RouteState, state_path: StateStore, share: float | None
) -> RouteState:
    """Start a new epoch if the target was already claimed: the state path was restored from an older copy.

    The sweep of the new epoch removes the entries of keys that were deleted since.
    """
    ours = (claim.owner, claim.route or state.route, claim.epoch) == (state_path.owner, state.route, state.epoch)
    if state.prepared or state.phase != "bootstrapping" or state.pinned_version is None or not ours:
        return state
    check_resyncable(route, sink, claim)
    return state.next_epoch(state.pinned_version, table_id=state.table_id, share=share)


def _skip_recorded_txns(claim: Claim, state: RouteState, source: SourceTable, state_path: StateStore) -> RouteState:
    """Start a generation above that of the claim if the target recorded a batch that the state path does not know.

    The state path was then restored from a copy. The target would skip a batch whose number it has recorded.
    """
    planned = checkpoint.newest_batch(state_path.checkpoint(state.route, state.generation))
    # The first batch of an epoch has the number 0, and the service saves the state as prepared before that batch.
    known = state.generation * GENERATION_STEP + (planned + 1 if state.prepared else -1)
    if claim.txn_version <= known:
        return state
    log.warning("the target has more than the state path: delivering again", route=state.route)
    newest, held = claim.txn_version // GENERATION_STEP, source.log.available()[1]
    if state.phase == "bootstrapping":
        return replace(state, generation=newest + 1, replay_until=held)
    version = generation.delivered_version(state, state_path) + 1
    mark = watermark.known(state, state_path)
    return replace(state, generation=newest).next_generation(version, replay_until=held, asked=state.asked, mark=mark)


def _made_up(claim: Claim, state: RouteState, source: SourceTable, state_path: StateStore) -> RouteState:
    """Return a state that delivers the changes that the target has lost again; raises ``RouteHaltError``.

    If the target has received the snapshot only, the state loads the snapshot again.
    """
    if not state.prepared or not (claim.restored or claim.epoch < state.epoch):
        return state
    first, newest = source.log.available()
    if state.pinned_version is not None and not state.streamed:
        log.warning(
            "the target was restored from a copy: loading again", route=state.route, version=state.pinned_version
        )
        again = replace(state, phase="bootstrapping", loaded=False, start_version=None, replay_until=newest)
        return replace(again, generation=state.generation + 1)  # Delta skips a batch with a recorded number
    if claim.watermark is None or claim.epoch < state.epoch:
        raise _restored(state, -1)
    version = watermark.replay_from(state, claim.watermark)
    if not first <= version <= newest + 1:
        raise _restored(state, version - 1)
    at = {"version": version, "watermark": str(claim.watermark)}
    log.warning("the target was restored from a copy: delivering again", route=state.route, **at)
    return replace(
        generation.following(state, version, source, state_path, asked=state.asked),
        mark=str(claim.watermark),
        held_version=-1,
    )


def _restored(state: RouteState, held: int) -> RouteHaltError:
    lost = target_restored(f"The target of route {state.route}", held)
    return RouteHaltError("target_restored", lost.reason, lost.hint)


def _verify_claim(route: Route, sink: Sink, state: RouteState, state_path: StateStore) -> Claim | None:
    """Return the target's claim; raises ``RouteHaltError`` if it is missing or belongs to another route or a later epoch."""
    spec = replace(state_path.route_spec(route, state), watermark=watermark.known(state, state_path))
    claim = sink.read_claim(spec)
    target = f"The target of route {route.name} ({sink.target(spec)})"
    if claim is None:
        if state.prepared:
            raise RouteHaltError("target_gone", f"{target} is gone or was emptied.", RESYNC)
    elif (other := claim.other(spec)) is not None:  # only a resync takes the target over, in a higher epoch
        raise _taken(target, claim, other, route)
    elif claim.epoch > state.epoch:
        raise RouteHaltError(
            "target_claimed",
            f"{target} holds epoch {claim.epoch}, and the state path epoch {state.epoch}: the state path was restored from an "
            "older backup.",
            RESYNC,
        )
    return claim


def _taken(target: str, claim: Claim, other: str, route: Route) -> RouteHaltError:
    """Return the error that names the writer of the target and the operator's options."""
    if claim.route in {"", route.name}:
        return RouteHaltError(
            "target_claimed",
            f"{target} was filled from {other}; its entries would stay, and its newer epochs would win.",
            "Use that state path, or rebuild the target from this state path. " + RESYNC,
        )
    return RouteHaltError(
        "target_claimed",
        f"{target} is filled by {other}: two routes in one target would overwrite and remove each other's rows.",
        f"Give either route another target. If this route is {claim.route} under a new name, restore the old name. If "
        f"{claim.route} no longer exists, take the target over. " + RESYNC,
    )
