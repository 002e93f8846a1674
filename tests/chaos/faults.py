"""What may go wrong, by name. Each fault is brought about, held for a while, and healed; the service must not need to be told."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import httpx
import psutil
import redis

from tests.chaos.world import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from deploy.servers.server import Server
    from tests.chaos.proxy import Mode, Proxy
    from tests.chaos.world import World

    Fault = Callable[[World], AbstractContextManager[None]]

GONE_SECONDS: Final = 30


# The service's own processes


@contextmanager
def _killed(world: World, find: Callable[[psutil.Process], psutil.Process | None], *, ends: bool) -> Iterator[None]:
    """SIGKILL one process of the service; ``ends``: the service goes with it, and whoever runs it starts it again."""
    driver = psutil.Process(world.service.pid)
    found = find(driver)
    if found is not None:
        with suppress(psutil.NoSuchProcess):
            os.kill(found.pid, signal.SIGKILL)
    if ends and found is not None:
        driver.wait(GONE_SECONDS)
    yield
    if not world.service.running:
        world.begin()


def _child(driver: psutil.Process, words: str, *, leaf: bool = False) -> psutil.Process | None:
    for process in driver.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if words in " ".join(process.cmdline()) and not (leaf and process.children()):
                return process
    return None


def driver_killed(world: World) -> AbstractContextManager[None]:
    return _killed(world, lambda driver: driver, ends=True)


def jvm_killed(world: World) -> AbstractContextManager[None]:
    return _killed(world, lambda driver: _child(driver, "org.apache.spark.deploy.SparkSubmit"), ends=True)


def worker_killed(world: World) -> AbstractContextManager[None]:
    return _killed(world, lambda driver: _child(driver, "pyspark.daemon", leaf=True), ends=False)


@contextmanager
def terminated(world: World) -> Iterator[None]:
    code = world.service.end()
    assert code == 0, f"exit code {code} after SIGTERM"
    yield
    world.begin()


# The servers


@contextmanager
def _down(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.restart()


@contextmanager
def _paused(server: Server) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def _faulty(proxy: Proxy, mode: Mode) -> Iterator[None]:
    proxy.mode = mode
    try:
        yield
    finally:
        proxy.mode = "pass"


@contextmanager
def redis_read_only(world: World) -> Iterator[None]:
    """A replica of a master that is not there, as after a failover that went wrong."""
    with redis.Redis.from_url(world.redis.url) as client:
        client.replicaof("127.0.0.1", 1)
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def redis_full(world: World) -> Iterator[None]:
    with redis.Redis.from_url(world.redis.url) as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def elasticsearch_disk_full(world: World) -> Iterator[None]:
    """The block that Elasticsearch itself puts on every index when a disk passes the flood stage."""
    _block(world, held=True)
    yield
    _block(world, held=None)


def _block(world: World, *, held: Any) -> None:
    for name in TABLES:
        setting = {"index.blocks.read_only_allow_delete": held}
        httpx.put(f"{world.elasticsearch.url}/{name}/_settings", json=setting, trust_env=False).raise_for_status()


FAULTS: Final[dict[str, Fault]] = {
    "driver killed": driver_killed,
    "jvm killed": jvm_killed,
    "worker killed": worker_killed,
    "terminated": terminated,
    "elasticsearch down": lambda world: _down(world.elasticsearch),
    "elasticsearch paused": lambda world: _paused(world.elasticsearch),
    "elasticsearch disk full": elasticsearch_disk_full,
    "redis down": lambda world: _down(world.redis),
    "redis paused": lambda world: _paused(world.redis),
    "redis read only": redis_read_only,
    "redis full": redis_full,
    **{
        f"{name} {mode}": lambda world, side=side, mode=mode: _faulty(getattr(world, side), mode)
        for name, side in (("elasticsearch", "search"), ("redis", "cache"))
        for mode in ("refuse", "hang", "cut", "garbage", "slow")
    },
}


def inject(world: World, name: str, seconds: float) -> None:
    """Bring a fault about, hold it, heal it."""
    with FAULTS[name](world):
        world.injected[name] += 1
        time.sleep(seconds)
