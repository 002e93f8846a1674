"""Define what a sink may declare beyond the contract: its capabilities, in one value, and the optional protocols.

A sink derives from the protocols that it supports, beside ``RowSink`` or another base.

    Resyncable    count and delete the entries of older epochs: ``resync`` removes the orphans of an upsert sink
    Watermarked   remember in the target how far it is filled: a restored or restarted target is detected
    Maintained    maintain the target periodically beside the stream
    Addressed     name the addresses of a target: two configurations with the same target are detected
    Verifiable    read the entries of a target back: ``verify`` compares them with the source table
    Repairable    a ``Verifiable`` sink whose entries can be written again by key: ``verify --repair`` does it
    Auditable     read the changes of an append sink back: ``verify`` compares them with the change feed
    Aggregated    a ``Verifiable`` sink whose entries are aggregates: ``verify`` compares them with those of the table

Without a protocol a sink lacks that feature and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, RouteSpec, Watermark
    from connectors.result import EntryCount
    from connectors.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a sink. The defaults fit a sink that declares none.

    Args:
        rejection_codes: Every code of ``Rejected`` that the sink returns. The metric of each code starts at 0.
        preimages: Whether an append sink receives ``update_preimage`` rows regardless of INCLUDE_PREIMAGES.
        deleted_rows: Whether an upsert sink reads the row of a delete. If not, the service sends null to save the transfer.
        exact_counts: Whether an append ``FrameSink`` applies every row and returns their ``versions`` and ``commit_times``,
            so that the service counts no rows.
        fencing: Whether the target refuses writes with a lower ``RouteSpec.fence`` than the last ``prepare`` recorded.
        prefix_targets: Whether a target may not be a prefix of another target either.
    """

    rejection_codes: tuple[str, ...] = ()
    preimages: bool = False
    deleted_rows: bool = True
    exact_counts: bool = False
    fencing: bool = False
    prefix_targets: bool = False


class Resyncable(ABC):
    """A sink that can delete the entries that a resync did not write.

    Without this protocol a resync of an upsert sink is refused until the operator has emptied the target. An append sink
    has no orphans unless it derives from this class.
    """

    @abstractmethod
    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        """Count the target's entries, and those with no guard or a guard lower than ``below_guard``. Changes nothing.

        The driver calls this before a sweep and refuses a sweep that would remove too much.
        """

    @abstractmethod
    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        """Delete the entries with no guard or a guard lower than ``below_guard``; returns their number.

        This ends a resync: an entry that the new epoch did not write is an orphan.
        """


class Watermarked(ABC):
    """A sink whose target remembers how far it was filled. ``read_claim`` returns the watermark.

    The watermark reveals a target that was restored from a copy. The route then delivers the lost changes again.
    """

    @abstractmethod
    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        """Replace the target's watermark if the present one reaches ``route.watermark``.

        The driver calls this after each micro-batch. It also calls it before each change of a route's phase, with the
        watermark that the target already has. A sink may defer every watermark except the first of an epoch.
        Raises ``RetryableError`` (reason ``lost``) if the target is older than ``route.watermark`` or was replaced.
        """

    def lost_acknowledged_writes(self) -> bool:
        """Return True if the server restarted and may have lost acknowledged writes. The driver calls this after each batch.

        After a restart, a fail-over or a restore of the server, the route restarts from the watermark in the target.
        """
        return False


class Maintained(ABC):
    """A sink whose target needs periodic maintenance, which runs in a thread beside the stream."""

    @abstractmethod
    def next_maintenance_at(self, route: RouteSpec) -> float | None:
        """Return the time of the next ``run_maintenance`` in epoch seconds; None if the target needs none."""

    @abstractmethod
    def run_maintenance(self, route: RouteSpec) -> str:
        """Maintain the target while changes arrive; returns a sentence that says what was done.

        The driver may cancel this at any point. An exception becomes a warning and halts no route.
        """


class Addressed(ABC):
    """A sink with an address, which may be configured in several spellings.

    Without this protocol the service compares ``Sink.target``, and only between sinks of equal settings.
    """

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Return the address of the sink for logs and pages, without credentials."""

    @abstractmethod
    def places(self, route: RouteSpec) -> frozenset[str]:
        """Return every address of the route's target, each in one spelling (``connectors.names``), without credentials.

        Two routes with a common address share a target, whatever the other settings of their sinks.
        """


class Verifiable(ABC):
    """A sink whose entries can be read back and compared with the rows of the source table.

    Without this protocol ``verify`` refuses the route.
    """

    @abstractmethod
    def view(self, route: RouteSpec) -> AbstractContextManager[View]:
        """Open the target for reads; the view ends with the context. Changes nothing.

        The service reads the newest version of the source table after it has opened a consistent view, and after it has
        read an inconsistent one. It leaves out the keys that changed up to that version.
        """

    @abstractmethod
    def identity(self, route: RouteSpec) -> Column:
        """Return the identity of the entry of a change, as ``View.entries`` has it, over the column ``key``."""


class Repairable(Verifiable):
    """A verifiable sink whose entries ``verify --repair`` can write again, each by its key."""

    @abstractmethod
    def key(self, route: RouteSpec) -> Column:
        """Return the key text of an entry over the column ``identity``, as the inverse of ``identity``.

        A repair deletes an entry without a row only if ``identity`` maps this key text to the entry again.
        """


class Aggregated(Verifiable):
    """A verifiable sink whose entries are computed from the rows of an entity. ``identity`` is then over the column ``row``."""

    @abstractmethod
    def expected(self, route: RouteSpec, version: int) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the ``identity`` and ``row`` of each entry for a version of the source table.

        Also returns the columns that can't be compared, since their values may depend on the order of the rows.
        """


class Auditable(ABC):
    """An append sink whose changes can be read back and compared with the change feed of the source table.

    Without this protocol ``verify`` refuses the route of an append sink that is not ``Verifiable``.
    """

    @abstractmethod
    def changes(self, snapshot: Batch, schema: StructType, versions: tuple[int, int]) -> DataFrame:
        """Return the changes that the target holds at one moment: ``commit_version``, ``change_type`` and ``row``.

        A column that a change lacks is null. Changes nothing.

        Args:
            snapshot: The first batch that wrote the route's snapshot. It names the route and the source table. Batches of the
                same number in later generations may have written rows of the snapshot too. Rows of earlier snapshots are
                not returned. A change of an earlier epoch is not returned either if it is later than the snapshot of the
                route's epoch: it comes from another history of the source table.
            schema: The type of ``row``.
            versions: The first and the last commit version to return. A change without a version, or of no source
                table, has no commit version in the result: another writer wrote it.
        """
