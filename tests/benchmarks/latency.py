"""From the end of a commit to the moment when a GET by key shows its row."""

from __future__ import annotations

import http.client
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import redis

from deploy.local.servers import Elasticsearch, Redis
from deploy.local.servers.server import PROJECT
from tests.benchmarks import commits as small
from tests.benchmarks.usage import measured
from tests.support.service import Service, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TABLE = "orders"
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 60
"""Limit for one commit."""


@dataclass(frozen=True)
class Visible:
    """Seconds, in one sink; ``seconds`` in the order of the commits."""

    p50: float
    p99: float
    maximum: float
    seconds: list[float]

    @classmethod
    def of(cls, seconds: list[float]) -> Visible:
        ranked = sorted(seconds)
        p50, p99 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.99))
        return cls(p50, p99, ranked[-1], seconds)


@dataclass(frozen=True)
class Latency:
    """``batch_cpu_seconds``: of driver, JVM and workers together, for one small micro-batch of one route."""

    commits: int
    redis: Visible
    elasticsearch: Visible
    batch_cpu_seconds: float


def latency(commits: int, warm_up: int, report: Callable[[str], None]) -> Latency:
    """One small commit a second, the default trigger; the first ``warm_up`` commits are not counted."""
    made = small.made(warm_up + commits)
    with TemporaryDirectory() as name, Elasticsearch.start(long_lived=True) as search, Redis.start() as cache:
        folder = Path(name)
        small.begin(made, folder / TABLE)
        given = environment(
            folder,
            TABLES__ORDERS__PATH=folder / TABLE,
            TABLES__ORDERS__KEYS="id",
            TABLES__ORDERS__SINKS="search,cache",
            SINKS__SEARCH__TYPE="elasticsearch",
            SINKS__SEARCH__HOSTS=search.url,
            SINKS__CACHE__TYPE="redis",
            SINKS__CACHE__URL=cache.url,
        )
        with Service(given).started() as service:
            for route in ("orders_search", "orders_cache"):
                service.wait_state(route, "running")
            report(f"latency: {warm_up} + {commits} commits, one a second")
            sinks = [in_redis(cache.url), in_elasticsearch(search.url)]
            with measured([service.pid]) as usage:
                committed, seen = watched(made, folder / TABLE, range(warm_up + commits), sinks)
    keys = sorted(committed)[warm_up:]
    redis_seen, elasticsearch_seen = (Visible.of([each[key] - committed[key] for key in keys]) for each in seen)
    for sink, found in (("Redis", redis_seen), ("Elasticsearch", elasticsearch_seen)):
        report(f"latency: {sink}: p50 {found.p50:.2f} s, p99 {found.p99:.2f} s, max {found.maximum:.2f} s")
    batch = usage.cpu_seconds / (warm_up + commits) / len(sinks)
    report(f"latency: {batch:.2f} processor seconds a micro-batch")
    return Latency(commits, redis_seen, elasticsearch_seen, batch)


def watched(
    source: Path, table: Path, commits: range, sinks: Sequence[Callable[[int], bool]]
) -> tuple[Mapping[int, float], Sequence[Mapping[int, float]]]:
    """When each commit was there, and when each sink was seen to show it, by the first key of the commit."""
    keys = list(map(small.first_id, commits))
    words = [
        sys.executable,
        "-m",
        "tests.benchmarks.commits",
        str(source),
        str(table),
        str(commits.start),
        str(commits.stop),
    ]
    with ThreadPoolExecutor(len(sinks)) as pool:
        pending = [pool.submit(_seen, shows, keys) for shows in sinks]
        with subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as writer:
            lines = writer.communicate()[0].splitlines()
        assert writer.returncode == 0
        seen = [each.result() for each in pending]
    return {int(key): float(at) for key, at in map(str.split, lines)}, seen


def _seen(shows: Callable[[int], bool], keys: Sequence[int]) -> dict[int, float]:
    """Wait for each key in order; return the time at which each was seen."""
    seen: dict[int, float] = {}
    for key in keys:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not shows(key):
            assert time.monotonic() < deadline, f"key {key} was not seen within {PATIENCE_SECONDS} s"
            time.sleep(LOOK_SECONDS)
        seen[key] = time.monotonic()
    return seen


def in_redis(url: str) -> Callable[[int], bool]:
    client = redis.Redis.from_url(url)
    return lambda key: client.get(f"{TABLE}:{key}") is not None


def in_elasticsearch(url: str) -> Callable[[int], bool]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def shows(key: int) -> bool:
        connection.request("GET", f"/{TABLE}/_doc/{key}")
        answer = connection.getresponse()
        answer.read()
        return answer.status == http.client.OK

    return shows
