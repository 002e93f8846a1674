"""Build the rows of the table of dead letters from rejected changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from connectors import change
from connectors.rendering import content_of, json_row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdf_replicator.route import Route
    from connectors import Batch


def letter_rows(rejected: DataFrame, route: Route, batch: Batch) -> DataFrame:
    """Return the open dead letters of rejected rows, which have their ``code`` and ``reason``; equal ids once."""
    row_type = rejected.schema[change.ROW].dataType
    assert isinstance(row_type, StructType)
    letters = rejected.select(
        F.sha2(_identity(route.name, row_type), 256).alias("id"),
        F.lit(route.name).alias("route"),
        F.lit(route.source.slug).alias("table"),
        F.lit(route.sink).alias("sink"),
        "key",
        "guard",
        "change_type",
        "commit_version",
        json_row(row_type).alias("row"),
        "code",
        "reason",
        F.lit(batch.generation).cast("long").alias("generation"),
        F.lit(batch.number).cast("long").alias("batch"),
        F.lit("open").alias("state"),
        F.current_timestamp().alias("created_at"),
        F.lit(None).cast("timestamp").alias("closed_at"),
    )
    return letters.coalesce(1).dropDuplicates(["id"])  # few rows: a shuffle would dominate the time


def _identity(route: str, row_type: StructType) -> Column:
    """Return the text that identifies a dead letter.

    Each of several rows without a key, or with the same key in a commit, becomes a separate dead letter. Its content, which
    a column that is added before a redelivery does not change, identifies it.
    """
    several = F.col("key").isNull() | (F.col("code") == change.DUPLICATE_KEY)
    own = F.when(several, content_of(F.col(change.ROW), row_type))
    return F.concat_ws("\x1f", F.lit(route), "key", own, F.col("guard"))
