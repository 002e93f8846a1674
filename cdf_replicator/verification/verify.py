"""Verify one route: compare what its target holds with the version of the source table that the route has delivered.

The stream continues meanwhile: there is no pause, no lock and no retry.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state import checkpoint
from cdf_replicator.verification.entries import Entries
from cdf_replicator.verification.expected import Expected, refused
from cdf_replicator.verification.history import History
from cdf_replicator.verification.result import Verification
from connectors import Auditable, Repairable, Verifiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.state.route_state import RouteState
    from cdf_replicator.state.store import StateStore
    from connectors import Sink


def verify(
    spark: SparkSession,
    route: Route,
    sink: Sink,
    state_store: StateStore,
    *,
    at: int | None = None,
    columns: Sequence[str] = (),
    limit: int = 20,
    gently: bool = False,
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
        gently: Whether to read rows and entries in one task at a time, which leaves the other cores to the streams.
    """
    if not isinstance(sink, Verifiable | Auditable):
        raise refused(f"The sink of route {route.name} can't be verified: its target can't be read back.")
    if route.filter_is_joined:
        raise refused(
            f"Route {route.name} can't be verified: its filter depends on earlier contents of a joined table."
        )
    began = time.monotonic()
    state = _streaming(route, state_store)
    source = SourceTable(spark, route.source)
    source.newest_of(state.table_id)
    version = _version(route, state, state_store, source, at)
    letters, spec = DeadLetters(spark, state_store.dead_letters), state_store.route_spec(route, state)
    table = Expected(spark, source, route, state)
    with closing(sink):
        if isinstance(sink, Auditable):
            preimages = route.source.include_preimages or sink.capabilities.preimages
            open_ = letters.read_open(route.name)
            history = History(table, spec, sink, preimages, open_, version)
            comparison, first, left_out = history.compared(columns, limit)
            counts = version, 0, open_.count()
        else:
            entries = Entries(table, spec, sink, letters, version, gently)
            found, first = entries.compared(columns, limit), None
            comparison, left_out = found.comparison, found.left_out
            counts = found.newest, found.changed, found.dead_letters
    _check_undisturbed(route, state, state_store)
    seconds, repairable = time.monotonic() - began, isinstance(sink, Repairable)
    snapshot = first if first == state.pinned_version else None
    return Verification(
        route.name, sink.target(spec), version, *counts, left_out, seconds, comparison, repairable, first, snapshot
    )


def _streaming(route: Route, state_store: StateStore) -> RouteState:
    state = state_store.load(route.name)
    if state is None or state.phase == "bootstrapping":
        raise refused(f"Route {route.name} has not delivered its first snapshot.", "Repeat the command after that.")
    return state


def _check_undisturbed(route: Route, before: RouteState, state_store: StateStore) -> None:
    """Refuse a result if a replay or a resync began meanwhile: guards of the next epoch would be foreign to the former one.

    The state path records a new epoch before the sink receives a guard of it.
    """
    now = state_store.load(route.name)
    if now is None or (now.epoch, now.generation, now.phase) != (before.epoch, before.generation, before.phase):
        raise refused(
            f"A replay or a resync of route {route.name} began meanwhile, so that the comparison has no result.",
            "Repeat the command when the route is running.",
        )


def _version(route: Route, state: RouteState, state_store: StateStore, source: SourceTable, at: int | None) -> int:
    """Return the version to compare: ``at``, which the route must have delivered, or else the newest delivered version."""
    committed = checkpoint.last_committed(state_store.checkpoint(route.name, state.generation))
    delivered = (state.start_version or 0) - 1 if committed is None else source.log.first_unread(committed) - 1
    if at is not None and at > delivered:
        raise refused(
            f"Route {route.name} has delivered version {delivered}, and not yet version {at}.",
            "Repeat the command when the route has delivered it.",
        )
    if delivered < 0:
        raise refused(
            f"Route {route.name} has delivered no version.", "Repeat the command after its first micro-batch."
        )
    return delivered if at is None else at
