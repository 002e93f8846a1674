"""Build changes for a test, and the change frame or chunk that a sink receives for them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from connectors.change import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    GUARD,
    KEY,
    ROW,
    Change,
    guard_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from connectors.change import RouteSpec
    from connectors.sink import ArrowSink

SCHEMA: Final = StructType([StructField("id", StringType()), StructField("name", StringType())])
COMMITTED_AT: Final = datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def upsert(identity: str, version: int, name: str | None = None, *, epoch: int = 1, **more: Any) -> Change:
    """Return an upsert of the row ``identity`` by commit ``version``. ``more`` are further columns of the schema."""
    row = {"id": identity, "name": name, **more}
    return Change(key_of(identity), guard_of(epoch, version, upsert=True), "update_postimage", row)


def deletion(identity: str, version: int, *, epoch: int = 1) -> Change:
    row = {"id": identity, "name": None}
    return Change(key_of(identity), guard_of(epoch, version, upsert=False), "delete", row)


def key_of(identity: str) -> str:
    """Return the key text of a single key column, as ``connectors.rendering.key_text`` builds it in the JVM."""
    return identity.replace("%", "%25").replace(":", "%3A")


def change_frame(spark: SparkSession, schema: StructType, changes: Sequence[Change]) -> DataFrame:
    """Return the change frame of ``changes``. A column that a row lacks is null."""
    frame_schema = StructType(
        [
            StructField(KEY, StringType()),
            StructField(GUARD, LongType()),
            StructField(CHANGE_TYPE, StringType()),
            StructField(COMMIT_VERSION, LongType()),
            StructField(COMMIT_TIMESTAMP, TimestampType()),
            StructField(ROW, schema),
        ]
    )
    rows = [
        (c.key, c.guard, c.change_type, c.commit_version, COMMITTED_AT, tuple(c.row.get(n) for n in schema.names))
        for c in changes
    ]
    return spark.createDataFrame(rows, frame_schema).coalesce(1)


def frame_of_rows(rows: DataFrame) -> DataFrame:
    """Return the change frame of upserts of rows by commit 5; the key is their column ``id``."""
    return rows.select(
        F.col("id").alias(KEY),
        F.lit(guard_of(1, 5, upsert=True)).alias(GUARD),
        F.lit("update_postimage").alias(CHANGE_TYPE),
        F.lit(5).cast("long").alias(COMMIT_VERSION),
        F.timestamp_seconds(F.lit(0)).alias(COMMIT_TIMESTAMP),
        F.struct("*").alias(ROW),
    ).coalesce(1)


def render_chunk(
    spark: SparkSession, sink: ArrowSink, route: RouteSpec, schema: StructType, changes: Sequence[Change]
) -> pa.RecordBatch:
    """Return one chunk of ``changes``, which Spark renders as in the service."""
    return render_frame(change_frame(spark, schema, changes), sink, route, schema)


def render_frame(frame: DataFrame, sink: ArrowSink, route: RouteSpec, schema: StructType) -> pa.RecordBatch:
    """Return one chunk of a change frame."""
    table = frame.select(KEY, GUARD, CHANGE_TYPE, *sink.render(schema, route)).toArrow()
    arrays = [pa.concat_arrays(c.chunks) if c.chunks else pa.array([], c.type) for c in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
