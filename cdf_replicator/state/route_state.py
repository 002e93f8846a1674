"""The state of a route: the content of its ``route.json`` under the state path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from connectors import Watermark


@dataclass(frozen=True)
class RouteState:
    """The state of a route.

    Args:
        route: name of the route.
        identity: the route's definition, which may not change under a checkpoint.
        table_id: Delta's id of the source table.
        epoch: identity of the target's content.
        generation: number of the checkpoint.
        phase: ``bootstrapping`` loads the snapshot at ``pinned_version``; ``streaming`` starts at ``start_version``.
        pinned_version: version of the snapshot.
        start_version: first version of the stream.
        requested_start_version: the last ``--starting-version`` of a ``run``.
        replay_end_version: highest commit version that an append sink may already hold.
        target_prepared: whether the sink's target was created for this epoch, so that its absence is a loss.
        query_started: whether the generation's stream was started, so that the absence of its checkpoint is a loss.
        snapshot_loaded: whether the sink holds the whole snapshot.
        max_removed_share: share of the target that the sweep of this epoch may remove; None after a bootstrap, for which no
            operator confirmed removals.
        table_schema: the source table's columns as the route delivers them (``schema.TableSchema``).
        held_version: highest version that the sink held in full when an operator's replay started; -1 before the first
            replay of the epoch.
        target_watermark: the target's watermark, as text, when a replay started.
        first_generation: generation in which the epoch began; None in a file of an older service.
        read_version: a commit that the route has read, in this generation or before; None if none is known.
        read_modified_at: modification time of that commit's file in epoch seconds.
        completed_offset: offset of this generation, as text, that is known to end its commit.
        snapshot_version: version of the snapshot with which a resync began the epoch; None for any other epoch, and in a file
            of an older service.

    """

    route: str
    identity: dict[str, Any]
    table_id: str
    epoch: int = 1
    generation: int = 0
    phase: Literal["bootstrapping", "streaming"] = "bootstrapping"
    pinned_version: int | None = None
    start_version: int | None = None
    requested_start_version: int | None = None
    replay_end_version: int = -1
    target_prepared: bool = False
    query_started: bool = False
    snapshot_loaded: bool = False
    max_removed_share: float | None = None
    table_schema: dict[str, Any] | None = None
    held_version: int = -1
    target_watermark: str | None = None
    first_generation: int | None = None
    read_version: int | None = None
    read_modified_at: float | None = None
    completed_offset: str | None = None
    snapshot_version: int | None = None

    @property
    def snapshot_generation(self) -> int:
        """Return the first generation that may have written the epoch's snapshot."""
        return self.generation if self.first_generation is None else self.first_generation

    def having_read(self, version: int, modified_at: float | None) -> RouteState:
        """Return the state with a commit that the route has read, unless a later one or no time of its file is known."""
        if modified_at is None or (self.read_version is not None and version < self.read_version):
            return self
        return replace(self, read_version=version, read_modified_at=modified_at)

    def next_generation(
        self, start_version: int, *, replay_end_version: int, watermark: Watermark | None = None
    ) -> RouteState:
        """Return the state of a replay: the same epoch, delivered again from ``start_version`` on.

        For ``watermark``, see ``watermark.known``.
        """
        return replace(
            self,
            generation=self.generation + 1,
            phase="streaming",
            pinned_version=None,
            start_version=start_version,
            replay_end_version=max(replay_end_version, self.replay_end_version),
            query_started=False,
            target_watermark=None if watermark is None else str(watermark),
            completed_offset=None,
        )

    def next_epoch(
        self, pinned_version: int, *, table_id: str, above: int = 0, share: float | None = None
    ) -> RouteState:
        """Return the state of a resync: a rebuild from the snapshot at ``pinned_version`` under a higher epoch."""
        return replace(
            self,
            table_id=table_id,
            epoch=max(self.epoch, above) + 1,
            generation=self.generation + 1,
            phase="bootstrapping",
            pinned_version=pinned_version,
            start_version=None,
            replay_end_version=-1,
            target_prepared=False,
            query_started=False,
            snapshot_loaded=False,
            max_removed_share=share,
            table_schema=None,
            held_version=-1,
            target_watermark=None,
            first_generation=self.generation + 1,
            read_version=None,
            read_modified_at=None,
            completed_offset=None,
            snapshot_version=pinned_version,
        )
