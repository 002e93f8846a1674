"""The generations of a route's stream: how far one is, what a replay begins, and where it goes back to if it can't be read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from cdf_replicator.errors.classifier import judge
from cdf_replicator.errors.conditions import RESYNC, UNFORESEEN, UNREADABLE
from cdf_replicator.errors.exceptions import HaltError
from cdf_replicator.state import checkpoint, watermark
from cdf_replicator.transform import change_frame

if TYPE_CHECKING:
    from pathlib import Path

    from cdf_replicator.errors.exceptions import Verdict
    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.spark.hadoop_path import RemotePath
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StatePath
    from connectors import Sink


def delivered_version(state: RouteState, state_path: StatePath) -> int:
    """Return the commit version up to which this generation has delivered everything; -1 if nothing surely is."""
    committed = checkpoint.last_committed(state_path.checkpoint(state.route, state.generation))
    return committed.complete if committed else (state.start_version or 0) - 1


def is_damaged(state: RouteState, folder: Path | RemotePath) -> bool:
    """Return whether Spark would fail on the checkpoint, or begin from nothing where it had been further."""
    return state.streamed and not checkpoint.is_whole(folder)


def following(
    state: RouteState, version: int, source: SourceTable, state_path: StatePath, *, asked: int | None
) -> RouteState:
    """Return the next generation, from a version on; it knows up to which version an append sink may hold the rows."""
    folder = state_path.checkpoint(state.route, state.generation)
    held = state.pinned_version
    if planned := checkpoint.last_planned(folder):
        held = planned.touched
    if is_damaged(state, folder):
        held = source.log.available()[1]
    mark = watermark.known(state, state_path)
    return state.next_generation(version, replay_until=-1 if held is None else held, asked=asked, mark=mark)


def replayed(
    route: Route,
    state: RouteState,
    version: int,
    source: SourceTable,
    sink: Sink,
    state_path: StatePath,
    *,
    asked: int | None,
) -> RouteState:
    """Return the generation of a replay that an operator wants; raises ``HaltError``, and then nothing was changed.

    It remembers what was delivered before, so that the route can go back to there if the replay can't be read after all.
    """
    if state.phase == "bootstrapping":
        raise HaltError("bad_request", "The bootstrap is not finished.", "Wait for it, then ask again.")
    source.check_range(version)
    held = max(state.held_version, delivered_version(state, state_path))
    claim = sink.claim(replace(state_path.spec(route, state), mark=watermark.known(state, state_path)))
    if claim is not None and claim.restored:  # an older copy of the target was brought back
        held = -1 if claim.mark is None else min(held, claim.mark.version)
    if version > held + 1:
        raise HaltError(
            "bad_request",
            f"Versions {held + 1} to {version - 1} may not be delivered yet: to deliver from version {version} on would leave "
            "them out.",
            f"Ask for version {held + 1} or an earlier one.",
        )
    check_readable(route, source, version)
    return replace(following(state, version, source, state_path, asked=asked), held_version=held)


def refilled(route: Route, state: RouteState, version: int, source: SourceTable, *, asked: int | None) -> RouteState:
    """Return the next epoch, of the changes from a version on alone: for a target that is gone or was emptied.

    Raises ``HaltError``, and then nothing was changed.
    """
    source.check_range(version)
    check_readable(route, source, version)
    epoch = state.next_epoch(version, table_id=state.table_id)
    return replace(epoch, phase="streaming", pinned_version=None, start_version=version, asked=asked)


def what_is_missing(state: RouteState) -> str | None:
    """Say what a target that is about to be filled anew will lack; None where it lacks nothing."""
    if state.prepared or state.phase == "bootstrapping" or state.epoch == 1 or not state.start_version:
        return None
    return (
        f"The target was gone or emptied, and is filled with the changes from version {state.start_version} on, in epoch "
        f"{state.epoch}: keys that have not changed since then will be missing. To have them all, run: cdf-replicator resync "
        f"{state.route}"
    )


def check_readable(route: Route, source: SourceTable, first: int) -> None:
    """See that the changes from a version to the newest can be read and shaped; raises ``HaltError``.

    Opens every file of the range and reads its footer alone. What the route names has to be there at the first version: a
    stream reads the later ones with the schemas they have.
    """
    latest = source.log.available()[1]
    try:
        change_frame.change_frame(source.changes(first, first), route, epoch=1)
        try:
            source.changes(first, latest).select().count()
        except PySparkException as error:
            if "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE" not in str(error):  # one read has one schema, a stream many
                raise
            source.changes(first, first).select().count()
    except Exception as error:
        verdict = judge(error, route=route.name)
        if verdict.reason not in UNREADABLE:
            raise
        raise HaltError(
            "bad_request",
            f"Versions {first} to {latest} of table {route.source.slug} can't be read: {verdict.what}",
            "Nothing was changed. Ask for a later version.",
        ) from error


def given_up(route: Route, sink: Sink, state_path: StatePath, verdict: Verdict) -> Verdict | None:
    """Go back to where a route was before a replay that can't be read; returns what to say, None if the route has to halt.

    It then goes on in a generation of its own: numbers of micro-batches that a sink has seen don't come again.
    """
    state = state_path.load(route.name) if verdict.reason in (*UNREADABLE, UNFORESEEN) else None
    if state is None or state.phase == "bootstrapping":
        return None
    delivered = delivered_version(state, state_path)
    if state.held_version <= delivered:  # no replay, or one that has passed it
        return None
    known = watermark.known(state, state_path)
    spec = replace(state_path.spec(route, state), mark=known)
    claim = sink.claim(spec)
    if claim is None or claim.restored or (claim.owner, claim.epoch) != (spec.owner, spec.epoch):
        return None
    begun = checkpoint.newest_batch(state_path.checkpoint(state.route, state.generation)) >= 0
    version, until = state.held_version + 1, state.replay_until
    state_path.save(state.next_generation(version, replay_until=until, asked=state.asked, mark=known))
    next_step = f"The replay is given up, and the route goes on after version {state.held_version}, where it was."
    if begun and sink.mode == "upsert":
        next_step += (
            f" It may have delivered a part of versions {state.start_version} and later: a key that was deleted since then, longer "
            "ago than the sink keeps its deletes, may be back. To be sure, " + RESYNC[0].lower() + RESYNC[1:]
        )
    return replace(verdict, next_step=next_step.replace("{route}", route.name))
