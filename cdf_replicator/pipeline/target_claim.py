"""Compare a route's state with the claim of its target: the owner, the epoch and the watermark that the target stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.errors.conditions import RESYNC, RESYNC_CLAUSE
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import generation
from cdf_replicator.source import continuity
from cdf_replicator.state import checkpoint, watermark
from connectors import Resyncable
from connectors.change import GENERATION_STEP
from connectors.errors import target_restored

if TYPE_CHECKING:
    from cdf_replicator.delivery.dead_letters import DeadLetters
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore
    from connectors import Claim, Sink

log = structlog.get_logger(__name__)

REWRITE: Final = (
    "To write again what a redrive or a repair wrote since that copy, run: cdf-replicator dead-letters redrive {route}, and "
    "cdf-replicator verify {route} --repair"
)

REPLAYED: Final = (
    "The target received a replay that this copy of the state path does not hold. If that replay was not finished, a deleted "
    "key may have returned. " + RESYNC
)


def verify(route: Route, sink: Sink, state: RouteState, state_path: StateStore) -> Claim | None:
    """Return the target's claim; raises ``RouteHaltError`` if it is missing or belongs to another route or a later epoch."""
    spec = replace(state_path.route_spec(route, state), watermark=watermark.known(state, state_path))
    claim = sink.read_claim(spec)
    target = f"The target of route {route.name} ({sink.target(spec)})"
    if claim is None:
        if state.target_prepared:
            raise RouteHaltError("target_gone", f"{target} is gone or was emptied.", RESYNC)
    elif (other := claim.other(spec)) is not None:  # only a resync takes the target over, in a higher epoch
        raise _claimed_by_other(target, claim, other, route)
    elif claim.epoch > state.epoch:
        raise RouteHaltError(
            "target_claimed",
            f"{target} holds epoch {claim.epoch}, and the state path epoch {state.epoch}: the state path was restored from an "
            "older backup.",
            RESYNC,
        )
    return claim


def apply(
    route: Route,
    sink: Sink,
    claim: Claim,
    state: RouteState,
    source: SourceTable,
    state_path: StateStore,
    dead_letters: DeadLetters,
    share: float | None,
) -> RouteState:
    """Return the state that continues from what the target holds; raises ``RouteHaltError``.

    For ``share``, see ``RouteState.max_removed_share``.
    """
    state = _redelivering_lost(claim, sink, state, source, state_path, dead_letters)
    if state.pinned_version is not None and _is_older(claim, state, state_path):
        check_resyncable(route, sink, claim)
        state = _loading_again(sink, state, state.pinned_version, source, share)
    return _skip_recorded_txns(claim, sink, state, source, state_path)


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


def _redelivering_lost(
    claim: Claim, sink: Sink, state: RouteState, source: SourceTable, state_path: StateStore, dead_letters: DeadLetters
) -> RouteState:
    """Return a state that delivers the changes that the target has lost again; raises ``RouteHaltError``.

    If the target has received the snapshot only, the state loads the snapshot again. Otherwise the dead letters that were
    redriven since are opened again, since no change of the feed repeats the write of a redrive or a repair. No such write
    reaches an append sink.
    """
    if not state.target_prepared or not (claim.restored or claim.epoch < state.epoch):
        return state
    first, newest = source.log.available()
    if state.pinned_version is not None and not state.query_started:
        log.warning(
            "the target was restored from a copy: loading again", route=state.route, version=state.pinned_version
        )
        again = replace(
            state, phase="bootstrapping", snapshot_loaded=False, start_version=None, replay_end_version=newest
        )
        return replace(again, generation=state.generation + 1)  # Delta skips a batch with a recorded number
    if claim.watermark is None or claim.epoch < state.epoch:
        raise _restored(state, -1)
    version = watermark.replay_from(state, claim.watermark)
    if not first <= version <= newest + 1:
        raise _restored(state, version - 1)
    at: dict[str, object] = {"version": version, "watermark": str(claim.watermark)}
    if sink.mode == "upsert":
        since = watermark.planned_at(state, claim.watermark, state_path) - continuity.DRIVER_CLOCK_SECONDS
        at["dead_letters_opened_again"] = dead_letters.open_lost(state.route, state.epoch, since)
        at["next_step"] = REWRITE.format(route=state.route)
    log.warning("the target was restored from a copy: delivering again", route=state.route, **at)
    return replace(
        generation.following(state, version, source, state_path),
        target_watermark=str(claim.watermark),
        held_version=-1,
    )


def _is_older(claim: Claim, state: RouteState, state_path: StateStore) -> bool:
    """Return whether the target was claimed before the route had a state: the state path was restored from an older copy.

    A new epoch is needed: its sweep removes the entries of keys that were deleted before the version that is pinned now. A
    pinned version that the state path holds needs none, also after a kill between the claim and the next write of the state:
    the stream delivers every later delete.
    """
    ours = (claim.owner, claim.route or state.route, claim.epoch) == (state_path.owner, state.route, state.epoch)
    return ours and state.phase == "bootstrapping" and state_path.load(state.route) is None


def _loading_again(sink: Sink, state: RouteState, pinned: int, source: SourceTable, share: float | None) -> RouteState:
    """Return the next epoch with the same snapshot. An append sink may hold the snapshot and every commit since."""
    return replace(
        state.next_epoch(pinned, table_id=state.table_id, share=share),
        replay_end_version=source.log.available()[1] if sink.mode == "append" else -1,
        first_generation=state.snapshot_generation,
        read_version=state.read_version,
        read_modified_at=state.read_modified_at,
    )


def _skip_recorded_txns(
    claim: Claim, sink: Sink, state: RouteState, source: SourceTable, state_path: StateStore
) -> RouteState:
    """Start a generation above that of the claim if the target recorded a batch that the state path does not know.

    The state path was then restored from a copy. The target would skip a batch whose number it has recorded. A replay that
    the copy does not hold may have written a key again, and its delete may follow the version that the target has reached.
    """
    planned = checkpoint.newest_batch(state_path.checkpoint(state.route, state.generation))
    # The first batch of an epoch has the number 0, and the service saves the state as prepared before that batch.
    known = state.generation * GENERATION_STEP + (planned + 1 if state.target_prepared else -1)
    if claim.txn_version <= known:
        return state
    recorded, latest = claim.txn_version // GENERATION_STEP, source.log.available()[1]
    version = generation.delivered_version(state, state_path) + 1
    at: dict[str, str] = {}
    if state.phase == "streaming" and recorded > state.generation and sink.mode == "upsert":
        if claim.watermark is None:
            at = {"next_step": REPLAYED.format(route=state.route)}
        else:
            version = min(version, claim.watermark.version + 1)
    log.warning("the target has more than the state path: delivering again", route=state.route, **at)
    if state.phase == "bootstrapping":
        return replace(state, generation=recorded + 1, replay_end_version=latest)
    delivered = watermark.known(state, state_path)
    return replace(state, generation=recorded).next_generation(version, replay_end_version=latest, watermark=delivered)


def _claimed_by_other(target: str, claim: Claim, other: str, route: Route) -> RouteHaltError:
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


def _restored(state: RouteState, version: int) -> RouteHaltError:
    lost = target_restored(f"The target of route {state.route}", version)
    return RouteHaltError("target_restored", lost.reason, lost.hint)
