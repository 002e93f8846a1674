"""Enable the change feed of an existing table, and print the version from which it is valid."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cdf_replicator.commands import session

if TYPE_CHECKING:
    from cdf_replicator.route import Source
    from cdf_replicator.settings import TableSettings
    from cdf_replicator.source.table import SourceTable


def enable(reading: TableSettings, source: Source) -> int:
    """Enable the change feed and return the exit code."""

    def work(table: SourceTable) -> None:
        sys.stdout.write(enabled(table) + "\n")

    return session.answer(reading, source, work)


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
