"""Execute a query in a Spark session, and describe its errors for an operator who repeats the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from cdf_replicator.errors.bounded_read import OF_A_RANGE, step_for
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.queries import changes, dead_letters, plans, validation
from cdf_replicator.queries.query import (
    ListDeadLetters,
    PlanReplay,
    PlanResync,
    ReadChanges,
    ShowDeadLetter,
    Validate,
    Verify,
)
from cdf_replicator.verification import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.queries.query import Query
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore
    from cdf_replicator.verification.result import Verification

log = structlog.get_logger(__name__)

NEXT_STEPS: Final = {
    **OF_A_RANGE,
    "DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS|RESERVED_CDC_COLUMNS": "The change feed needs the names _change_type, "
    "_commit_version and _commit_timestamp: rename the column (ALTER TABLE … RENAME COLUMN, which needs "
    "delta.columnMapping.mode = name), or rewrite the table without it.",
    "DELTA_SCHEMA_NOT_SET|DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE|DELTA_PATH_DOES_NOT_EXIST|PATH_NOT_FOUND"
    "|TABLE_OR_VIEW_NOT_FOUND|DELTA_MISSING_TRANSACTION_LOG|PARSE_SYNTAX_ERROR|REQUIRES_SINGLE_PART_NAMESPACE": "There is no "
    "Delta table of that name: give the slug of a configured table, a path, or a name in the catalog.",
}
"""Next steps by error text for a command that reads a table; the steps of the conditions are for a route."""


def execute(
    query: Query, spark: SparkSession, settings: Settings, state_store: StateStore, *, gently: bool = False
) -> Iterator[Any]:
    """Yield the values of a query, which ``query.value_type`` describes.

    Args:
        query: The query.
        spark: The session.
        settings: The configuration.
        state_store: The state path, which is only read.
        gently: Whether a comparison leaves all cores but one to the streams.
    """
    match query:
        case ListDeadLetters():
            yield from dead_letters.newest(spark, query, state_store)
        case ShowDeadLetter():
            yield from dead_letters.named(spark, query, state_store)
        case ReadChanges():
            yield from changes.read(spark, query)
        case PlanReplay():
            yield from plans.replay(spark, query, settings)
        case PlanResync():
            yield from plans.resync(spark, settings.routes[query.route], settings, state_store)
        case Verify():
            yield _verified(query, spark, settings, state_store, gently=gently)
        case Validate():
            yield from validation.problems(spark, settings)


def _verified(
    query: Verify, spark: SparkSession, settings: Settings, state_store: StateStore, *, gently: bool
) -> Verification:
    route = settings.routes[query.route]
    sink = settings.sink(route.sink)
    return verify(spark, route, sink, state_store, at=query.at, columns=query.columns, limit=query.limit, gently=gently)


def describe_error(error: Exception, route: str = "") -> tuple[str, str]:
    """Return the description of an error and the operator's next step. A route repeats by itself, and a command does not.

    An error of an unknown cause is also logged in full.
    """
    decision = classify_error(error, route=route)
    if found := step_for(error, NEXT_STEPS):
        return decision.message, found
    if decision.reason in (UNKNOWN_SPARK_ERROR, "bug"):
        log.error("unexpected error", error_class=type(error).__name__, exc_info=error)
    next_step = decision.remedy if decision.action == "halt" else "Repeat the command once the error is over."
    return decision.message, next_step
