"""Run a read-only command against one source table in its own Spark session, without lease and state path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.errors.bounded_read import OF_A_RANGE, step_for
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.route import Source
from cdf_replicator.runtime import exit_codes
from cdf_replicator.source.table import SourceTable
from cdf_replicator.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.settings import TableSettings
    from cdf_replicator.settings.models import Spark, Table

log = structlog.get_logger(__name__)

CONF: Final = {
    # The driver collects a feed partition by partition: many small partitions bound its memory for a feed of any size.
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
}

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


def source_named(name: str, tables: Mapping[str, Table]) -> Source:
    """Return a configured table by its slug, else a path (a name with a slash), else a name in the catalog."""
    if name in tables:
        return Source(name, path=tables[name].path, name=tables[name].name)
    return Source(name, path=name) if "/" in name else Source(name, name=name)


def routes_named(name: str, routes: Mapping[str, Route]) -> list[Route]:
    """Return a route by its name, else the routes of the table of that name."""
    return [routes[name]] if name in routes else [route for route in routes.values() if route.source.slug == name]


def answer(reading: TableSettings, source: Source, work: Callable[[SourceTable], None]) -> int:
    """Run ``work`` with the table and return the exit code; log an error with a next step."""
    settings = reading.spark.model_copy(update={"conf": {**CONF, **reading.spark.conf}})
    return with_session(settings, lambda spark: work(SourceTable(spark, source)), table=source.location)


def with_session(
    settings: Spark,
    work: Callable[[SparkSession], None],
    *,
    route: str = "",
    **context: str,
) -> int:
    """Run ``work`` with its own Spark session and return the exit code; log an error with a next step and ``context``."""
    try:
        spark = session.start(settings)
    except session.SparkStartError as error:
        log.error(str(error))  # noqa: TRY400 - the message is complete
        return exit_codes.CONFIGURATION
    try:
        return exit_codes.DONE if succeeds(lambda: work(spark), route=route, **context) else exit_codes.FAILED
    finally:
        spark.stop()


def succeeds(work: Callable[[], None], *, route: str = "", **context: str) -> bool:
    """Run ``work`` and return whether it raised no error; log an error with a next step and ``context``."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - every error of Spark is logged as a message
        what, next_step = describe_error(error, route)
        log.error(what, next_step=next_step, **context)  # noqa: TRY400
        return False
    return True


def describe_error(error: Exception, route: str = "") -> tuple[str, str]:
    """Return the description of an error and the operator's next step. A route repeats by itself, and a command does not."""
    decision = classify_error(error, route=route)
    next_step = decision.remedy if decision.action == "halt" else "Repeat the command once the error is over."
    return decision.message, step_for(error, NEXT_STEPS) or next_step
