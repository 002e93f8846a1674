"""Where a route stands: the content of its ``route.json`` under the state path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from connectors import Watermark


@dataclass(frozen=True)
class RouteState:
    """Where a route stands.

    ``identity``: what the route was defined as (rule 16). ``phase``: a bootstrap loads the snapshot at
    ``pinned_version``; then the stream starts at ``start_version``. ``asked``: the last ``--starting-version`` a
    ``run`` was given. ``replay_until``: up to this commit version an append sink may hold the rows already.
    ``prepared``: the sink's target was made for this epoch, so its absence is a loss. ``streamed``: the generation's stream was
    started, so the absence of its checkpoint is one. ``loaded``: the snapshot is in
    the sink as a whole. ``max_removed_share``: how much of the target the sweep of this epoch may remove; None after a
    bootstrap, which nobody asked to remove anything.
    ``table_schema``: the source table's columns as the route delivers them (``schema.TableSchema``). ``held_version``: up to it
    everything was in the sink when an operator's replay began; -1 before the first one of the epoch. ``mark``: the watermark
    that the target had when a replay began, as text.
    """

    route: str
    identity: dict[str, Any]
    table_id: str
    epoch: int = 1
    generation: int = 0
    phase: Literal["bootstrapping", "streaming"] = "bootstrapping"
    pinned_version: int | None = None
    start_version: int | None = None
    asked: int | None = None
    replay_until: int = -1
    prepared: bool = False
    streamed: bool = False
    loaded: bool = False
    max_removed_share: float | None = None
    table_schema: dict[str, Any] | None = None
    held_version: int = -1
    mark: str | None = None

    def next_generation(
        self, start_version: int, *, replay_until: int, asked: int | None, mark: Watermark | None = None
    ) -> RouteState:
        """A replay: the same epoch, delivered again from ``start_version`` on. ``mark``: see ``watermark.known``."""
        return replace(
            self,
            generation=self.generation + 1,
            phase="streaming",
            pinned_version=None,
            start_version=start_version,
            replay_until=max(replay_until, self.replay_until),
            asked=asked,
            streamed=False,
            mark=None if mark is None else str(mark),
        )

    def next_epoch(
        self, pinned_version: int, *, table_id: str, above: int = 0, share: float | None = None
    ) -> RouteState:
        """A resync: the target is rebuilt from the snapshot at ``pinned_version`` under a higher epoch."""
        return replace(
            self,
            table_id=table_id,
            epoch=max(self.epoch, above) + 1,
            generation=self.generation + 1,
            phase="bootstrapping",
            pinned_version=pinned_version,
            start_version=None,
            replay_until=-1,
            prepared=False,
            streamed=False,
            loaded=False,
            max_removed_share=share,
            table_schema=None,
            held_version=-1,
            mark=None,
        )
