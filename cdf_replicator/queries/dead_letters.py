"""Read dead letters, with times in UTC as text, so that an answer is the same on every host."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery.dead_letters import DeadLetters, id_filter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from cdf_replicator.queries.query import ListDeadLetters, ShowDeadLetter
    from cdf_replicator.state.store import StateStore

ROW_CHARACTERS: Final = 2000
"""Longest part of a row in a list, since a row may have megabytes."""


def newest(spark: SparkSession, query: ListDeadLetters, state_store: StateStore) -> Iterator[dict[str, Any]]:
    """Yield the selected dead letters, newest first."""

    def read(dead_letters: DataFrame) -> list[dict[str, Any]]:
        if query.route is not None:
            dead_letters = dead_letters.where(F.col("route") == query.route)
        if not query.closed:
            dead_letters = dead_letters.where("state = 'open'")
        found = dead_letters.orderBy(F.desc("created_at"), "id").limit(query.limit)
        start = F.left("row", F.lit(ROW_CHARACTERS))
        found = found.withColumn("row", start) if query.rows else found.drop("row")
        return [_values(each) for each in found.toLocalIterator()]

    yield from DeadLetters(spark, state_store.dead_letters).read(read)


def named(spark: SparkSession, query: ShowDeadLetter, state_store: StateStore) -> Iterator[dict[str, Any]]:
    """Yield the dead letters whose id begins with that of the query, two at most."""

    def read(dead_letters: DataFrame) -> list[dict[str, Any]]:
        return [_values(row) for row in dead_letters.where(id_filter([query.id])).limit(2).toLocalIterator()]

    yield from DeadLetters(spark, state_store.dead_letters).read(read)


def _values(row: Row) -> dict[str, Any]:
    return {name: _utc(value) if isinstance(value, datetime) else value for name, value in row.asDict().items()}


def _utc(at: datetime) -> str:
    """Return the UTC time as text. PySpark gives a timestamp in the time zone of the process, without its offset."""
    return str(at.astimezone(timezone.utc).replace(tzinfo=None))
