"""Compare the changes that an append sink keeps with the change feed, for the versions that the feed still has.

The comparison begins with the first version that the route's present checkpoint delivered, and with the snapshot before it if
the checkpoint began with a snapshot. If VACUUM or log cleanup has removed some of these versions, it begins after them.
An entry is identified by version, change type and key text. Identical twins need as many entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import UNREADABLE
from cdf_replicator.verification import expected
from cdf_replicator.verification.comparison import compare
from connectors import Auditable, Batch, change, guard_of
from connectors.rendering import content_of, in_json_type, json_row, json_type, key_text
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from cdf_replicator.verification.expected import Expected
    from cdf_replicator.verification.result import Comparison
    from connectors import RouteSpec

IN_PARTS = "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE"
"""Delta's error for a feed that no single schema fits: a column was renamed, dropped or retyped in it."""


@dataclass(frozen=True, slots=True)
class History:
    """The changes of a route up to version ``last``.

    Args:
        table: The source table, as the route delivers it.
        spec: The route as the sink knows it.
        sink: The sink.
        preimages: Whether the target keeps rows of type ``update_preimage``. If not, such rows of the target are ignored.
        letters: The open dead letters of the route, which the target must not hold.
        last: The last version to compare.
    """

    table: Expected
    spec: RouteSpec
    sink: Auditable
    preimages: bool
    letters: DataFrame
    last: int

    def compared(self, columns: Sequence[str], limit: int) -> tuple[Comparison, int, tuple[str, ...]]:
        """Compare; return the result, the first compared version, and the columns that were left out.

        Raises ``RouteHaltError`` if the route has delivered none of the versions, or the feed has none of them.
        """
        pinned, first = self.table.state.pinned_version, self.table.state.start_version or 0
        begin = first if pinned is None else pinned
        if self.last < begin:
            raise expected.refused(
                f"The checkpoint of route {self.table.route.name} has delivered no change up to version {self.last}: it begins at "
                f"version {begin}.",
                "Repeat the command after the next micro-batch.",
            )
        earliest = self.table.source.log.available()[0]
        if begin >= earliest:
            try:
                return self._compared(pinned, first, columns, limit)
            except Exception as error:
                if not self._is_gone(error):
                    raise
        first = self._first_readable(max(first, earliest))
        if first > self.last:
            raise expected.refused(
                f"The change feed of table {self.table.route.source.slug} can no longer be read at version {self.last}.",
                "Repeat the command after the next commit.",
            )
        return self._compared(None, first, columns, limit)

    def _compared(
        self, pinned: int | None, first: int, columns: Sequence[str], limit: int
    ) -> tuple[Comparison, int, tuple[str, ...]]:
        begin = first if pinned is None else pinned
        wanted = self._wanted(pinned, first)
        row = expected.row_type(wanted)
        left_out = expected.unverified(self.table.route, row)
        names = expected.compared(self.table.route, row, columns, left_out)
        held = self._held(row, pinned, first, begin)
        guards = (
            guard_of(self.table.state.epoch, 0, upsert=False),
            guard_of(self.table.state.epoch, self.last, upsert=True),
        )
        rows, entries = self._identified(self._without_letters(wanted, row), row), self._identified(held, row)
        return compare(rows, entries, guards, names, limit, repeated=True), begin, left_out

    def _wanted(self, pinned: int | None, first: int) -> DataFrame:
        """Return the change frame of the snapshot, if there is one, and of the feed."""
        frames = [] if pinned is None else [self.table.snapshot(pinned)]
        if first <= self.last:
            frames.insert(0, self._kept(self.table.changes(first, self.last)))
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

    def _held(self, row: StructType, pinned: int | None, first: int, begin: int) -> DataFrame:
        """Return the entries of the same versions, each with the guard of its change."""
        batch = Batch(self.spec, self.table.state.snapshot_generation, 0, self.table.state.table_id)
        version, kind = F.col(change.COMMIT_VERSION), F.col(change.CHANGE_TYPE)
        of_snapshot = version == F.lit(pinned) if pinned is not None else F.lit(False)
        compared = F.when(kind == change.SNAPSHOT, of_snapshot).otherwise(version >= first)
        held = self._kept(self.sink.changes(batch, row, (begin, self.last))).where(version.isNull() | compared)
        guard = (
            F.lit(guard_of(self.table.state.epoch, 0, upsert=False)) + version * 2 + (~change.is_delete()).cast("long")
        )
        return held.withColumn(change.GUARD, guard)

    def _kept(self, frame: DataFrame) -> DataFrame:
        """Return the changes that the target keeps."""
        return frame if self.preimages else frame.where(~F.col(change.CHANGE_TYPE).eqNullSafe("update_preimage"))

    def _without_letters(self, wanted: DataFrame, row: StructType) -> DataFrame:
        """Return the changes that have no open dead letter. Without a key, a dead letter is identified by its row."""
        same = [change.GUARD, change.CHANGE_TYPE, "name"]
        refused = self.letters.select(*same[:2], F.coalesce(F.col(change.KEY), F.col(change.ROW)).alias("name"))
        named = wanted.withColumn("name", F.coalesce(F.col(change.KEY), json_row(row)))
        return named.join(F.broadcast(refused), same, "left_anti")

    def _identified(self, changes: DataFrame, row: StructType) -> DataFrame:
        """Add the identity, over the row alone, since the target need not hold the key text."""
        row_in_json = json_type(row)
        assert isinstance(row_in_json, StructType)
        identity = F.concat_ws(":", change.COMMIT_VERSION, change.CHANGE_TYPE, self._name(row_in_json))
        shaped = changes.withColumn(change.ROW, in_json_type(F.col(change.ROW), row))
        return shaped.withColumn(IDENTITY, identity)

    def _name(self, row: StructType) -> Column:
        """Return the key text of a row; its content if a key column is null or is not delivered."""
        content, route = content_of(F.col(change.ROW), row), self.table.route
        if not route.keys or not set(route.keys) <= set(route.columns or route.keys):
            return content
        names = [route.rename.get(key, key) for key in route.keys]
        key = key_text([(F.col(change.ROW).getField(name), row[name].dataType) for name in names])
        return F.coalesce(key, content)

    def _first_readable(self, first: int) -> int:
        """Return the first version from which the feed can be read up to ``last``; ``last + 1`` if it can't be read."""
        low, high = first, self.last + 1
        while low < high:
            middle = (low + high) // 2
            if self._is_readable(middle):
                high = middle
            else:
                low = middle + 1
        return high

    def _is_readable(self, first: int) -> bool:
        """Return whether the feed can be read from a version on. Spark opens every file and reads its footer alone."""
        try:
            self.table.source.changes(first, self.last).select().count()
        except Exception as error:
            if not self._is_gone(error):
                raise
            return False
        return True

    def _is_gone(self, error: Exception) -> bool:
        return IN_PARTS in str(error) or classify_error(error, route=self.table.route.name).reason in UNREADABLE
