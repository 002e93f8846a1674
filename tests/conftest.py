"""Real servers and a real Spark, started when the first test asks for one and gone after the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deploy.servers import Elasticsearch, Redis


@pytest.fixture(scope="session", autouse=True)
def _short_lived() -> None:
    service.SPARK_CONF.update(service.SHORT_LIVED)


@pytest.fixture(scope="session")
def elasticsearch_process() -> Iterator[Elasticsearch]:
    from deploy.servers import Elasticsearch

    with Elasticsearch.start() as server:
        yield server


@pytest.fixture(scope="module")
def elasticsearch(elasticsearch_process: Elasticsearch) -> Elasticsearch:
    """The one server of the session, without what an earlier module left in it."""
    import httpx

    for index in httpx.get(f"{elasticsearch_process.url}/_alias").raise_for_status().json():
        httpx.delete(f"{elasticsearch_process.url}/{index}").raise_for_status()
    return elasticsearch_process


@pytest.fixture(scope="session")
def redis_process() -> Iterator[Redis]:
    from deploy.servers import Redis

    with Redis.start() as server:
        yield server


@pytest.fixture(scope="module")
def redis_server(redis_process: Redis) -> Redis:
    """The one server of the session, without what an earlier module left in it."""
    import redis

    with redis.Redis.from_url(redis_process.url) as client:
        client.flushall()
    return redis_process


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tests.session import started

    with started(tmp_path_factory.mktemp("spark")) as session:
        yield session
