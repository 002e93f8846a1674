"""Print the change feed of a table for the command ``changes``: the rows of ``table_changes``, ordered by version.

The JVM builds each line, and the driver fetches the lines partition by partition. A feed may exceed the driver's memory.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.commands import session
from cdf_replicator.errors.exceptions import RouteHaltError
from connectors.change import FEED_COLUMNS, is_delete
from connectors.names import quote_identifier
from connectors.rendering import json_of, key_text, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from cdf_replicator.route import Source
    from cdf_replicator.settings import TableSettings
    from cdf_replicator.source.table import SourceTable

Format = Literal["table", "json", "csv"]

PAGE: Final = 100
"""Rows of the format ``table`` with common column widths."""
WIDEST: Final = 40
CSV: Final = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Options of ``to_csv``. A null becomes an empty field, an empty text a quoted field."""
NESTED: Final = ("array", "map", "struct", "variant")


@dataclass(frozen=True, slots=True)
class ChangesQuery:
    """A selection of changes.

    Args:
        first: First commit version, or a timestamp as text.
        last: Last commit version, or a timestamp as text. None selects the newest version.
        keys: Key columns. They order the rows of a version.
        key: Key text by the columns ``keys``. None selects every key.
        limit: Largest number of rows.
        format: Output format.
    """

    first: int | str
    last: int | str | None = None
    keys: Sequence[str] = ()
    key: str | None = None
    limit: int | None = None
    format: Format = "table"


def changes(reading: TableSettings, source: Source, query: ChangesQuery) -> int:
    """Print the changes and return the exit code. A closed pipe (``| head``) ends the output without an error."""

    def work(table: SourceTable) -> None:
        try:
            write(table, query, sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it at its exit

    return session.answer(reading, source, work)


def write(table: SourceTable, query: ChangesQuery, out: TextIO) -> None:
    """Write the lines to ``out``; raise ``RouteHaltError`` if the change feed, the range or a key column is missing."""
    feed = table.changes(*_versions(table, query))
    schema = feed.schema
    _known(table, schema, query.keys)
    rows = _selected(feed, query)
    columns = [(F.col(quote_identifier(field.name)), field.dataType) for field in schema.fields]
    if query.format == "json":
        struct = F.struct(*(column for column, _ in columns))
        out.writelines(row[0] + "\n" for row in _lines(rows.select(json_of(struct, schema))))
        return
    texts = [json_of(c, t) if t.typeName() in NESTED else text_of(c, t) for c, t in columns]
    if query.format == "csv":
        csv.writer(out, lineterminator="\n").writerow(schema.fieldNames())
        out.writelines(row[0] + "\n" for row in _lines(rows.select(F.to_csv(F.struct(*texts), CSV))))
        return
    _write_table(schema.fieldNames(), _lines(rows.select(*(_cell(text) for text in texts))), out)


def _versions(table: SourceTable, query: ChangesQuery) -> tuple[int, int]:
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


def _selected(feed: DataFrame, query: ChangesQuery) -> DataFrame:
    """Return the selected rows by version and key, with the deletes of a key before its upserts."""
    types = {field.name.lower(): field.dataType for field in feed.schema.fields}
    keys = [(F.col(quote_identifier(name)), types[name.lower()]) for name in query.keys]
    if query.key is not None:
        feed = feed.where(key_text(keys) == query.key)
    effect = F.when(is_delete("_change_type"), 0).otherwise(1)
    feed = feed.orderBy("_commit_version", *(text_of(*key) for key in keys), effect)
    return feed if query.limit is None else feed.limit(query.limit)


def _lines(frame: DataFrame) -> Iterator[Sequence[str]]:
    yield from frame.toLocalIterator()


def _cell(text: Column) -> Column:
    """Return the text on a single line, cut to ``WIDEST`` characters."""
    line = F.regexp_replace(F.coalesce(text, F.lit("NULL")), r"\s", " ")
    cut = F.concat(F.left(line, F.lit(WIDEST - 1)), F.lit("…"))
    return F.when(F.length(line) > WIDEST, cut).otherwise(line)


def _write_table(names: Sequence[str], rows: Iterator[Sequence[str]], out: TextIO) -> None:
    """Write pages of ``PAGE`` rows, each with headings and columns of its own widths; one page if there is no row."""
    page = list(islice(rows, PAGE))
    while True:
        widths = [max(map(len, column)) for column in zip(names, *page, strict=True)]
        lines = (names, ["-" * width for width in widths], *page)
        out.writelines("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)
        if not (page := list(islice(rows, PAGE))):
            return
