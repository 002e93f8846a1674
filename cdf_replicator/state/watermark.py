"""What a target surely had, as the state path knows it: what it shows later must reach that, or it has lost something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.state import checkpoint
from connectors import Watermark

if TYPE_CHECKING:
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StatePath


def known(state: RouteState, state_path: StatePath) -> Watermark | None:
    """Return the watermark of the last micro-batch that Spark committed, or that with which the generation began.

    None: nothing was written of the epoch that the state path could know of.
    """
    committed = checkpoint.last_batch(state_path.checkpoint(state.route, state.generation))
    if committed is not None:
        batch, end = committed
        return after(state, batch, end.complete)
    if state.streamed:
        return beginning(state)
    if state.mark is not None:
        return Watermark.parse(state.mark)
    return bootstrapped(state) if state.loaded else None


def after(state: RouteState, batch: int, version: int) -> Watermark:
    """Return that of a micro-batch, by Spark's number of it."""
    return Watermark(state.generation, batch + 1, version)


def bootstrapped(state: RouteState) -> Watermark:
    assert state.pinned_version is not None
    return Watermark(state.generation, 0, state.pinned_version)


def beginning(state: RouteState) -> Watermark:
    """Return that of a generation whose stream begins."""
    return Watermark(state.generation, 0, (state.start_version or 0) - 1)


def replay_from(state: RouteState, held: Watermark) -> int:
    """Return the version from which everything is delivered again to a target that has ``held`` only.

    Of an older generation than the route's it says nothing of what the present one has delivered again, all of it from its
    first version on.
    """
    version = held.version + 1
    older = 0 <= held.generation < state.generation
    return min(version, state.start_version) if older and state.start_version is not None else version
