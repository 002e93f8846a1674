"""Verify one route: compare what its target holds with the version of the source table that the route has delivered.

1. V is the version that the route has delivered.
2. The sink opens its view of the target.
3. W is the newest version of the source table. It is read after a consistent view was opened, and after an inconsistent
   one was read. Every change that the view can hold is therefore at W or earlier.
4. The keys that the change feed names in (V, W] are left out on both sides.

The stream continues meanwhile: there is no pause, no lock and no retry.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state import checkpoint
from cdf_replicator.transform import change_frame
from cdf_replicator.verification import expected
from cdf_replicator.verification.comparison import Comparison, compare
from cdf_replicator.verification.expected import refused as _refused
from cdf_replicator.verification.history import History
from connectors import Aggregated, Auditable, Verifiable, change, guard_of
from connectors.protocols import IDENTITY
from connectors.rendering import in_json_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore
    from connectors import Sink


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of ``verify``.

    Args:
        route: Name of the route.
        target: The target as text.
        version: V, the compared version of the source table.
        newest: W, the version up to which changed keys were left out.
        changed: Number of keys that changed in (V, W].
        dead_letters: Number of keys with an open dead letter, which the target must not hold.
        left_out: Columns that were not compared.
        seconds: Duration.
        comparison: The result of the comparison.
        first_version: The first compared version of a target that keeps every change; None for other targets.
    """

    route: str
    target: str
    version: int
    newest: int
    changed: int
    dead_letters: int
    left_out: tuple[str, ...]
    seconds: float
    comparison: Comparison
    first_version: int | None = None


def verify(
    spark: SparkSession,
    route: Route,
    sink: Sink,
    state_store: StateStore,
    *,
    at: int | None = None,
    columns: Sequence[str] = (),
    limit: int = 20,
) -> Verification:
    """Compare a route's target with its source table; raises ``RouteHaltError`` if they can't be compared.

    Args:
        spark: The session.
        route: The route.
        sink: The route's sink.
        state_store: The state path, which is only read.
        at: The version of the source table to compare; None for the version that the route has delivered.
        columns: The columns of the target to compare; empty for all.
        limit: Most differences to return.
    """
    if not isinstance(sink, Verifiable | Auditable):
        raise _refused(f"The sink of route {route.name} can't be verified: its target can't be read back.")
    if route.filter_is_joined:
        raise _refused(
            f"Route {route.name} can't be verified: its filter depends on earlier contents of a joined table."
        )
    began = time.monotonic()
    state = _streaming(route, state_store)
    source = SourceTable(spark, route.source)
    source.newest_of(state.table_id)
    version = _version(route, state, state_store, source, at)
    letters = DeadLetters(spark, state_store.dead_letters)
    spec = state_store.route_spec(route, state)
    if isinstance(sink, Auditable):
        rejected, preimages = letters.open(route.name), route.source.include_preimages or sink.capabilities.preimages
        history = History(spark, source, route, state, spec, sink, preimages, rejected, version)
        with closing(sink):
            comparison, first, unverified = history.compared(columns, limit)
        seconds, counts = time.monotonic() - began, (0, rejected.count())
        return Verification(
            route.name, sink.target(spec), version, version, *counts, unverified, seconds, comparison, first
        )
    identity = sink.identity(spec)
    snapshot = expected.snapshot(spark, source, route, state, version)
    if isinstance(sink, Aggregated):
        rows, unverified = sink.expected(spec, version)
        if inexact := [name for name in columns if name in unverified]:
            raise _refused(
                f"Column {', '.join(inexact)} of route {route.name} can't be compared: its value may depend on the order of the "
                "rows, as that of a floating-point sum does."
            )
    else:
        rows = snapshot.where(F.col(change.KEY).isNotNull()).select(identity.alias(IDENTITY), change.ROW)
        unverified = expected.unverified(route, expected.row_type(rows))
    row = expected.row_type(rows)
    compared = expected.compared(route, row, columns, unverified)
    with closing(sink), sink.view(spec) as view:
        entries = view.entries(spark, row)
        if not view.consistent:
            entries = entries.dropDuplicates([IDENTITY]).persist(StorageLevel.DISK_ONLY)
            entries.count()  # reads the target before the newest version of the source table
        newest = source.log.latest_version()
        changed = _changed(snapshot, source, route, newest, version).select(identity.alias(IDENTITY)).distinct()
        refused = letters.open(route.name).where(F.col("key").isNotNull())
        if isinstance(sink, Aggregated):  # it refuses no row, and its identities are no key texts
            refused = snapshot.limit(0).withColumn("code", F.lit(""))
        kept = rows.withColumn(change.ROW, in_json_type(F.col(change.ROW), row))
        absent = refused.select(identity.alias(IDENTITY)).distinct()
        doubled = refused.where(F.col("code") == change.DUPLICATE_KEY).select(identity.alias(IDENTITY)).distinct()
        ignored = changed.unionByName(doubled).persist()
        try:
            comparison = compare(
                kept.join(ignored, IDENTITY, "left_anti").join(absent, IDENTITY, "left_anti"),
                entries.join(ignored, IDENTITY, "left_anti"),
                (guard_of(state.epoch, 0, upsert=False), guard_of(state.epoch, newest, upsert=True)),
                compared,
                limit,
            )
            counted = ignored.count(), absent.count()
        finally:
            ignored.unpersist()
            entries.unpersist()
    return Verification(
        route.name, sink.target(spec), version, newest, *counted, unverified, time.monotonic() - began, comparison
    )


def _streaming(route: Route, state_store: StateStore) -> RouteState:
    state = state_store.load(route.name)
    if state is None or state.phase == "bootstrapping":
        raise _refused(f"Route {route.name} has not delivered its first snapshot.", "Repeat the command after that.")
    return state


def _version(route: Route, state: RouteState, state_store: StateStore, source: SourceTable, at: int | None) -> int:
    """Return the version to compare: ``at``, which the route must have delivered, or else the newest delivered version."""
    committed = checkpoint.last_committed(state_store.checkpoint(route.name, state.generation))
    delivered = (state.start_version or 0) - 1 if committed is None else source.log.first_unread(committed) - 1
    if at is not None and at > delivered:
        raise _refused(
            f"Route {route.name} has delivered version {delivered}, and not yet version {at}.",
            "Repeat the command when the route has delivered it.",
        )
    if delivered < 0:
        raise _refused(
            f"Route {route.name} has delivered no version.", "Repeat the command after its first micro-batch."
        )
    return delivered if at is None else at


def _changed(snapshot: DataFrame, source: SourceTable, route: Route, newest: int, version: int) -> DataFrame:
    """Return the changes of the feed in (version, newest]."""
    if newest <= version:
        return snapshot.limit(0)
    return change_frame.change_frame(source.changes(version + 1, newest), route, epoch=1)
