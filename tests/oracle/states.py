"""A state store that keeps the states that a run saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.state.store import StateStore

if TYPE_CHECKING:
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.storage_path import StoragePath


class RecordedStates(StateStore):
    """Keeps each saved state that follows the feed: two resyncs of one run load two epochs."""

    def __init__(self, root: StoragePath) -> None:
        super().__init__(root)
        self._followed: list[RouteState] = []

    def save(self, state: RouteState) -> None:
        super().save(state)
        if state.phase == "streaming":
            self._followed.append(state)

    def followed(self) -> list[RouteState]:
        """Return the states saved since the last call."""
        found, self._followed = self._followed, []
        return found
