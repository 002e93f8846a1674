"""Compute watermarks from the state path.

A target whose own watermark is lower than the computed one has lost acknowledged writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.state import checkpoint
from connectors import Watermark

if TYPE_CHECKING:
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore


def known(state: RouteState, state_path: StateStore) -> Watermark | None:
    """Return the watermark of the last committed micro-batch, or the first watermark of the generation.

    Returns None if the state path records no write of the epoch.
    """
    committed = checkpoint.last_batch(state_path.checkpoint(state.route, state.generation))
    if committed is not None:
        batch, end = committed
        return after(state, batch, end.completed_version)
    if state.query_started:
        return beginning(state)
    if state.target_watermark is not None:
        return Watermark.parse(state.target_watermark)
    return bootstrapped(state) if state.snapshot_loaded else None


def after(state: RouteState, batch: int, version: int) -> Watermark:
    """Return the watermark after a micro-batch with Spark's id ``batch``."""
    return Watermark(state.generation, batch + 1, version)


def bootstrapped(state: RouteState) -> Watermark:
    assert state.pinned_version is not None
    return Watermark(state.generation, 0, state.pinned_version)


def beginning(state: RouteState) -> Watermark:
    """Return the watermark of a generation at the start of its stream."""
    return Watermark(state.generation, 0, (state.start_version or 0) - 1)


def planned_at(state: RouteState, target: Watermark, state_path: StateStore) -> float:
    """Return when Spark planned the last micro-batch of a target's watermark, in epoch seconds; 0 if that is unknown."""
    return checkpoint.planned_at(state_path.checkpoint(state.route, target.generation), target.number - 1)


def replay_from(state: RouteState, target: Watermark) -> int:
    """Return the version from which changes are redelivered to a target whose watermark is ``held``.

    A watermark of an older generation does not cover redeliveries of the present generation. Those start at the
    generation's first version at the latest. The watermark of a restored Delta table has no generation: it may cover those
    redeliveries if its version is above what the sink held when an operator's replay started.
    """
    version = target.version + 1
    older = target.version <= state.held_version if target.generation < 0 else target.generation < state.generation
    return min(version, state.start_version) if older and state.start_version is not None else version
