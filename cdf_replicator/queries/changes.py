"""Read the change feed of a table for the command ``changes``: the rows of ``table_changes``, ordered by version.

The JVM builds each line, and the driver fetches the lines partition by partition. A feed may exceed the driver's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.route import Source
from cdf_replicator.source.table import SourceTable
from connectors.change import FEED_COLUMNS, is_delete
from connectors.names import quote_identifier
from connectors.rendering import json_of, key_text, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from cdf_replicator.queries.query import ReadChanges

WIDEST: Final = 40
CSV: Final = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Options of ``to_csv``. A null becomes an empty field, an empty text a quoted field."""
NESTED: Final = ("array", "map", "struct", "variant")
CONF: Final = {
    # The driver collects a feed partition by partition: many small partitions bound its memory for a feed of any size.
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
}


def source_of(query: ReadChanges) -> Source:
    """Return the table that a query names."""
    return Source(query.table, path=query.path, name=query.catalog_name)


def read(spark: SparkSession, query: ReadChanges) -> Iterator[list[str] | str]:
    """Read the changes in a Spark session with the settings of ``CONF``, beside the other sessions of the process."""
    session = spark.newSession()
    for name, value in CONF.items():
        session.conf.set(name, value)
    yield from changes(SourceTable(session, source_of(query)), query)


def changes(table: SourceTable, query: ReadChanges) -> Iterator[list[str] | str]:
    """Yield the column names, then a value for each row.

    Raises ``RouteHaltError`` if the change feed, the range or a key column is missing.
    """
    feed = table.changes(*_versions(table, query))
    schema = feed.schema
    _known(table, schema, query.keys)
    rows = _selected(feed, query)
    columns = [(F.col(quote_identifier(field.name)), field.dataType) for field in schema.fields]
    yield schema.fieldNames()
    if query.format == "json":
        struct = F.struct(*(column for column, _ in columns))
        yield from (row[0] for row in rows.select(json_of(struct, schema)).toLocalIterator())
        return
    texts = [json_of(c, t) if t.typeName() in NESTED else text_of(c, t) for c, t in columns]
    if query.format == "csv":
        yield from (row[0] for row in rows.select(F.to_csv(F.struct(*texts), CSV)).toLocalIterator())
        return
    yield from (list(row) for row in rows.select(*(_cell(text) for text in texts)).toLocalIterator())


def _versions(table: SourceTable, query: ReadChanges) -> tuple[int, int]:
    """Return the first and last commit version; raise ``RouteHaltError`` with the available range."""
    earliest, latest = table.log.available()
    since = table.change_feed_enabled_since()
    where = f"table {table.source.slug} ({table.source.location})"
    if since is None:
        raise RouteHaltError(
            "change_feed_off",
            f"The change feed of {where} is off.",
            f"Turn it on: cdf-replicator enable {table.source.slug}",
        )
    earliest = max(earliest, since)
    first = table.version_at(query.first) if isinstance(query.first, str) else query.first
    if query.last is None:
        last = latest
    else:
        last = table.version_until(query.last) if isinstance(query.last, str) else query.last
    for version in (first, last):
        if not earliest <= version <= latest:
            raise RouteHaltError(
                "start_out_of_range",
                f"Version {version} of {where} is out of range: changes of versions {earliest} to {latest} are available.",
                "Choose versions of that range.",
            )
    if first > last:
        raise RouteHaltError(
            "start_out_of_range",
            f"No commit of {where} is in the range: its first version would be {first}, and its last version {last}.",
            "Choose an earlier start or a later end.",
        )
    return first, last


def _known(table: SourceTable, schema: StructType, keys: Sequence[str]) -> None:
    names = {name.lower() for name in schema.fieldNames()}
    if missing := [key for key in keys if key.lower() not in names]:
        has = ", ".join(name for name in schema.fieldNames() if name not in FEED_COLUMNS)
        raise RouteHaltError(
            "bad_expression",
            f"Table {table.source.slug} ({table.source.location}) has no column {', '.join(missing)}; it has {has}.",
            "Correct --keys, or KEYS of the configured table.",
        )


def _selected(feed: DataFrame, query: ReadChanges) -> DataFrame:
    """Return the selected rows by version and key, with the deletes of a key before its upserts."""
    types = {field.name.lower(): field.dataType for field in feed.schema.fields}
    keys = [(F.col(quote_identifier(name)), types[name.lower()]) for name in query.keys]
    if query.key is not None:
        feed = feed.where(key_text(keys) == query.key)
    effect = F.when(is_delete("_change_type"), 0).otherwise(1)
    feed = feed.orderBy("_commit_version", *(text_of(*key) for key in keys), effect)
    return feed if query.limit is None else feed.limit(query.limit)


def _cell(text: Column) -> Column:
    """Return the text on a single line, cut to ``WIDEST`` characters."""
    line = F.regexp_replace(F.coalesce(text, F.lit("NULL")), r"\s", " ")
    cut = F.concat(F.left(line, F.lit(WIDEST - 1)), F.lit("…"))
    return F.when(F.length(line) > WIDEST, cut).otherwise(line)
