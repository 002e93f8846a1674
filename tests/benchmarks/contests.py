"""All contests, part by part; each with the servers it needs, one contest after the other."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cdf_replicator import spark as spark_room
from cdf_replicator.settings import Spark
from deploy.servers import Elasticsearch, Redis
from tests.benchmarks import delta, elasticsearch, redis, works
from tests.benchmarks.rivals.arms import rivals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.benchmarks.arm import Contest
    from tests.benchmarks.scale import Scale
    from tests.benchmarks.works import Work

REDIS = {"appendonly": "no"}
ELASTICSEARCH_HEAP = "1g"


@contextmanager
def session() -> Iterator[SparkSession]:
    """As the service starts it, on the two cores that the servers share."""
    spark = spark_room.start(Spark(master="local[2]"))
    try:
        yield spark
    finally:
        spark.stop()


def of_elasticsearch(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with Elasticsearch.start(heap=ELASTICSEARCH_HEAP) as server, rivals() as theirs:
        for name, work in _works(spark, scale):
            with theirs.es_hadoop(work, server, elasticsearch.INDEX) as arms:
                yield _named(elasticsearch.contest(spark, work, server, jvm, arms), f"elasticsearch {name}")


def of_redis(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with Redis.start(config=REDIS) as server, rivals() as theirs:
        for name, work in _works(spark, scale):
            arms = [theirs.spark_redis(work, server, redis.TABLE)]
            yield _named(redis.contest(spark, work, server, jvm, arms), f"redis {name}")


def of_delta(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    for name, work in (
        ("bootstrap", works.bootstrap(spark, scale.rows)),
        ("changes", works.changes(spark, scale.rows)),
    ):
        yield _named(delta.audit(spark, work, jvm), f"delta audit {name}")
        yield _named(delta.replica(spark, work, jvm), f"delta replica {name}")


PARTS = {"elasticsearch": of_elasticsearch, "redis": of_redis, "delta": of_delta}


def _works(spark: SparkSession, scale: Scale) -> Iterator[tuple[str, Work]]:
    yield "bootstrap", works.bootstrap(spark, scale.rows)
    yield "changes", works.changes(spark, scale.rows)
    if scale.flights:
        yield "flights", works.flights(spark)
    if scale.wide:
        yield "wide", works.wide(spark, scale.wide)
    if scale.fat:
        yield "fat", works.fat(spark, scale.fat)


def _jvm(spark: SparkSession) -> int:
    pid = spark_room.jvm_pid(spark)
    assert pid is not None
    return pid


def _named(contest: Contest, name: str) -> Contest:
    return replace(contest, name=name)
