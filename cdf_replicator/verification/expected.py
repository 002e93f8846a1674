"""Read from the source table what a target must hold, in the columns that the route delivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.source import schema_evolution
from cdf_replicator.source.schema import TableSchema
from cdf_replicator.transform import change_frame
from cdf_replicator.transform.enrichment import Dimensions
from connectors import change
from connectors.view import paced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState


@dataclass(frozen=True, slots=True)
class Expected:
    """Reads from the source table what the target of a route must hold.

    Args:
        spark: The session.
        source: The source table.
        route: The route.
        state: The state of the route.
    """

    spark: SparkSession
    source: SourceTable
    route: Route
    state: RouteState

    def snapshot(self, version: int) -> DataFrame:
        """Return the change frame of the source table at a version."""
        rows = self._reconciled(self.source.snapshot(version), version)
        frame = change_frame.snapshot_frame(rows, self.route, epoch=self.state.epoch, version=version, committed_at=0)
        return self._joined(paced(frame), rows.schema)

    def changes(self, first: int, last: int) -> DataFrame:
        """Return the change frame of the feed from version ``first`` to version ``last``."""
        feed = self._reconciled(self.source.changes(first, last), first)
        return self._joined(change_frame.change_frame(feed, self.route, epoch=self.state.epoch), feed.schema)

    def _reconciled(self, frame: DataFrame, version: int) -> DataFrame:
        known = None if self.state.table_schema is None else TableSchema.from_json(self.state.table_schema)
        return schema_evolution.reconcile(self.route, self.source, known, frame, version, None)[1]

    def _joined(self, frame: DataFrame, table: StructType) -> DataFrame:
        if not self.route.enrich:
            return frame
        dimensions = Dimensions(self.spark, self.route)
        dimensions.columns(table)
        return change_frame.project_joined(dimensions.snapshot_join()(frame), self.route)


def row_type(frame: DataFrame) -> StructType:
    row = frame.schema[change.ROW].dataType
    assert isinstance(row, StructType)
    return row


def unverified(route: Route, row: StructType) -> tuple[str, ...]:
    """Return the columns that depend on joined tables: the target holds the values of the time of delivery."""
    dependent = [name for name, text in route.computed.items() if route.may_name_joined(text)]
    names = {*(route.rename.get(name, name) for name in route.joined_columns), *dependent}
    return tuple(name for name in row.names if name in names)


def compared(route: Route, row: StructType, wanted: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """Return the columns to compare: those that the operator wants, or all that are not left out."""
    if unknown := [name for name in wanted if name not in row.names]:
        raise refused(
            f"Route {route.name} delivers no column {', '.join(unknown)}; it delivers {', '.join(row.names)}.",
            "Correct --columns.",
        )
    return [name for name in row.names if (name in wanted if wanted else name not in left_out)]


def refused(what: str, next_step: str = "Compare by other means.") -> RouteHaltError:
    return RouteHaltError("bad_request", what, next_step)
