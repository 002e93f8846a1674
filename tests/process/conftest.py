"""Fixtures of the scenarios: the sinks' variables, and a source table to write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deploy.local.servers import Elasticsearch, Redis


@pytest.fixture(scope="session")
def new_source(request: pytest.FixtureRequest) -> Callable[..., Source]:
    """Make a table with its change feed on, at ``folder``/``name``, with ids from 0 on."""

    def spark() -> SparkSession:
        session: SparkSession = request.getfixturevalue("spark")
        return session

    def make(folder: Path, name: str, rows: int = 10) -> Source:
        return Source.created(spark, folder / name, rows)

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
