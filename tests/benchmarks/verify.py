"""``verify`` of a target that equals its table, against a plain scan of the target; and the side of the table alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from elasticsearch import Elasticsearch as SearchClient
from elasticsearch.helpers import scan
from pyspark.sql import functions as F  # noqa: N812
from redis import Redis as RedisClient

from cdf_replicator.verification import verify
from cdf_replicator.verification.comparison import compare
from connectors.change import GUARD
from connectors.view import IDENTITY
from tests.benchmarks.arm import Arm, Contest
from tests.benchmarks.ours import TABLE, OurRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from deploy.local.servers import Elasticsearch, Redis
    from tests.benchmarks.works import Work

PAGE = 2000


def elasticsearch(spark: SparkSession, work: Work, server: Elasticsearch, jvm: int) -> Contest:
    def scanned() -> int:
        with SearchClient(server.url, request_timeout=120) as client:
            return sum(1 for _ in scan(client, index=TABLE, size=PAGE))

    httpx.delete(f"{server.url}/{TABLE}")
    settings = {"CDF_SINKS__SINK__TYPE": "elasticsearch", "CDF_SINKS__SINK__HOSTS": server.url}
    return _contest(spark, work, jvm, "elasticsearch", settings, scanned)


def redis(spark: SparkSession, work: Work, server: Redis, jvm: int) -> Contest:
    client = RedisClient.from_url(server.url)

    def scanned() -> int:
        found, cursor = 0, -1
        while cursor != 0:
            cursor, keys = client.scan(max(cursor, 0), match=f"{TABLE}:*", count=PAGE)
            found += len(client.mget(keys)) if keys else 0
        return found

    client.flushall()
    settings = {"CDF_SINKS__SINK__TYPE": "redis", "CDF_SINKS__SINK__URL": server.url}
    return _contest(spark, work, jvm, "redis", settings, scanned)


def _contest(
    spark: SparkSession, work: Work, jvm: int, name: str, settings: Mapping[str, str], scanned: Callable[[], int]
) -> Contest:
    """Return the contest on a target that the route has filled. ``scanned`` reads all entries by the server's client."""
    route = OurRoute(spark, work, settings)
    route.prepare()
    route.deliver()
    route.save_delivered()

    def verified() -> int:
        found = verify(spark, route.route, route.new_sink(), route.state_store).comparison
        assert found.equal, found
        return found.rows

    def of_the_table() -> int:
        """Digest the rows twice, as rows and as entries."""
        rows = work.frame(spark).select(F.col(work.keys[0]).cast("string").alias(IDENTITY), F.struct("*").alias("row"))
        entries = rows.withColumn(GUARD, F.lit(1).cast("long"))
        found = compare(rows, entries, (1, 1), work.frame(spark).columns, 0)
        assert found.equal, found
        return found.rows + found.entries

    arms = [Arm("ours", verified, [jvm]), Arm("plain scan", scanned, []), Arm("the table alone", of_the_table, [jvm])]
    return Contest(f"verify {name}", f"{work.what}, no difference", arms, lambda _: None)
