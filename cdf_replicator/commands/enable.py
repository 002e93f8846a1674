"""``enable``: turn the change feed of an existing table on, and say from which version it is valid."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cdf_replicator.commands import session

if TYPE_CHECKING:
    from cdf_replicator.route import Source
    from cdf_replicator.settings import Reading
    from cdf_replicator.source.table import SourceTable


def enable(reading: Reading, source: Source) -> int:
    """Returns the exit code."""

    def work(table: SourceTable) -> None:
        sys.stdout.write(enabled(table) + "\n")

    return session.answer(reading, source, work)


def enabled(table: SourceTable) -> str:
    """Turn it on unless it is; returns what to tell. Raises what Delta raises."""
    was_on = table.metadata.change_feed
    if not was_on:
        table.enable_feed()
    since = table.feed_since()
    where = f"{table.source.slug} ({table.location})"
    if was_on:
        return f"{where}: the change feed is on since version {since}. Nothing was changed."
    return (
        f"{where}: the change feed is on from version {since} on. Changes made before are not in it; a route without a "
        "starting version begins with a snapshot, and needs none of them."
    )
