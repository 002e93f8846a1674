"""Print the effect of a replay or a resync for ``--dry-run``, without the lease and without a write."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from cdf_replicator.commands.session import with_session
from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.pipeline.target_claim import check_resyncable
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state.location import state_folder
from cdf_replicator.state.store import StateStore
from cdf_replicator.transform import change_frame
from connectors import Resyncable, change, guard_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.route_state import RouteState
    from connectors import EntryCount, Sink


VERSIONS_SHOWN: Final = 50


def preview_replay(settings: Settings, routes: Sequence[Route], first: int, last: int | None) -> int:
    """Print the number of rows by version and change type of each source table and return the exit code."""
    console = Console()

    def work(session: SparkSession) -> None:
        for source in {route.source.slug: route.source for route in routes}.values():
            table = SourceTable(session, source)
            table.check_range(first)
            newest = table.log.latest_version() if last is None else last
            table.check_range(newest)
            console.print(_by_version(table, first, newest))
        names = ", ".join(route.name for route in routes)
        console.print(f"Would be delivered again to: {names}. Nothing was written.")

    return with_session(settings.spark, work, route=routes[0].name)


def preview_resync(settings: Settings, route: Route) -> int:
    """Print the number of rows that a resync would write and of entries it would remove; return the exit code."""

    def work(session: SparkSession) -> None:
        table = SourceTable(session, route.source)
        with closing(settings.sink(route.sink)) as sink:
            lines = resync_plan(table, sink, route, _waiting(settings, route))
        sys.stdout.write("\n".join(lines) + "\n")

    return with_session(settings.spark, work, route=route.name)


def resync_plan(table: SourceTable, sink: Sink, route: Route, waiting: RouteState | None) -> list[str]:
    """Return lines that compare the snapshot with the target.

    ``waiting`` is the state of a resync whose sweep waits for the operator, or None. Raises ``RouteHaltError`` if the resync
    would be refused since the sink can't delete orphans.
    """
    latest = table.log.available()[1]
    snapshot = change_frame.snapshot_frame(table.snapshot(latest), route, epoch=1, version=latest, committed_at=0)
    if sink.mode == "append":
        rows = snapshot.count()
        return [
            f"{route.name}: {rows} rows of version {latest} would be delivered, marked snapshot. Nothing was written."
        ]
    rows = snapshot.where(F.col(change.KEY).isNotNull()).count()
    spec = route.spec(owner="", epoch=0)
    written = "those that pass the joined filter" if route.enrich and route.filter else "each"
    lines = [
        f"route   {route.name}: {sink.target(spec)}",
        f"source  {rows} rows in version {latest} of {route.source.slug}: {written} would be written again",
    ]
    if not isinstance(sink, Resyncable):
        check_resyncable(route, sink, sink.read_claim(spec))
        lines.append("target  empty: nothing would be removed")
    elif waiting is not None:
        entries = sink.count_entries(spec, guard_of(waiting.epoch, 0, upsert=False))
        lines.append(
            f"target  {entries.total} entries, of which {_share(entries.orphans, entries)} would be removed: version "
            f"{waiting.pinned_version} is loaded, and its sweep waits for --yes"
        )
    else:
        entries = sink.count_entries(spec, 0)
        fewest = max(0, entries.total - rows)
        lines.append(f"target  {entries.total} entries, of which at least {_share(fewest, entries)} would be removed")
    return [*lines, "Nothing was written."]


def _share(removed: int, entries: EntryCount) -> str:
    return f"{removed} ({removed / entries.total if entries.total else 0:.1%})"


def _waiting(settings: Settings, route: Route) -> RouteState | None:
    try:
        state = StateStore(state_folder(settings)).load(route.name)
    except StateError:
        return None
    return state if state is not None and state.phase == "bootstrapping" and state.snapshot_loaded else None


def _by_version(source: SourceTable, first: int, last: int) -> Table:
    kinds = change.CHANGE_TYPES[1:]
    rows = source.changes(first, last).groupBy("_commit_version").pivot("_change_type", list(kinds)).count()
    counted = rows.na.fill(0).orderBy("_commit_version").collect()
    title = f"{source.source.slug}: versions {first} to {last} ({len(counted)} with changes)"
    table = Table("version", *kinds, title=title)
    for row in counted[:VERSIONS_SHOWN]:
        table.add_row(*(str(value) for value in row))
    if len(counted) > VERSIONS_SHOWN:
        table.add_row(f"… {len(counted) - VERSIONS_SHOWN} more", *("" for _ in kinds))
    table.add_section()
    table.add_row("all", *(str(sum(row[kind] for row in counted)) for kind in kinds))
    return table
