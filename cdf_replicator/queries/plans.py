"""Compute the effect of a replay or a resync for ``--dry-run``, without the lease and without a write."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.errors.conditions import USE_RANGE_OR_RESYNC
from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.pipeline.target_claim import check_resyncable
from cdf_replicator.queries.answer import ReplayPlan, ResyncPlan
from cdf_replicator.source.table import SourceTable
from cdf_replicator.transform import change_frame
from connectors import Resyncable, change, guard_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.queries.query import PlanReplay
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore
    from connectors import Sink

VERSIONS_SHOWN: Final = 50


def replay(spark: SparkSession, query: PlanReplay, settings: Settings) -> Iterator[ReplayPlan]:
    """Yield the number of rows by version and change type of each source table."""
    sources = [settings.routes[name].source for name in query.routes]
    for source in {each.slug: each for each in sources}.values():
        table, first = SourceTable(spark, source), query.starting_version
        table.check_range(first, USE_RANGE_OR_RESYNC)
        last = table.log.latest_version() if query.ending_version is None else query.ending_version
        table.check_range(last, USE_RANGE_OR_RESYNC)
        yield _by_version(table, first, last)


def resync(spark: SparkSession, route: Route, settings: Settings, state_store: StateStore) -> Iterator[ResyncPlan]:
    """Yield the number of rows that a resync would write and of entries that it would remove."""
    table = SourceTable(spark, route.source)
    with closing(settings.sink(route.sink)) as sink:
        yield resync_plan(table, sink, route, _waiting(state_store, route))


def resync_plan(table: SourceTable, sink: Sink, route: Route, waiting: RouteState | None) -> ResyncPlan:
    """Compare the snapshot with the target.

    ``waiting`` is the state of a resync whose sweep waits for the operator, or None. Raises ``RouteHaltError`` if the resync
    would be refused since the sink can't delete orphans.
    """
    latest = table.log.available()[1]
    snapshot = change_frame.snapshot_frame(table.snapshot(latest), route, epoch=1, version=latest, committed_at=0)
    if sink.mode == "append":
        return ResyncPlan(route.name, route.source.slug, latest, snapshot.count())
    rows = snapshot.where(F.col(change.KEY).isNotNull()).count()
    spec = route.spec(owner="", epoch=0)
    entries: int | None = None
    removed, loaded = 0, None
    if not isinstance(sink, Resyncable):
        check_resyncable(route, sink, sink.read_claim(spec))
    elif waiting is not None:
        counted, loaded = sink.count_entries(spec, guard_of(waiting.epoch, 0, upsert=False)), waiting.pinned_version
        entries, removed = counted.total, counted.orphans
    else:
        entries = sink.count_entries(spec, 0).total
        removed = max(0, entries - rows)
    filtered = bool(route.enrich and route.filter)
    return ResyncPlan(
        route.name, route.source.slug, latest, rows, sink.target(spec), filtered, entries, removed, loaded
    )


def _waiting(state_store: StateStore, route: Route) -> RouteState | None:
    try:
        state = state_store.load(route.name)
    except StateError:
        return None
    return state if state is not None and state.phase == "bootstrapping" and state.snapshot_loaded else None


def _by_version(source: SourceTable, first: int, last: int) -> ReplayPlan:
    kinds = change.CHANGE_TYPES[1:]
    rows = source.changes(first, last).groupBy("_commit_version").pivot("_change_type", list(kinds)).count()
    counted = rows.na.fill(0).orderBy("_commit_version").collect()
    return ReplayPlan(
        source.source.slug,
        first,
        last,
        tuple(kinds),
        tuple(tuple(row) for row in counted[:VERSIONS_SHOWN]),
        len(counted),
        tuple(sum(row[kind] for row in counted) for kind in kinds),
    )
