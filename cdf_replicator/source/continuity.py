"""Check that a table still has the commits that a route has read: Delta's stream would continue after other commits.

A table that was recreated has another id. A table that was restored from a copy of its files keeps its id and has fewer commits.
Its next commits get numbers that the route has read. Such a commit is later than the time at which the route has read its number,
by the clock of the storage and by the clock of the writer. Files that were moved have a new time, and their commits keep the old
time. The service keeps the time of the file for some commits: those before a start and the last one of a running query. For any
other commit it knows only when the driver planned the micro-batch, by the clock of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.conditions import RESYNC
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.source.commit_log import CommitMark

if TYPE_CHECKING:
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState

WRITER_CLOCK_SECONDS: Final = 60.0
"""Largest difference between the clocks of a writer and of the table's storage."""
DRIVER_CLOCK_SECONDS: Final = 300.0
"""Largest difference between the clock of the driver and each of these."""
BY_DRIVER_CLOCK: Final = (
    ", more than {minutes:.0f} minutes later by the clock of the machine that ran the route (if that clock was slow, the table may be "
    "unchanged)"
)


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


def verify_last_read(source: SourceTable, state: RouteState) -> None:
    """Check that a table has the commit that a route's state records as read; raises ``RouteHaltError``."""
    if state.read_version is not None:
        verify_mark(source, CommitMark(source.log, state.read_version, state.read_modified_at), state.table_id)


def verify_read(source: SourceTable, version: int, read_at: float) -> None:
    """Check at a start that a commit is the commit that was read at ``read_at`` (epoch seconds); raises ``RouteHaltError``."""
    by_clock = BY_DRIVER_CLOCK.format(minutes=DRIVER_CLOCK_SECONDS / 60)
    _verify_commit(source, version, source.log.latest_version(), read_at + DRIVER_CLOCK_SECONDS, by_clock)


def _verify_commit(source: SourceTable, version: int, latest: int, latest_time: float, by_clock: str = "") -> None:
    if version > latest:
        found = f"its log now ends at version {latest}"
    elif source.log.is_written_after(latest_time, version):
        found = f"that version is now another commit{by_clock}"
    else:
        return
    table = source.source
    raise RouteHaltError(
        "history_lost",
        f"The route has read version {version} of table {table.slug} ({table.location}), and {found}: the table was restored "
        "from a copy.",
        RESYNC,
    )
