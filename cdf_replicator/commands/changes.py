"""Print the change feed of a table for the command ``changes``, line by line, since a feed may exceed the memory."""

from __future__ import annotations

import csv
import os
import sys
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.commands.session import Answers, reported
from cdf_replicator.settings.redact import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from cdf_replicator.queries.query import ReadChanges
    from cdf_replicator.settings import Settings, TableSettings

PAGE: Final = 100
"""Rows of the format ``table`` with common column widths."""


def changes(reading: TableSettings, settings: Settings | None, query: ReadChanges) -> int:
    """Print the changes and return the exit code. A closed pipe (``| head``) ends the output without an error.

    Args:
        reading: The configuration of tables and Spark.
        settings: The configuration of the service; None if it is incomplete, and the command then starts Spark itself.
        query: The selection.
    """

    def work() -> None:
        with closing(Answers(settings, reading.spark)) as answers:
            try:
                write(answers.values(query), query.format, sys.stdout)
                sys.stdout.flush()
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it at its exit

    return reported(work, table=query.path or query.catalog_name or query.table)


def write(values: Iterator[Any], format_: str, out: TextIO) -> None:
    """Write the values of an answer: the column names, which JSON does not need, and the rows."""
    names = next(values)
    if format_ == "table":
        _write_table(names, values, out)
        return
    if format_ == "csv":
        csv.writer(out, lineterminator="\n").writerow(names)
    out.writelines(line + "\n" for line in values)


def _write_table(names: Sequence[str], rows: Iterator[Sequence[str]], out: TextIO) -> None:
    """Write pages of ``PAGE`` rows, each with headings and columns of its own widths; one page if there is no row."""

    def next_page() -> list[list[str]]:
        return [[*map(printable, row)] for row in islice(rows, PAGE)]

    page = next_page()
    while True:
        widths = [max(map(len, column)) for column in zip(names, *page, strict=True)]
        lines = (names, ["-" * width for width in widths], *page)
        out.writelines("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)
        if not (page := next_page()):
            return
