"""From rows of Delta to the change frame: filter, key, guard, projection. All of it before ``writeStream``.

Nothing here is an action, and nothing looks at a row in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from cdf_replicator.conditions import HaltError
from connectors import change
from connectors.render import json_row, key_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdf_replicator.route import Route

FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")


def change_frame(feed: DataFrame, route: Route, *, epoch: int) -> DataFrame:
    """Shape a change feed.

    A filter on source columns applies to every image, so that a row that stops matching is deleted by its preimage
    (design rule 3); Spark pushes it down to the files.
    """
    version = F.col("_commit_version")
    return _shaped(feed, route, epoch, F.col("_change_type"), version, F.col("_commit_timestamp"))


def snapshot_frame(snapshot: DataFrame, route: Route, *, epoch: int, version: int, committed_at: float) -> DataFrame:
    """Shape the snapshot at a version: every row an upsert of that version, marked ``snapshot``."""
    at = F.timestamp_seconds(F.lit(committed_at))
    return _shaped(snapshot, route, epoch, F.lit("snapshot"), F.lit(version).cast("long"), at)


def row_schema(table: StructType, route: Route) -> StructType:
    """Return the schema of ``row``: the route's columns under their names in the sink; raises ``HaltError``."""
    names = [name for name in table.fieldNames() if name not in FEED_COLUMNS]
    wanted = names if route.columns is None else list(route.columns)
    missing = [name for name in (*wanted, *route.keys, *route.rename) if name not in names]
    if missing:
        raise HaltError(
            "bad_expression",
            f"Table {route.source.slug} ({route.source.location}) has no column {', '.join(sorted(set(missing)))}; "
            f"it has {', '.join(names)}.",
            f"Correct KEYS, COLUMNS or RENAME of route {route.name}, then restart.",
        )
    fields = [table[name] for name in wanted]
    sink_names = [route.rename.get(field.name, field.name) for field in fields]
    if doubled := sorted({name for name in sink_names if sink_names.count(name) > 1}):
        raise HaltError(
            "bad_expression",
            f"RENAME of route {route.name} gives two columns the name {', '.join(doubled)}.",
            "Give each column a name of its own, then restart.",
        )
    return StructType([StructField(n, f.dataType, nullable=True) for n, f in zip(sink_names, fields, strict=True)])


def latest_per_key(frame: DataFrame) -> DataFrame:
    """Keep the change of the highest guard per key: what an upsert sink gets.

    Rows whose key is null are no key's rows: each stays by itself, to become a dead letter. A deleted one of them
    was never delivered, so there is nothing to do.
    """
    frame = frame.where(F.col(change.KEY).isNotNull() | ~F.col(change.CHANGE_TYPE).isin(*change.DELETES))
    row_type = frame.schema[change.ROW].dataType
    assert isinstance(row_type, StructType)
    alone = F.when(F.col(change.KEY).isNull(), json_row(row_type))
    columns = [name for name in frame.columns if name != change.KEY]
    newest = F.max_by(F.struct(*columns), F.col(change.GUARD)).alias("newest")
    return frame.groupBy(change.KEY, alone.alias("alone")).agg(newest).select(change.KEY, "newest.*")


def without_preimages(frame: DataFrame) -> DataFrame:
    """What an append sink gets unless preimages were asked for."""
    return frame.where(F.col(change.CHANGE_TYPE) != "update_preimage")


def key_column(table: StructType, route: Route) -> Column:
    """Key text of the route's key columns; null where one of them is null, or where the route has none."""
    if not route.keys:
        return F.lit(None).cast("string")
    return key_text([(F.col(_quoted(name)), table[name].dataType) for name in route.keys])


def _shaped(
    frame: DataFrame, route: Route, epoch: int, change_type: Column, version: Column, timestamp: Column
) -> DataFrame:
    table = frame.schema
    schema = row_schema(table, route)
    wanted = route.columns if route.columns is not None else [n for n in table.fieldNames() if n not in FEED_COLUMNS]
    if route.filter:
        frame = frame.where(F.expr(route.filter))
    upsert = (~change_type.isin(*change.DELETES)).cast("long")
    columns = [F.col(_quoted(name)).alias(field.name) for name, field in zip(wanted, schema.fields, strict=True)]
    return frame.select(
        key_column(table, route).alias(change.KEY),
        (F.lit(epoch * change.EPOCH_STEP).cast("long") + version * 2 + upsert).alias(change.GUARD),
        change_type.alias(change.CHANGE_TYPE),
        version.alias(change.COMMIT_VERSION),
        timestamp.alias(change.COMMIT_TIMESTAMP),
        F.struct(*columns).alias(change.ROW),
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
