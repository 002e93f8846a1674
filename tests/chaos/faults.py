"""Faults by name. Each fault is injected, held until it has an effect on the service, and removed.

A fault of a server has an effect once a write was retried or a route restarted. A fault of a process has an effect once
that process has ended.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import httpx
import psutil
import psycopg
import redis
from psycopg.sql import SQL, Identifier

from cdf_replicator.spark.session import LOCAL
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from typing_extensions import LiteralString

    from deploy.local.servers.server import Server
    from tests.chaos.proxy import Mode, Proxy
    from tests.chaos.world import World
    from tests.support.service import Service

    Fault = Callable[[World], AbstractContextManager[None]]

GONE_SECONDS: Final = 30
FELT_SECONDS: Final = 60


# The service's own processes


@contextmanager
def _killed(world: World, find: Callable[[psutil.Process], psutil.Process | None], *, ends: bool) -> Iterator[None]:
    """SIGKILL one process of the service; ``ends``: the service goes with it, and is started again."""
    driver = psutil.Process(world.service.pid)
    until(lambda: find(driver), FELT_SECONDS, lambda: "no process to kill")
    found = find(driver)
    assert found is not None
    os.kill(found.pid, signal.SIGKILL)
    until(lambda: _gone(found), GONE_SECONDS)
    if ends:
        driver.wait(GONE_SECONDS)
        world.kills.append(world.routes_inside_a_commit())
    yield
    assert world.service.running is not ends
    if ends:
        world.begin()
        assert world.service.pid != driver.pid


def _gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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
    return _killed(world, lambda driver: _child(driver, LOCAL["spark.python.daemon.module"], leaf=True), ends=False)


@contextmanager
def terminated(world: World) -> Iterator[None]:
    before = world.service.pid
    code = world.service.end()
    assert code == 0, f"exit code {code} after SIGTERM"
    yield
    world.begin()
    assert world.service.pid != before


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
def _slow(proxy: Proxy) -> Iterator[None]:
    """Need no retry: the requests take longer."""
    with _faulty(proxy, "slow"):
        before = proxy.slowed
        yield
        until(lambda: proxy.slowed > before, FELT_SECONDS, lambda: "no request was slowed down")


@contextmanager
def _retried(world: World, sink: str, fault: AbstractContextManager[None]) -> Iterator[None]:
    """Hold a fault of a sink's server until a write was tried again, or its route was restarted."""
    before = _tries(world.service, sink)
    with fault:
        yield
        until(lambda: _tries(world.service, sink) > before, FELT_SECONDS, lambda: f"nothing was retried into {sink}")


def _tries(service: Service, sink: str) -> float:
    """Count retries and restarts: a time-out is longer than the world's time for retries, and restarts the route.

    A driver that was just started has no series of its routes yet, which counts as 0.
    """
    metrics = service.metrics()
    counted = [item for name in ("cdf_retries_total", "cdf_restarts_total") for item in metrics.get(name, {}).items()]
    return sum(value for labels, value in counted if ("sink", sink) in labels)


@contextmanager
def _redis_read_only(world: World) -> Iterator[None]:
    """A replica of a master that is not there, as after a failover that went wrong."""
    with redis.Redis.from_url(world.redis.url) as client:
        client.replicaof("127.0.0.1", 1)
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def _redis_full(world: World) -> Iterator[None]:
    with redis.Redis.from_url(world.redis.url) as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def _elasticsearch_disk_full(world: World) -> Iterator[None]:
    """The block that Elasticsearch itself puts on every index when a disk passes the flood stage."""
    _block(world, held=True)
    yield
    _block(world, held=None)


def _block(world: World, *, held: Any) -> None:
    for name in world.tables:
        setting = {"index.blocks.read_only_allow_delete": held}
        httpx.put(f"{world.elasticsearch.url}/{name}/_settings", json=setting, trust_env=False).raise_for_status()


@contextmanager
def _postgres_read_only(world: World) -> Iterator[None]:
    """As an administrator does before a switch to another server."""
    _configure(world, "SET default_transaction_read_only = on")
    yield
    _configure(world, "RESET default_transaction_read_only")


def _configure(world: World, change: LiteralString) -> None:
    with psycopg.connect(world.postgres.url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute(SQL("ALTER SYSTEM ") + SQL(change))
        admin.execute("SELECT pg_reload_conf()")


@contextmanager
def _postgres_locked(world: World) -> Iterator[None]:
    """A session that holds a lock on every table, as a migration does."""
    with psycopg.connect(world.postgres.url) as other:
        for name in world.tables:
            other.execute(SQL("LOCK TABLE {}").format(Identifier(name)))
        yield


PROCESS_FAULTS: Final[dict[str, Fault]] = {
    "driver killed": driver_killed,
    "jvm killed": jvm_killed,
    "worker killed": worker_killed,
    "terminated": terminated,
}


def _of_server(
    server: str, sink: str, own: Mapping[str, Callable[[World], AbstractContextManager[None]]]
) -> dict[str, Fault]:
    """Return the faults of a server and of the proxy before it, which has the name of the sink.

    ``own`` has those of this server alone, by what is wrong with it.
    """

    def retried(fault: Callable[[World], AbstractContextManager[None]]) -> Fault:
        return lambda world: _retried(world, sink, fault(world))

    def faulty(mode: Mode) -> Callable[[World], AbstractContextManager[None]]:
        return lambda world: _faulty(getattr(world, sink), mode)

    modes: tuple[Mode, ...] = ("refuse", "hang", "cut", "garbage")
    every = {
        "down": lambda world: _down(getattr(world, server)),
        "paused": lambda world: _paused(getattr(world, server)),
        **own,
        **{mode: faulty(mode) for mode in modes},
    }
    named = {f"{server} {what}": retried(fault) for what, fault in every.items()}
    return {**named, f"{server} slow": lambda world: _slow(getattr(world, sink))}


ELASTICSEARCH_FAULTS: Final = _of_server("elasticsearch", "search", {"disk full": _elasticsearch_disk_full})
REDIS_FAULTS: Final = _of_server("redis", "cache", {"read only": _redis_read_only, "full": _redis_full})
POSTGRES_FAULTS: Final = _of_server("postgres", "db", {"read only": _postgres_read_only, "locked": _postgres_locked})
FAULTS: Final = PROCESS_FAULTS | ELASTICSEARCH_FAULTS | REDIS_FAULTS | POSTGRES_FAULTS


@contextmanager
def held(world: World, *names: str) -> Iterator[None]:
    """Hold some faults at once for the block, and longer where one of them is not felt yet."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(FAULTS[name](world))
            world.injected[name] += 1
        yield


def inject(world: World, name: str, seconds: float) -> None:
    """Bring a fault about, hold it, heal it."""
    with held(world, name):
        time.sleep(seconds)
