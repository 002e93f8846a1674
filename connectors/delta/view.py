"""Read the rows of a replica at one version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from connectors.change import GUARD, ROW
from connectors.protocols import IDENTITY, View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class ReplicaView(View):
    """The rows of a replica at a version. VACUUM of the replica may remove that version during a long comparison."""

    consistent: ClassVar[bool] = True
    path: str
    version: int

    def entries(self, spark: SparkSession, schema: StructType) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.delta.merge import DELETED, HELD_GUARD, HELD_KEY
        from connectors.rendering import in_json_type
        from connectors.sql import quote_identifier

        rows = spark.read.format("delta").option("versionAsOf", self.version).load(self.path)
        if DELETED in rows.columns:
            rows = rows.where(~F.coalesce(F.col(DELETED), F.lit(False)))
        held = {field.name: F.col(quote_identifier(field.name)) for field in rows.schema.fields}
        columns = [held.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in schema.fields]
        row = in_json_type(F.struct(*columns), schema)
        return rows.select(F.col(HELD_KEY).alias(IDENTITY), F.col(HELD_GUARD).alias(GUARD), row.alias(ROW))
