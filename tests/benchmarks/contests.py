"""All contests, part by part; each with the servers it needs, one contest after the other."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cdf_replicator.settings.models import Spark
from cdf_replicator.spark.session import jvm_pid, start
from deploy.local.jars.fetch import fetch
from deploy.local.servers import Elasticsearch, OpenSearch, Postgres, Redis
from tests.benchmarks import delta, elasticsearch, postgres, redis, verify, works
from tests.benchmarks.rivals.arms import rivals
from tests.support.redis_groups import started_masters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.benchmarks.arm import Contest
    from tests.benchmarks.scale import Scale
    from tests.benchmarks.works import Work

REDIS = {"appendonly": "no"}
JDBC = works.FOLDER / "jdbc"
"""The folder of PostgreSQL's driver for Spark's own writer."""
ELASTICSEARCH_HEAP = "1g"


@contextmanager
def session() -> Iterator[SparkSession]:
    """As the service starts it, on the two cores that the servers share."""
    fetch("jdbc", JDBC)
    spark = start(Spark(master="local[2]", conf={"spark.driver.extraClassPath": f"{JDBC}/*"}))
    try:
        yield spark
    finally:
        spark.stop()


def of_elasticsearch(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with Elasticsearch.start(heap=ELASTICSEARCH_HEAP, long_lived=True) as server, rivals() as theirs:
        for work in _works(spark, scale):
            with theirs.es_hadoop(work, server, elasticsearch.INDEX) as arms:
                yield elasticsearch.contest(spark, work, server, jvm, arms, elasticsearch.HELPERS)


def of_opensearch(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with OpenSearch.start(heap=ELASTICSEARCH_HEAP, long_lived=True) as server:
        for work in works.bootstrap(spark, scale.rows), works.changes(spark, scale.rows):
            yield elasticsearch.contest(spark, work, server, jvm, ())


def of_redis(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with Redis.start(config=REDIS) as server, rivals() as theirs:
        for work in _works(spark, scale):
            arms = [theirs.spark_redis(work, server, redis.TABLE)]
            yield redis.contest(spark, work, server, jvm, arms)


def of_cluster(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with Redis.start(config=REDIS) as server, started_masters(REDIS) as nodes:
        for work in works.bootstrap(spark, scale.rows), works.changes(spark, scale.rows):
            yield redis.cluster(spark, work, nodes, server, jvm)


def of_postgres(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    with Postgres.start() as server:
        for work in works.bootstrap(spark, scale.rows), works.changes(spark, scale.rows):
            yield postgres.contest(spark, work, server, jvm)


def of_delta(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm = _jvm(spark)
    both = works.bootstrap(spark, scale.rows), works.changes(spark, scale.rows)
    with TemporaryDirectory(dir=works.FOLDER, prefix="targets-") as targets:
        for work in both:
            yield delta.audit(spark, work, Path(targets), jvm)
            yield delta.replica(spark, work, Path(targets), jvm)


def of_verify(spark: SparkSession, scale: Scale) -> Iterator[Contest]:
    jvm, work = _jvm(spark), works.bootstrap(spark, scale.rows)
    with Elasticsearch.start(heap=ELASTICSEARCH_HEAP, long_lived=True) as server:
        yield verify.elasticsearch(spark, work, server, jvm)
    with Redis.start(config=REDIS) as server:
        yield verify.redis(spark, work, server, jvm)


PARTS = {
    "elasticsearch": of_elasticsearch,
    "opensearch": of_opensearch,
    "postgres": of_postgres,
    "redis": of_redis,
    "cluster": of_cluster,
    "delta": of_delta,
    "verify": of_verify,
}


def _works(spark: SparkSession, scale: Scale) -> Iterator[Work]:
    yield works.bootstrap(spark, scale.rows)
    yield works.changes(spark, scale.rows)
    if scale.flights:
        yield works.flights(spark)
    if scale.wide:
        yield works.wide(spark, scale.wide)
    if scale.fat:
        yield works.fat(spark, scale.fat)


def _jvm(spark: SparkSession) -> int:
    pid = jvm_pid(spark)
    assert pid is not None
    return pid
