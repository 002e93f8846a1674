"""What the scenarios share: the sinks' variables, and a source table to write to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.reading import Rows, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deploy.servers import Elasticsearch, Redis


@dataclass(frozen=True)
class Source:
    """A Delta table with a key ``id``, written by another Spark than the service's."""

    spark: SparkSession
    path: Path

    def sql(self, statement: str) -> int:
        """Run a statement, with ``{}`` for the table; returns the version it made."""
        self.spark.sql(statement.format(f"delta.`{self.path}`"))
        return self.version

    @property
    def version(self) -> int:
        return max(int(file.stem) for file in (self.path / "_delta_log").glob("*.json"))

    @property
    def rows(self) -> Rows:
        return table(self.spark, self.path, ["id"])


@pytest.fixture(scope="session")
def new_source(spark: SparkSession) -> Callable[..., Source]:
    """Make a table with its change feed on, at ``folder``/``name``, with ids from 0 on."""

    def make(folder: Path, name: str, rows: int = 10) -> Source:
        source = Source(spark, folder / name)
        source.sql(
            "CREATE TABLE {} (id BIGINT, name STRING, amount BIGINT) USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )
        source.sql(f"INSERT INTO {{}} SELECT id, concat('name ', id), id * 10 FROM range({rows})")
        return source

    return make


@pytest.fixture(scope="module")
def sinks(elasticsearch: Elasticsearch, redis_server: Redis) -> Callable[[Path], dict[str, object]]:
    """Variables of the sinks ``audit``, ``search`` and ``cache``."""

    def variables(folder: Path) -> dict[str, object]:
        return {
            "SINKS__AUDIT__TYPE": "delta_audit",
            "SINKS__AUDIT__PATH": folder / "audit",
            "SINKS__SEARCH__TYPE": "elasticsearch",
            "SINKS__SEARCH__HOSTS": elasticsearch.url,
            "SINKS__CACHE__TYPE": "redis",
            "SINKS__CACHE__URL": redis_server.url,
        }

    return variables
