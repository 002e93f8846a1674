"""Enable the change feed of an existing table, and print the version from which it is valid."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from cdf_replicator.commands.session import AnswerError, Answers, reported
from cdf_replicator.queries.execution import describe_error
from cdf_replicator.source.table import SourceTable

if TYPE_CHECKING:
    from cdf_replicator.route import Source
    from cdf_replicator.settings import TableSettings


def enable(reading: TableSettings, source: Source) -> int:
    """Enable the change feed and return the exit code."""

    def work() -> None:
        with closing(Answers(None, reading.spark)) as answers:
            spark = answers.session()
            try:
                line = enabled(SourceTable(spark, source))
            except Exception as error:
                raise AnswerError(*describe_error(error)) from error
        sys.stdout.write(line + "\n")

    return reported(work, table=source.location)


def enabled(table: SourceTable) -> str:
    """Enable the change feed if it is off, and return a line for the operator."""
    was_on = table.metadata.change_feed
    if not was_on:
        table.enable_feed()
    since = table.change_feed_enabled_since()
    where = f"{table.source.slug} ({table.location})"
    if was_on:
        return f"{where}: the change feed is on since version {since}. Nothing was changed."
    return (
        f"{where}: the change feed is on from version {since} on. Changes made before are not in it; a route without a "
        "starting version begins with a snapshot, and needs none of them."
    )
