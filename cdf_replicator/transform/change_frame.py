"""Convert rows of Delta to the change frame: filter, key, guard, projection.

The conversion happens before ``writeStream``. If a route joins other tables, ``row`` keeps every source column until
``project_joined``, which runs in the micro-batch. No function of this module runs a Spark action or reads a row in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdf_replicator.errors.conditions import UNKNOWN_CHANGE
from cdf_replicator.transform.columns import check_keys, check_names, delivered, sink_names, wanted
from cdf_replicator.transform.expressions import check_filter, computed_types
from connectors import change
from connectors.change import FEED_COLUMNS
from connectors.names import quote_identifier
from connectors.rendering import json_row, key_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdf_replicator.route import Route
    from connectors import Batch, Sink

FEED_TYPES: Final = tuple(kind for kind in change.CHANGE_TYPES if kind != change.SNAPSHOT)
NOTHING: Final = StructType([])
EXACT_KEYS: Final = (IntegralType, DecimalType, BooleanType, DateType, TimestampType, TimestampNTZType)
"""Types of key columns whose values are equal exactly if their texts are.

A floating-point number has several texts. A collation may treat different texts as equal.
"""


def change_frame(feed: DataFrame, route: Route, *, epoch: int) -> DataFrame:
    """Convert a change feed to the change frame.

    A filter on source columns applies to every image: the preimage of a row that stops matching deletes it
    (docs/design.md). Spark pushes such a filter down to the files.
    """
    version = F.col("_commit_version")
    return _shaped(feed, route, epoch, _known_type(version), version, F.col("_commit_timestamp"))


def _known_type(version: Column) -> Column:
    """Return the type of a change. For an unknown type Spark raises an error that names the commit, before any write.

    Another writer may name an image differently. If it were treated as an upsert, it could restore a deleted row.
    """
    kind = F.col("_change_type")
    said = F.format_string(
        f"{UNKNOWN_CHANGE} Commit %d of the table holds a change of type '%s', which a change feed does not define.",
        version,
        F.coalesce(kind, F.lit("null")),
    )
    return F.when(kind.isin(*FEED_TYPES), kind).otherwise(F.raise_error(said))


def snapshot_frame(snapshot: DataFrame, route: Route, *, epoch: int, version: int, committed_at: float) -> DataFrame:
    """Convert a snapshot to the change frame: each row is an upsert of its version, of type ``snapshot``."""
    at = F.timestamp_seconds(F.lit(committed_at))
    return _shaped(snapshot, route, epoch, F.lit(change.SNAPSHOT), F.lit(version).cast("long"), at)


def row_schema(table: StructType, route: Route, joined: StructType = NOTHING) -> StructType:
    """Return the schema of ``row``: the route's columns under their names in the sink; raises ``RouteHaltError``.

    Checks the keys, the filter and the computed columns too.

    Args:
        table: Schema of the source table; columns of the change feed are ignored.
        route: The route whose definition applies.
        joined: Columns that the route's dimensions add.
    """
    source = StructType([field for field in table.fields if field.name not in FEED_COLUMNS])
    everything = StructType([*source.fields, *joined.fields])
    check_names(source.fieldNames(), route)
    check_keys(source, route)
    check_filter(everything if route.filter_is_joined else source, route)
    computed = computed_types(everything, route)
    types = [everything[name].dataType for name in wanted(everything.fieldNames(), route)]
    names = sink_names(everything.fieldNames(), route)
    return StructType([StructField(n, t) for n, t in zip(names, [*types, *computed.values()], strict=True)])


def project_joined(frame: DataFrame, route: Route) -> DataFrame:
    """Filter and project joined rows, whose ``row`` has the columns of the source and of the dimensions.

    A filter on joined columns can't be applied to earlier images, because dimensions change. Deletes and preimages
    always pass. A postimage that fails the filter becomes a delete (docs/design.md).
    """
    row = frame.schema[change.ROW].dataType
    assert isinstance(row, StructType)
    # A reserved name of the change feed can't clash with the row's columns: Delta refuses it in a table with a feed.
    own = F.struct(*(name for name in frame.columns if name != change.ROW)).alias(FEED_COLUMNS[0])
    passes = F.expr(route.filter) if route.filter and route.filter_is_joined else F.lit(True)
    projected = F.struct(*delivered(row.fieldNames(), route)).alias(change.ROW)
    rows = frame.select(own, f"{change.ROW}.*").select(f"{FEED_COLUMNS[0]}.*", projected, passes.alias("passes"))
    kind, fails = F.col(change.CHANGE_TYPE), ~F.coalesce(F.col("passes"), F.lit(False))
    left = fails & (kind == "update_postimage")
    rows = rows.where(kind.isin(*change.DELETES, "update_postimage") | ~fails)
    return rows.withColumns(
        {
            change.CHANGE_TYPE: F.when(left, "delete").otherwise(kind),
            change.GUARD: F.when(left, F.col(change.GUARD) - 1).otherwise(F.col(change.GUARD)),
        }
    ).drop("passes")


def latest_per_key(frame: DataFrame) -> DataFrame:
    """Return the change with the highest guard per key, for an upsert sink. Adds ``doubled`` (see ``change``).

    If the key columns do not identify a row, one commit can leave several rows per key. None of them may win silently:
    if they are the newest, the key becomes a delete of their commit. Each upsert with a null key is kept, to become a
    dead letter. A delete with a null key is dropped, because its row was never delivered. Costs one shuffle and one sort.
    """
    deleted, names = change.is_delete_sql(), frame.columns
    row_type = frame.schema[change.ROW].dataType
    assert isinstance(row_type, StructType)
    alone = F.when(F.col(change.KEY).isNull(), F.concat_ws(":", change.GUARD, json_row(row_type)))
    kept = frame.where(f"key IS NOT NULL OR NOT {deleted}").withColumn("alone", alone)
    newest_first = "OVER (PARTITION BY key, alone ORDER BY guard DESC)"
    again = f"CASE WHEN key IS NOT NULL AND NOT {deleted} AND lead(guard) {newest_first} = guard THEN guard END"
    ranked = kept.selectExpr("*", f"row_number() {newest_first} AS rank", f"{again} AS again")
    ranked = ranked.where("rank = 1 OR again IS NOT NULL")  # reduces the input of the next window
    doubled = f"max(again) OVER (PARTITION BY key, alone) AS {change.DUPLICATE_GUARD}"
    newest = ranked.selectExpr("*", doubled).where("rank = 1")
    several = f"{change.DUPLICATE_GUARD} <=> guard"
    gone = {
        change.CHANGE_TYPE: f"CASE WHEN {several} THEN 'delete' ELSE change_type END AS change_type",
        change.GUARD: f"CASE WHEN {several} THEN guard - 1 ELSE guard END AS guard",
    }
    return newest.selectExpr(*(gone.get(name, name) for name in names), change.DUPLICATE_GUARD)


def reduced(changes: DataFrame, sink: Sink, batch: Batch) -> DataFrame:
    """Return the changes that the sink receives: all of them for an append sink, else the newest per key."""
    if sink.mode == "append":
        return changes
    return mark_unique(changes) if batch.is_bootstrap else latest_per_key(changes)


def repeated_keys(snapshot: DataFrame, route: Route) -> DataFrame:
    """Return a frame that is empty if no key has several rows in a snapshot, and only then.

    If the last key column is a whole number, Spark groups by blocks of 64 numbers, and keeps a bit for each number that it
    has seen: a block with more rows than bits has a repeated key. Numbers that are near each other, as those of a sequence,
    then take less than half the time. Numbers far from each other take a tenth more.
    """
    frame = _filtered(snapshot, route)
    exact = all(isinstance(frame.schema[name].dataType, EXACT_KEYS) for name in route.keys)
    *others, last = route.keys
    if not exact or not isinstance(frame.schema[last].dataType, IntegralType):
        return duplicate_keys(snapshot, route)
    number = F.col(quote_identifier(last)).cast("long")
    keyed = frame.where(" AND ".join(f"{quote_identifier(name)} IS NOT NULL" for name in route.keys))
    blocks = keyed.groupBy(*map(quote_identifier, others), F.shiftright(number, 6))
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), number.bitwiseAND(63).cast("int"))
    seen, rows = FEED_COLUMNS[:2]  # reserved by the change feed, so no column has this name
    found = blocks.agg(F.bit_or(bit).alias(seen), F.count("*").alias(rows))
    return found.where(F.bit_count(seen) < F.col(rows)).select(rows)


def duplicate_keys(snapshot: DataFrame, route: Route) -> DataFrame:
    """Return the keys that have several rows in a snapshot: ``key`` and ``rows``.

    If all key columns are of ``EXACT_KEYS``, Spark groups by the columns instead of the key text, which halves the work.
    """
    frame = _filtered(snapshot, route)
    key = key_column(frame.schema, route)
    exact = all(isinstance(frame.schema[name].dataType, EXACT_KEYS) for name in route.keys)
    by = [F.col(quote_identifier(name)) for name in route.keys] if exact else [key.alias(change.KEY)]
    several = F.col(FEED_COLUMNS[0])  # reserved by the change feed, so no column has this name
    counted = frame.groupBy(*by).agg(F.count("*").alias(FEED_COLUMNS[0])).where(several > 1)
    duplicates = counted.select((key if exact else F.col(change.KEY)).alias(change.KEY), several.alias("rows"))
    return duplicates.where(F.col(change.KEY).isNotNull())


def mark_unique(frame: DataFrame) -> DataFrame:
    """Return the result of ``latest_per_key`` for a frame without duplicate keys, such as a checked snapshot."""
    return frame.withColumn(change.DUPLICATE_GUARD, F.lit(None).cast("long"))


def duplicate_rows(frame: DataFrame) -> DataFrame:
    """Return the upserts that share key and commit with another row; ``latest_per_key`` reports whether any exist."""
    same = Window.partitionBy(change.KEY, change.GUARD)
    upserts = frame.where(F.col(change.KEY).isNotNull() & ~change.is_delete())
    return upserts.withColumn("rows", F.count(F.lit(1)).over(same)).where("rows > 1").drop("rows")


def without_preimages(frame: DataFrame) -> DataFrame:
    """Return the changes for an append sink without INCLUDE_PREIMAGES."""
    return frame.where(F.col(change.CHANGE_TYPE) != "update_preimage")


def key_column(table: StructType, route: Route) -> Column:
    """Return the key text of the route's key columns; null if one of them is null or the route has none."""
    if not route.keys:
        return F.lit(None).cast("string")
    return key_text([(F.col(quote_identifier(name)), table[name].dataType) for name in route.keys])


def _shaped(
    frame: DataFrame, route: Route, epoch: int, change_type: Column, version: Column, timestamp: Column
) -> DataFrame:
    table = frame.schema
    names = [name for name in table.fieldNames() if name not in FEED_COLUMNS]
    check_names(names, route)
    check_keys(table, route)
    frame = _filtered(frame, route)
    upsert = (~change_type.isin(*change.DELETES)).cast("long")
    columns = [F.col(quote_identifier(name)).alias(name) for name in names] if route.enrich else delivered(names, route)
    return frame.select(
        key_column(table, route).alias(change.KEY),
        (F.lit(epoch * change.EPOCH_STEP).cast("long") + version * 2 + upsert).alias(change.GUARD),
        change_type.alias(change.CHANGE_TYPE),
        version.alias(change.COMMIT_VERSION),
        timestamp.alias(change.COMMIT_TIMESTAMP),
        F.struct(*columns).alias(change.ROW),
    )


def _filtered(frame: DataFrame, route: Route) -> DataFrame:
    return frame.where(F.expr(route.filter)) if route.filter and not route.filter_is_joined else frame
