"""Compare two frames of entries by counts and sums of digests per bucket, and by row in the buckets that differ.

A digest is 64 bits. Buckets are compared by the number of entries and by the sum of the digests: an exclusive or would
lose two equal digests. No row is shuffled until a bucket differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructType

from cdf_replicator.monitoring.totals import DIFFERENCES
from cdf_replicator.verification import digests
from cdf_replicator.verification.digests import DIGEST
from cdf_replicator.verification.result import Comparison, Difference
from connectors.change import GUARD, ROW, commit_version_of
from connectors.rendering import NESTED
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

LONGEST_TEXT: Final = 200
MOST_IDENTITIES: Final = 100_000
COPY: Final = "copy"
"""Column that numbers the rows of an identity that several rows have."""


def compare(
    rows: DataFrame,
    entries: DataFrame,
    guards: tuple[int, int],
    columns: Sequence[str],
    limit: int,
    *,
    repeated: bool = False,
    reread: bool = False,
    only_upserts: bool = False,
) -> Comparison:
    """Compare the rows of a table with the entries of a target.

    Args:
        rows: ``identity`` and ``row`` of each row that the target must hold.
        entries: ``identity``, ``guard`` and ``row`` of each entry, with a ``row`` of the same type.
        guards: The lowest and the highest guard that the service can have written. An entry of another guard is foreign.
        columns: The columns to compare.
        limit: Most differences to return.
        repeated: Whether several rows may have the same identity. Equal rows then need as many equal entries.
        reread: Whether ``entries`` may have the same entry twice, because the target was not read at one moment.
        only_upserts: Whether each entry has the guard of an upsert. An even guard, which is that of a delete, is then foreign.
    """
    foreign = F.col(GUARD).isNull() | ~F.col(GUARD).between(*guards)
    if only_upserts:
        foreign |= F.col(GUARD) % 2 == 0
    rows, entries = digests.digested(rows, columns), digests.digested(entries, columns)
    wanted, held = digests.buckets(rows, F.lit(False)), digests.buckets(entries, foreign)
    equal = Comparison(rows=digests.total(wanted), entries=digests.total(held))
    none = digests.Bucket()
    unequal = [number for number in wanted.keys() | held.keys() if wanted.get(number, none) != held.get(number, none)]
    if not unequal:
        return equal
    rows, entries = digests.in_buckets(rows, unequal), digests.in_buckets(entries, unequal)
    if reread:
        entries = entries.dropDuplicates([IDENTITY])
        copies = sum(held.get(number, none).count for number in unequal) - entries.count()
        equal = replace(equal, entries=equal.entries - copies)
    if repeated:
        rows, entries = _surplus(rows, entries, foreign)
    elif not reread:  # a further entry of an identity is extra
        newest_first = Window.partitionBy(IDENTITY).orderBy(F.desc_nulls_last(GUARD))
        rows, entries = rows.withColumn(COPY, F.lit(1)), entries.withColumn(COPY, F.row_number().over(newest_first))
    return _in_detail(rows, entries, foreign, columns, limit, equal)


def _surplus(rows: DataFrame, entries: DataFrame, foreign: Column) -> tuple[DataFrame, DataFrame]:
    """Return the rows and the entries without an equal copy on the other side, numbered within their identity in ``COPY``.

    A foreign entry equals no row.
    """
    same = [IDENTITY, DIGEST, COPY]
    copies = F.row_number().over(Window.partitionBy(IDENTITY, DIGEST).orderBy(F.lit(1)))
    table = rows.withColumn(COPY, copies)
    target = entries.withColumn(DIGEST, F.when(~foreign, F.col(DIGEST))).withColumn(COPY, copies)
    number = F.row_number().over(Window.partitionBy(IDENTITY).orderBy(DIGEST, COPY))
    lacking = table.join(target.select(*same), same, "left_anti").withColumn(COPY, number)
    surplus = target.join(table.select(*same), same, "left_anti").withColumn(COPY, number)
    return lacking, surplus


def _in_detail(
    rows: DataFrame,
    entries: DataFrame,
    foreign: Column,
    columns: Sequence[str],
    limit: int,
    equal: Comparison,
) -> Comparison:
    """Return ``equal``, the numbers of rows and entries, with the differences of the given rows and entries."""
    row = rows.schema[ROW].dataType
    assert isinstance(row, StructType)
    names = [IDENTITY, COPY] if COPY in rows.columns else [IDENTITY]
    table = rows.select(*names, F.col(ROW).alias("table"), F.lit(True).alias("in_table"))
    target = entries.select(
        *names, GUARD, F.col(ROW).alias("target"), foreign.alias("foreign"), F.lit(True).alias("in_target")
    )
    target = target.persist()
    joined = table.join(target, names, "full_outer")
    differs = [F.when(~_same(name, row[name].dataType), F.lit(name)) for name in columns]
    kind = (
        F.when(F.col("in_target").isNull(), "missing")
        .when(F.col("foreign"), "foreign")
        .when(F.col("in_table").isNull(), "extra")
        .when(F.col("target").isNull() | (F.size("columns") > 0), "different")
    )
    found = joined.withColumn("columns", F.array_compact(F.array(*differs))).withColumn("kind", kind)
    found = found.where(F.col("kind").isNotNull()).persist()
    try:
        target.count()  # the join then reads one side at a time
        kinds, by_column = _counts(found)
        texts = {name: row[name].dataType for name in columns}
        shown = found.select("kind", IDENTITY, GUARD, "columns", _texts("table", texts), _texts("target", texts))
        first = shown.orderBy(IDENTITY).limit(limit).collect()
        identities = found.select(IDENTITY).dropna().orderBy(IDENTITY).limit(MOST_IDENTITIES).toArrow().column(0)
    finally:
        found.unpersist()
        target.unpersist()
    differences = tuple(difference for each in first for difference in _differences(each))[:limit]
    named = tuple(identities.to_pylist())
    return replace(equal, kinds=kinds, columns=by_column, differences=differences, identities=named)


def _counts(found: DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of differences by kind, and that of different entries by column, in one Spark action."""
    # Each difference is a row without a column, and a further row for each column that differs.
    each = F.explode(F.concat(F.array(F.lit(None).cast("string")), "columns")).alias("column")
    counted = found.select("kind", each).groupBy("kind", "column").count().collect()
    kinds = {kind: number for kind, column, number in counted if column is None}
    columns = {column: number for kind, column, number in counted if kind == "different" and column is not None}
    return {name: kinds.get(name, 0) for name in DIFFERENCES}, dict(sorted(columns.items()))


def _differences(found: Row) -> list[Difference]:
    version = None if found[GUARD] is None else commit_version_of(found[GUARD])
    if found["kind"] != "different":
        return [Difference(found["kind"], found[IDENTITY], version)]
    table, target = (found[side] or {} for side in ("table", "target"))
    return [
        Difference(found["kind"], found[IDENTITY], version, name, table.get(name), target.get(name))
        for name in found["columns"]
    ]


def _texts(side: str, types: Mapping[str, DataType]) -> Column:
    """Return the texts of the columns of one side as a map, cut off after ``LONGEST_TEXT`` characters."""
    texts = [
        part
        for name, data_type in types.items()
        for part in (F.lit(name), F.substring(_text(F.col(side).getField(name), data_type), 1, LONGEST_TEXT))
    ]
    return F.create_map(*texts).alias(side)


def _text(value: Column, data_type: DataType) -> Column:
    return F.to_json(value) if isinstance(data_type, NESTED) else value.cast("string")


def _same(name: str, data_type: DataType) -> Column:
    table, target = (digests.comparable(F.col(side).getField(name), data_type) for side in ("table", "target"))
    return table.eqNullSafe(target)
