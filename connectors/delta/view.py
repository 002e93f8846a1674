"""Read the rows of a sink's Delta table at one version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from connectors.change import CHANGE_TYPE, COMMIT_VERSION, GUARD, ROW, SNAPSHOT
from connectors.delta.tables import table
from connectors.delta.tables.snapshot import Snapshot
from connectors.errors import target_missing
from connectors.names import quote_identifier
from connectors.view import IDENTITY, View

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from connectors.change import Batch, RouteSpec


@dataclass(frozen=True, slots=True)
class TableView(View):
    """The rows of a table at a version. VACUUM of the table may remove that version during a long comparison.

    Args:
        path: The table.
        version: The version.
        identity: The identity of a row, over the columns of the table.
    """

    consistent: ClassVar[bool] = True
    path: str
    version: int
    identity: Column

    def entries(self, spark: SparkSession, schema: StructType) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.delta.merge import DELETED, HELD_GUARD
        from connectors.rendering import in_json_type

        rows = spark.read.format("delta").option("versionAsOf", self.version).load(self.path)
        if DELETED in rows.columns:
            rows = rows.where(~F.coalesce(F.col(DELETED), F.lit(False)))
        row = _row(rows, schema).alias(ROW)
        entries = rows.select(self.identity.alias(IDENTITY), F.col(HELD_GUARD).alias(GUARD), row)
        return entries.withColumn(ROW, in_json_type(F.col(ROW), schema))


def newest_version(path: str) -> int:
    """Return the newest version of a sink's table; raise ``RetryableError`` if there is no table."""
    if not table.exists(path):
        raise target_missing(f"there is no Delta table at {path}")
    return Snapshot(path).version


def audited(path: str, snapshot: Batch, schema: StructType, versions: tuple[int, int]) -> DataFrame:
    """Return the changes of an audit table, as ``Auditable.changes`` does."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = table.at(path, newest_version(path))
    of_table, version = F.col("source_table_id"), F.col(COMMIT_VERSION)
    written = (F.col("generation") >= snapshot.generation) & (F.col("batch") == snapshot.number)
    rows = rows.where(of_table.isNull() | (of_table == snapshot.table_id))
    rows = rows.where(version.isNull() | version.between(*versions))
    rows = rows.where(written | ~F.col(CHANGE_TYPE).eqNullSafe(SNAPSHOT)).where(of_history(snapshot.route))
    known = F.when(of_table.isNotNull(), version).alias(COMMIT_VERSION)
    return rows.select(known, CHANGE_TYPE, _row(rows, schema).alias(ROW))


def of_history(route: RouteSpec) -> Column:
    """Return a condition on rows of an audit table: the epoch of the route includes the row.

    An epoch begins with the newest version of the source table. It includes older changes of older epochs, but not their
    snapshots. Their later changes come from another history: the files of the source table were restored from a copy.
    """
    from pyspark.sql import functions as F  # noqa: N812

    excluded = F.col(CHANGE_TYPE) == SNAPSHOT
    if route.snapshot_version is not None:
        excluded |= F.col(COMMIT_VERSION) > route.snapshot_version
    return ~F.coalesce(excluded & (F.col("generation") < route.first_generation), F.lit(False))


def _row(rows: DataFrame, schema: StructType) -> Column:
    """Return the columns of a table as a row of type ``schema``. A value that does not fit the type is null."""
    from pyspark.sql import functions as F  # noqa: N812

    held = {field.name.lower(): field for field in rows.schema}
    return F.struct(*(_fitted(held.get(field.name.lower()), field).alias(field.name) for field in schema.toNullable()))


def _fitted(held: StructField | None, wanted: StructField) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.delta.tables import shape

    if held is None:
        return F.lit(None).cast(wanted.dataType)
    value = shape.shaped(F.col(quote_identifier(held.name)), held.dataType, wanted.dataType)
    return value if held.dataType.simpleString() == wanted.dataType.simpleString() else value.try_cast(wanted.dataType)
