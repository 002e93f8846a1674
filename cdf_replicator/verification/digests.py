"""Digest entries: a bucket of identities has a count and the sum of 64-bit digests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StringType, StructType

from connectors.change import ROW
from connectors.rendering import NESTED, content_of
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

BUCKETS: Final = 4096
DIGEST: Final = "digest"
LOW_BITS: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Bucket:
    count: int = 0
    low: int = 0
    high: int = 0
    foreign: int = 0


def digested(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the frame with the digest of each row in ``DIGEST``, if it does not have it yet."""
    return frame if DIGEST in frame.columns else frame.withColumn(DIGEST, _row_digest(frame, columns))


def buckets(frame: DataFrame, foreign: Column) -> dict[int, Bucket]:
    """Return the buckets of a frame with digests."""
    sums = (
        frame.select(_bucket().alias("bucket"), DIGEST, foreign.alias("foreign"))
        .groupBy("bucket")
        .agg(
            F.count("*"),
            F.sum(F.col(DIGEST).bitwiseAND(F.lit(LOW_BITS))),
            F.sum(F.shiftrightunsigned(DIGEST, 32)),
            F.count_if("foreign"),
        )
    )
    return {bucket: Bucket(*values) for bucket, *values in sums.collect()}


def total(counted: Mapping[int, Bucket]) -> int:
    return sum(bucket.count for bucket in counted.values())


def _bucket() -> Column:
    return F.pmod(F.xxhash64(IDENTITY), F.lit(BUCKETS))


def in_buckets(frame: DataFrame, numbers: Collection[int]) -> DataFrame:
    return frame.where(_bucket().isin(*numbers)) if len(numbers) < BUCKETS else frame


def _row_digest(frame: DataFrame, columns: Sequence[str]) -> Column:
    """Return 64 bits of the identity and the columns. ``xxhash64`` skips nulls, so that each column adds whether it is null."""
    row = frame.schema[ROW].dataType
    assert isinstance(row, StructType)
    values = [(F.col(ROW).getField(name), row[name].dataType) for name in columns]
    parts = [part for value, data_type in values for part in (value.isNull(), comparable(value, data_type))]
    return F.xxhash64(IDENTITY, *parts)


def comparable(value: Column, data_type: DataType) -> Column:
    """Return a nested value as text, since Spark neither hashes nor compares maps and variants, and a scalar as it is.

    JSON shows bytes of a text that are no UTF-8 as U+FFFD.
    """
    if isinstance(data_type, StringType):
        return F.make_valid_utf8(value)
    if not isinstance(data_type, NESTED):
        return value
    holder = StructType().add("value", data_type)
    return F.when(value.isNotNull(), content_of(F.struct(value.alias("value")), holder))
