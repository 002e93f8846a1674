"""Redis: guarded calls of prebuilt commands, ours, and ``pipeline.set`` in foreachPartition; a cluster beside one server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from redis import Redis as Client
from redis import RedisCluster

from connectors.redis import protocol, script
from connectors.redis.client import pipeline
from connectors.redis.sink import claim_arguments
from tests.benchmarks.arm import Arm, Contest
from tests.benchmarks.ours import TABLE, OurRoute
from tests.benchmarks.works import DELETED, newest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Row, SparkSession

    from connectors.redis.protocol import Command
    from deploy.local.servers import Redis
    from tests.benchmarks.works import Work
    from tests.support.redis_groups import Cluster

PIPELINE = 1000
CALLS = 12
"""In flight on a connection, about as many as our sink sends for a chunk."""
SENDERS = 2
SAMPLE = 200
KEY_TEXT = "_key_text"
ONE_SERVER = "one server"


def contest(
    spark: SparkSession,
    work: Work,
    server: Redis,
    jvm: int,
    rivals: Sequence[Arm],
) -> Contest:
    """``rivals``: arms that write to the same server; it is emptied before each run."""
    route = OurRoute(spark, work, {"CDF_SINKS__SINK__TYPE": "redis", "CDF_SINKS__SINK__URL": server.url})
    client = Client.from_url(server.url)
    commands: list[Command] = []

    def empty() -> None:
        client.flushall()
        route.prepare()

    def raw() -> int:
        if not commands:
            commands.extend(_commands(route))
        _send(server.url, commands)
        return work.rows

    def piped() -> int:
        write = _piped(server.url, work.keys)
        return work.read(spark, lambda frame: newest(frame, work.keys).foreachPartition(write))

    arms = [
        Arm("ours", route.deliver, [jvm], empty, route.sent),
        Arm("raw guarded", raw, [], empty),
        Arm("pipeline.set", piped, [jvm], empty),
    ]
    sample = _sample(spark, work, route)

    def check(arm: Arm) -> None:
        for row in sample:
            deleted = row[DELETED]
            if deleted and arm.name == "spark-redis":  # it has no deletes
                continue
            _check_row(arm, row, f"{TABLE}:{_key(arm, row, work.keys)}", client)

    return Contest(f"redis {work.name}", work.what, [*arms, *(replace(rival, before=empty) for rival in rivals)], check)


def cluster(spark: SparkSession, work: Work, nodes: Cluster, server: Redis, jvm: int) -> Contest:
    """Return the contest of our route into a cluster and into one server."""
    urls = {"ours": nodes.url, ONE_SERVER: server.url}
    clients = {"ours": RedisCluster("127.0.0.1", nodes.servers[0].port), ONE_SERVER: Client.from_url(server.url)}
    routes = {
        name: OurRoute(spark, work, {"CDF_SINKS__SINK__TYPE": "redis", "CDF_SINKS__SINK__URL": url})
        for name, url in urls.items()
    }
    sample = _sample(spark, work, routes["ours"])

    def arm_of(name: str) -> Arm:
        def empty() -> None:
            clients[name].flushall()
            routes[name].prepare()

        return Arm(name, routes[name].deliver, [jvm], empty, routes[name].sent)

    def check(arm: Arm) -> None:
        for row in sample:
            _check_row(arm, row, f"{TABLE}:{row[KEY_TEXT]}", clients[arm.name])

    return Contest(f"cluster {work.name}", work.what, [arm_of(name) for name in urls], check)


def _sample(spark: SparkSession, work: Work, route: OurRoute) -> list[Row]:
    return newest(work.frame(spark), work.keys).withColumn(KEY_TEXT, route.key_text()).limit(SAMPLE).collect()


def _check_row(arm: Arm, row: Row, key: str, client: Client | RedisCluster) -> None:
    deleted = row[DELETED]
    if bool(client.exists(key)) == deleted:
        raise AssertionError(f"{arm.name} left key {row[KEY_TEXT]} {'there' if deleted else 'out'}")


def _key(arm: Arm, row: Row, keys: Sequence[str]) -> str:
    """Ours percent-encodes what others write as it is."""
    return row[KEY_TEXT] if arm.name in {"ours", "raw guarded"} else ":".join(str(row[key]) for key in keys)


def _commands(route: OurRoute) -> Iterator[Command]:
    kept = (*claim_arguments(route.spec), "string", "0", str(route.sink.settings.tombstone_seconds))
    for batch in route.rendered().to_batches(10_000):
        for _, command in protocol.encode_commands(
            batch, ("EVALSHA", script.WRITE_SHA), f"cdf:claim:{{{TABLE}:}}", kept
        ):
            yield command


def _send(url: str, commands: Sequence[Command]) -> None:
    """The limit: nothing to render, and of the replies only whether one is an error."""

    def send(mine: Sequence[Command]) -> None:
        with Client.from_url(url) as client:
            client.script_load(script.WRITE)
            for first in range(0, len(mine), CALLS):
                pipeline(client, mine[first : first + CALLS])

    with ThreadPoolExecutor(SENDERS) as senders:
        list(senders.map(send, [commands[number::SENDERS] for number in range(SENDERS)]))


def _piped(url: str, keys: Sequence[str]) -> Callable[[Iterator[Row]], None]:
    """Return a typical custom writer: Python renders rows as JSON, pipelines of a thousand commands."""

    def write(rows: Iterator[Row]) -> None:
        import json

        import redis

        client = redis.Redis.from_url(url)
        pipeline = client.pipeline(transaction=False)
        for row in rows:
            source = row.asDict()
            deleted = source.pop(DELETED)
            key = f"{TABLE}:" + ":".join(str(source[key]) for key in keys)
            if deleted:
                pipeline.delete(key)
            else:
                pipeline.set(key, json.dumps(source, default=str))
            if len(pipeline) >= PIPELINE:
                pipeline.execute()
        pipeline.execute()
        client.close()

    return write
