"""Check the tables and the sinks for ``validate``, without changing them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DecimalType

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.exceptions import EnrichmentError, RouteHaltError
from cdf_replicator.pipeline.rejections import COUNTED_UNFILTERED, allowed
from cdf_replicator.queries.answer import Finding
from cdf_replicator.source.table import SourceTable
from cdf_replicator.transform import change_frame
from cdf_replicator.transform.enrichment import Dimensions
from connectors import ArrowSink, RetryableError, SinkError, change
from connectors.rendering import EXACT_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

    from cdf_replicator.queries.answer import Severity
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.models import Delivery

EXAMPLES: Final = 5
"""Largest number of duplicate keys that a finding names."""


def problems(spark: SparkSession, settings: Settings) -> Iterator[Finding]:
    """Yield every problem of the tables and of the sinks, in this order, each once."""
    yield from dict.fromkeys(_problems(spark, settings))


def _problems(spark: SparkSession, settings: Settings) -> Iterator[Finding]:
    by_table = sorted(settings.routes.values(), key=lambda route: route.source.slug)
    for _, routes in groupby(by_table, key=lambda route: route.source.slug):
        yield from _table(spark, settings, *routes)
    for slug in sorted({route.sink for route in settings.routes.values()}):
        yield from _sink(settings, slug)


def _table(spark: SparkSession, settings: Settings, *routes: Route) -> Iterator[Finding]:
    """Check a table and its routes. One pass over the rows serves all routes."""
    where, given = f"table {routes[0].source.slug}", routes[0].source
    try:
        source = SourceTable(spark, given)
        if not source.metadata.change_feed:
            yield Finding(
                where,
                f"{given.location} has no change feed.",
                f"Enable it: cdf-replicator enable {given.slug} (or ALTER TABLE delta.`{source.location}` SET "
                "TBLPROPERTIES (delta.enableChangeDataFeed = true)).",
            )
        schema = source.schema()
        sound = []
        for route in routes:
            try:
                yield from _route(spark, settings, route, source, schema)
                sound.append(route)
            except (RouteHaltError, EnrichmentError) as error:
                yield Finding(f"route {route.name}", error.decision.message, error.decision.remedy)
        keyed = [route for route in sound if route.keys and settings.sink(route.sink).mode == "upsert"]
        if keyed:
            yield from _keys(source.snapshot(source.log.latest_version()), keyed, settings.delivery)
    except (RouteHaltError, EnrichmentError) as error:
        yield Finding(where, error.decision.message, error.decision.remedy)
    except PySparkException as error:
        decision = classify_error(error, route=routes[0].name)
        yield Finding(where, f"{given.location}: {decision.message}", decision.remedy)


def _route(
    spark: SparkSession, settings: Settings, route: Route, source: SourceTable, schema: StructType
) -> Iterator[Finding]:
    if route.source.starting_version is not None:
        source.check_range(route.source.starting_version)
    if route.source.starting_timestamp is not None:
        source.version_at(route.source.starting_timestamp)
    dimensions = Dimensions(spark, route)
    row = change_frame.row_schema(schema, route, dimensions.columns(schema))
    dimensions.snapshot_join()
    if not isinstance(settings.sink(route.sink), ArrowSink):
        return
    for name in route.computed:
        kind = row[name].dataType
        if isinstance(kind, DecimalType) and kind.precision > EXACT_DIGITS:
            yield Finding(
                f"route {route.name}",
                f"COMPUTED {name} is {kind.simpleString()} and arrives as text: a JSON number is exact up to "
                f"{EXACT_DIGITS} digits.",
                f"To deliver a number, cast it: cast(... as decimal({EXACT_DIGITS}, {kind.scale})) or double(...).",
                "warning",
            )


def _keys(snapshot: DataFrame, routes: Sequence[Route], limits: Delivery) -> Iterator[Finding]:
    """Count the rows without a key and the duplicate keys in one pass over the table.

    Routes with the same keys and filter share a count, since most routes of a table have both in common.
    """
    definitions: dict[tuple[tuple[str, ...], str | None], list[Route]] = {}
    for route in routes:
        definitions.setdefault((route.keys, None if route.filter_is_joined else route.filter), []).append(route)
    each = [
        F.struct(
            F.lit(number).alias("definition"),
            F.coalesce(F.expr(condition or "true"), F.lit(False)).alias("passes"),
            change_frame.key_column(snapshot.schema, sharing[0]).alias(change.KEY),
        )
        for number, ((_, condition), sharing) in enumerate(definitions.items())
    ]
    keys = snapshot.select(F.explode(F.array(*each)).alias("row")).select("row.*").where("passes")
    named = F.col(change.KEY).isNotNull()
    several = named & (F.col("rows") > 1)
    counted = keys.groupBy("definition", change.KEY).agg(F.count("*").alias("rows")).groupBy("definition")
    found = counted.agg(
        F.sum(F.when(~named, F.col("rows"))).alias("without"),
        F.count_if(several).alias("doubled"),
        F.sum("rows").alias("rows"),
        F.min_by(change.KEY, F.when(several, F.col(change.KEY)), EXAMPLES).alias("examples"),
    )
    by_number = {row["definition"]: row for row in found.collect()}
    for number, ((columns, _), sharing) in enumerate(definitions.items()):
        if number in by_number:
            yield from _of_keys(by_number[number], ", ".join(columns), sharing, limits)


def _of_keys(row: Row, columns: str, routes: Sequence[Route], limits: Delivery) -> Iterator[Finding]:
    for route in routes:
        where = f"route {route.name}"
        if row["without"]:
            what = f"Rows with a null in key column {columns}: {row['without']}."
            yield Finding(where, what, "They would become dead letters: correct KEYS or the data.")
        if row["doubled"]:
            named = ", ".join(row["examples"]) + (", …" if row["doubled"] > len(row["examples"]) else "")
            what = f"Keys that several rows have (key columns {columns}): {row['doubled']} ({named})."
            what += COUNTED_UNFILTERED if route.filter_is_joined else ""
            yield Finding(where, what, *_of_doubled(row, route, limits))


def _of_doubled(row: Row, route: Route, limits: Delivery) -> tuple[str, Severity]:
    """Return the effect of duplicate keys on a first load or a resync, by the limits of ``Rejections``."""
    correct = f"Correct CDF_TABLES__{route.source.slug.upper()}__KEYS or the data"
    if route.source.on_duplicate_keys == "halt":
        return f"The first load would halt (duplicate_keys). {correct}.", "error"
    if row["doubled"] > allowed(row["rows"], limits):
        raised = "or raise CDF_DELIVERY__MAX_REJECTED_SHARE"
        return f"The first load would halt: too many rows are refused. {correct}, {raised}.", "error"
    kept = "The first load keeps each of their rows as a dead letter (duplicate_key), and the sink lacks these keys."
    if route.filter_is_joined:
        kept = "The first load keeps the rows of a key as dead letters (duplicate_key) only if several of them pass the filter."
    return f"{kept} {correct} if that is not intended.", "warning"


def _sink(settings: Settings, slug: str) -> Iterator[Finding]:
    sink = settings.sink(slug)
    try:
        sink.check()
    except RetryableError as error:
        yield Finding(f"sink {slug}", f"{str(error).rstrip('.')}.", "Start it, or correct its address.")
    except SinkError as error:
        yield Finding(f"sink {slug}", str(error).replace("{route}", "ROUTE"), "")
    finally:
        sink.close()
