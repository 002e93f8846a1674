"""Real servers and a real Spark, started when the first test asks for one and gone after the last."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deploy.servers import Elasticsearch, Redis


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
    from pyspark.sql import SparkSession

    from cdf_replicator.java import java_home

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "1g",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", str(java_home()))
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = SparkSession.builder.master("local[2]").appName("tests").config(map=settings).getOrCreate()
        yield session
        session.stop()
