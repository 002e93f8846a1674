"""Build the rows of the table of dead letters from rejected changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from connectors import change
from connectors.rendering import content_of, json_row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from cdf_replicator.delivery.result import RejectedRow
    from cdf_replicator.route import Route
    from connectors import Batch

SOME_REFUSED: Final = (
    "; the sink refused %d of %d changes with this key in this commit: as it does not name them, each is a dead letter"
)


def with_twins(rejected: DataFrame, letters: Iterable[RejectedRow]) -> DataFrame:
    """Add to the reason how many of the changes with the same key and guard an append sink rejected, if it took some of them.

    The workers name a rejected change by its key and guard alone, which several changes of a commit may share.
    """
    counts = Counter((letter.key, letter.guard) for letter in letters)
    rows = [(key, guard, number) for (key, guard), number in counts.items()]
    named = rejected.sparkSession.createDataFrame(rows, "key string, guard long, refused long").alias("named")
    same = F.col("named.key").eqNullSafe(F.col("rejected.key")) & (F.col("named.guard") == F.col("rejected.guard"))
    shared = F.count(F.lit(1)).over(Window.partitionBy("key", "guard"))
    counted = rejected.withColumn("shared", shared).alias("rejected").join(F.broadcast(named), same)
    more = F.format_string(SOME_REFUSED, "refused", "shared")
    reason = F.concat("reason", F.when(F.col("shared") > F.col("refused"), more).otherwise(""))
    return counted.select("rejected.*", "named.refused").withColumn("reason", reason).drop("shared", "refused")


def letter_rows(rejected: DataFrame, route: Route, batch: Batch, each_row: bool) -> DataFrame:
    """Return the open dead letters of rejected rows, which have their ``code`` and ``reason``; equal ids once.

    ``each_row`` is true if rows with the same key and guard become separate dead letters, whatever their code.
    """
    row_type = rejected.schema[change.ROW].dataType
    assert isinstance(row_type, StructType)
    letters = rejected.select(
        F.sha2(_identity(route.name, row_type, each_row), 256).alias("id"),
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


def _identity(route: str, row_type: StructType, each_row: bool) -> Column:
    """Return the text that identifies a dead letter.

    Each of several rows without a key, or with the same key in a commit, becomes a separate dead letter. Its content, which
    a column that is added before a redelivery does not change, identifies it.
    """
    several = F.col("key").isNull() | (F.col("code") == change.DUPLICATE_KEY) | F.lit(each_row)
    own = F.when(several, content_of(F.col(change.ROW), row_type))
    return F.concat_ws("\x1f", F.lit(route), "key", own, F.col("guard"))
