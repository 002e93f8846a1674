"""Check that a table still has the commits that a route has read: Delta's stream would continue after other commits.

A table that was recreated has another id. A table that was restored from a copy of its files keeps its id and has fewer commits.
Its next commits get numbers that the route has read. Such a commit is later than the time at which the route has read its number,
by the clock of the storage and by the clock of the writer. Files that were moved have a new time, and their commits keep the old
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.conditions import RESYNC
from cdf_replicator.errors.exceptions import RouteHaltError

if TYPE_CHECKING:
    from cdf_replicator.source.commit_log import CommitMark
    from cdf_replicator.source.table import SourceTable

WRITER_CLOCK_SECONDS: Final = 60.0
"""Largest difference between the clocks of a writer and of the table's storage."""
DRIVER_CLOCK_SECONDS: Final = 300.0
"""Largest difference between the clock of the driver and each of these."""


def verify_mark(source: SourceTable, mark: CommitMark, table_id: str) -> None:
    """Check the table if the file of a commit was replaced while the route runs; raises ``RouteHaltError``.

    Args:
        source: The source table.
        mark: The last commit that the route has read.
        table_id: Delta's id of the table that the route follows.
    """
    if not mark.is_unchanged:
        source.newest_of(table_id)
        latest = source.log.available()[1]  # the log may be shorter than its newest known version
        _verify_commit(source, mark.version, latest, (mark.time or 0.0) + WRITER_CLOCK_SECONDS)


def verify_read(source: SourceTable, version: int, read_at: float) -> None:
    """Check at a start that a commit is the commit that was read at ``read_at`` (epoch seconds); raises ``RouteHaltError``."""
    _verify_commit(source, version, source.log.latest_version(), read_at + DRIVER_CLOCK_SECONDS)


def _verify_commit(source: SourceTable, version: int, latest: int, latest_time: float) -> None:
    if version > latest:
        found = f"its log now ends at version {latest}"
    elif source.log.is_written_after(latest_time, version):
        found = "that version is now another commit"
    else:
        return
    table = source.source
    raise RouteHaltError(
        "history_lost",
        f"The route has read version {version} of table {table.slug} ({table.location}), and {found}: the table was restored "
        "from a copy.",
        RESYNC,
    )
