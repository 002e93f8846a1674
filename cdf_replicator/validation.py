"""``validate``, the part that asks the tables and the sinks; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator import feed, spark
from cdf_replicator.enrichment import Dimensions
from cdf_replicator.source import SourceTable
from cdf_replicator.state import StateError, StatePath
from cdf_replicator.verdict import DimensionError, HaltError, judge
from connectors import RetryableError, SinkError, change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings


@dataclass(frozen=True, slots=True)
class Finding:
    """``where``: a route, table or sink; ``next_step``: what to do about it."""

    where: str
    what: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.next_step}"


def check_online(settings: Settings) -> list[Finding]:
    """Everything that is wrong with the state path, the tables and the sinks, in this order."""
    findings: list[Finding] = []
    try:
        findings += _state_path(settings)
        session = spark.start(settings.spark)
    except (spark.SparkStartError, spark.JavaNotFoundError) as error:
        return [*findings, Finding("spark", str(error), "")]
    try:
        for route in settings.resolved.values():
            findings += _table(session, route)
        for slug in sorted({route.sink for route in settings.resolved.values()}):
            findings += _sink(settings, slug)
    finally:
        session.stop()
    return list(dict.fromkeys(findings))


def _state_path(settings: Settings) -> Iterator[Finding]:
    try:
        StatePath.open(spark.state_folder(settings))
    except StateError as error:
        yield Finding("state path", str(error), "")
    except OSError as error:
        yield Finding(
            "state path", f"{settings.state_path} can't be used: {error.strerror}.", "See that its store answers."
        )


def _table(session: SparkSession, route: Route) -> Iterator[Finding]:
    where = f"table {route.source.slug}"
    try:
        source = SourceTable(session, route.source)
        if not source.metadata.change_feed:
            yield Finding(
                where,
                f"{route.source.location} has no change feed.",
                f"Enable it: ALTER TABLE delta.`{source.location}` SET TBLPROPERTIES "
                "(delta.enableChangeDataFeed = true)",
            )
        if route.source.starting_version is not None:
            source.check_range(route.source.starting_version)
        if route.source.starting_timestamp is not None:
            source.version_at(route.source.starting_timestamp)
        schema = source.schema()
        dimensions = Dimensions(session, route)
        feed.row_schema(schema, route, dimensions.columns(schema))
        dimensions.pin()
        latest = source.log.latest_version()
        frame = feed.snapshot_frame(source.snapshot(latest), route, epoch=1, version=latest, committed_at=0)
        nulls = frame.where(F.col(change.KEY).isNull()).count() if route.keys else 0
        if nulls:
            yield Finding(
                f"route {route.name}",
                f"{nulls} rows have a null in key column {', '.join(route.keys)}.",
                "They would become dead letters: correct KEYS or the data.",
            )
    except (HaltError, DimensionError) as error:
        yield Finding(f"route {route.name}", error.verdict.what, error.verdict.next_step)
    except PySparkException as error:
        verdict = judge(error, route=route.name)
        yield Finding(where, f"{route.source.location}: {verdict.what}", verdict.next_step)


def _sink(settings: Settings, slug: str) -> Iterator[Finding]:
    sink = settings.sink(slug)
    try:
        sink.check()
    except RetryableError as error:
        yield Finding(f"sink {slug}", f"{error}.", "Start it, or correct its address.")
    except SinkError as error:
        yield Finding(f"sink {slug}", str(error), "")
    finally:
        sink.close()
