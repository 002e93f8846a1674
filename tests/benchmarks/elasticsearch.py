"""Elasticsearch and OpenSearch: raw bulk of prebuilt bodies, ours, and the bulk helpers of Elastic's Python client in foreachPartition."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import urllib3

from connectors.elasticsearch.sink import BODY, body_of
from tests.benchmarks.arm import Arm, Contest
from tests.benchmarks.ours import TABLE, OurRoute
from tests.benchmarks.works import DELETED, newest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Row, SparkSession

    from deploy.local.servers import Elasticsearch, OpenSearch
    from tests.benchmarks.works import Work

INDEX = TABLE
CHUNK = 5000
SENDERS = 3
HELPERS = ("parallel_bulk", "streaming_bulk")
HEADERS = {"content-type": "application/x-ndjson"}


class Target:
    """The index, made by our sink and the same for every arm."""

    def __init__(self, server: Elasticsearch | OpenSearch, route: OurRoute) -> None:
        self.url, self._route = server.url, route

    def empty(self) -> None:
        httpx.delete(f"{self.url}/{INDEX}")
        self._route.prepare()

    def held(self) -> int:
        httpx.post(f"{self.url}/{INDEX}/_refresh", timeout=120).raise_for_status()
        return httpx.get(f"{self.url}/{INDEX}/_count", timeout=120).raise_for_status().json()["count"]


def contest(
    spark: SparkSession,
    work: Work,
    server: Elasticsearch | OpenSearch,
    jvm: int,
    rivals: Sequence[Arm],
    helpers: Sequence[str] = (),
) -> Contest:
    """``rivals``: arms that write to the same index, ``rows``; it is emptied before each run."""
    route = OurRoute(spark, work, {"CDF_SINKS__SINK__TYPE": server.name, "CDF_SINKS__SINK__HOSTS": server.url})
    target = Target(server, route)
    expected = newest(work.frame(spark), work.keys).where(f"NOT {DELETED}").count()
    bodies: list[bytes] = []

    def raw() -> int:
        if not bodies:
            bodies.extend(_bodies(route))
        _send(server.url, bodies)
        return work.rows

    def check(arm: Arm) -> None:
        if (held := target.held()) != expected:
            raise AssertionError(f"{arm.name} left {held:,} documents, not {expected:,}")

    def by_helper(helper: str) -> int:
        write = _helped(helper, server.url, work.keys)
        return work.read(spark, lambda frame: newest(frame, work.keys).foreachPartition(write))

    arms = [
        Arm("ours", route.deliver, [jvm], target.empty, route.sent),
        Arm("raw bulk", raw, [], target.empty),
    ]
    arms += [Arm(helper, partial(by_helper, helper), [jvm], target.empty) for helper in helpers]
    arms += [replace(rival, before=target.empty) for rival in rivals]
    return Contest(f"{server.name} {work.name}", work.what, arms, check)


def _bodies(route: OurRoute) -> Iterator[bytes]:
    for batch in route.rendered().to_batches(CHUNK):
        yield body_of(batch.column(BODY))


def _send(url: str, bodies: Sequence[bytes]) -> None:
    """The limit: nothing to render, and of the answer only whether there were errors that are no answer to a delete."""
    pool = urllib3.connection_from_url(url, maxsize=SENDERS)

    def send(body: bytes) -> None:
        answer = pool.request("PUT", f"/{INDEX}/_bulk?filter_path=errors", body=body, headers=HEADERS)
        if answer.status != 200 or answer.json()["errors"]:
            raise AssertionError(answer.data[:500])

    with ThreadPoolExecutor(SENDERS) as senders:
        list(senders.map(send, bodies))


def _helped(helper: str, url: str, keys: Sequence[str]) -> Any:
    """Return a typical custom writer: a client per partition, rows as dictionaries, the helper's default settings."""

    def write(rows: Iterator[Row]) -> None:
        from elasticsearch import Elasticsearch, helpers

        def actions() -> Iterator[dict[str, Any]]:
            for row in rows:
                source = row.asDict()
                deleted = source.pop(DELETED)
                action = {"_index": INDEX, "_id": ":".join(str(source[key]) for key in keys)}
                yield {**action, "_op_type": "delete"} if deleted else {**action, "_source": source}

        with Elasticsearch(url, request_timeout=120) as client:
            for done, answer in getattr(helpers, helper)(client, actions(), raise_on_error=False):
                if not done and answer.get("delete", {}).get("status") != 404:
                    raise AssertionError(json.dumps(answer, default=str)[:500])

    return write
