"""Two instances of one state path: the second waits and takes over within seconds, and a first that wakes up again does no harm."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cdf_replicator.state.lease import holder
from cdf_replicator.state.storage_path import LocalPath
from tests.chaos.proxy import Proxy
from tests.support.reading import documents, entries
from tests.support.service import Service, Standby, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Elasticsearch, Redis
    from tests.support.source import Source

SINKS = ("audit", "search", "cache")
TAKEN_OVER_SECONDS = 180
"""A Spark of its own included, on a machine that runs two."""
NEWER = "routes: {orders_audit: {schema_changes: fail}}"
"""The configuration file that the standby reads on a signal."""


@dataclass(frozen=True)
class Scene:
    """The source table and the sinks of the instances. ``cache`` is a proxy in front of Redis."""

    given: dict[str, str]
    folder: Path
    orders: Source
    elasticsearch: Elasticsearch
    redis: Redis
    cache: Proxy

    def delivered(self, service: Service, version: int) -> None:
        """Wait for that version; afterwards every sink holds what the table holds."""
        for sink in SINKS:
            service.wait_delivered(f"orders_{sink}", version, TAKEN_OVER_SECONDS)
        assert entries(self.redis.url, "orders:") == self.orders.rows
        assert documents(self.elasticsearch.url, "orders") == self.orders.rows
        assert self.orders.folded(self.folder / "audit" / "orders") == self.orders.rows


@pytest.fixture
def scene(
    tmp_path: Path,
    new_source: Callable[..., Source],
    sinks: Callable[[Path], dict[str, object]],
    elasticsearch: Elasticsearch,
    redis_server: Redis,
) -> Iterator[Scene]:
    orders = new_source(tmp_path, "orders", 1000)
    (tmp_path / "cdf.yaml").write_text("routes: {}")
    with Proxy(redis_server.port) as cache:
        given = environment(
            tmp_path,
            CONFIG_FILE=tmp_path / "cdf.yaml",
            **sinks(tmp_path) | {"SINKS__CACHE__URL": f"redis://127.0.0.1:{cache.port}/0"},
            TRIGGER_SECONDS=0.2,
            TABLES__ORDERS__PATH=orders.path,
            TABLES__ORDERS__KEYS="id",
            TABLES__ORDERS__SINKS=",".join(SINKS),
            TABLES__ORDERS__INCLUDE_PREIMAGES=True,
        )
        yield Scene(given, tmp_path, orders, elasticsearch, redis_server, cache)


def test_standby_takes_over_from_a_paused_and_from_a_killed_holder(scene: Scene):
    """One history of three instances: the first is paused past its lease, wakes up and ends; the second is killed.

    What a holder does is shown by the second, and the third ends once it holds the lease, before it has a JVM.
    """
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(kind(scene.given)) for kind in (Service, Standby, Standby))
        first.started()
        scene.delivered(first, scene.orders.version)
        second.started()
        waits_and_ends_when_it_is_stopped(first, second)
        second.started()
        reads_its_configuration_again(second, scene)
        (scene.folder / "cdf.yaml").write_text(f"{NEWER}\nshutdown_seconds: 61")
        paused_in_a_micro_batch(first, scene)
        scene.delivered(second, scene.orders.change("DELETE FROM {} WHERE id < 500"))

        assert effective(second, "routes.orders_audit.schema_changes") == "fail"
        assert effective(second, "shutdown_seconds") == "61.0", "it reads the configuration when it takes over"
        ends_when_it_wakes_up(first)
        scene.delivered(second, scene.orders.sql("INSERT INTO {} SELECT id + 5000, 'late', 0 FROM range(10)"))

        third.started()
        second.kill()
        until(lambda: third.pid == (holder(LocalPath(scene.folder / "state")) or {}).get("pid"), TAKEN_OVER_SECONDS)
        third.kill()


def waits_and_ends_when_it_is_stopped(first: Service, standby: Service) -> None:
    summary = standby.status()["service"]["summary"]
    assert "Standby: another instance holds the lease (host" in summary
    assert f"pid {first.pid}" in summary
    assert (standby.get("/livez").status_code, standby.get("/readyz").status_code) == (200, 200)
    assert command(first.given, "run").code == 75
    assert standby.end() == 0


def reads_its_configuration_again(standby: Service, scene: Scene) -> None:
    (scene.folder / "cdf.yaml").write_text(NEWER)
    os.kill(standby.pid, signal.SIGHUP)
    standby.wait(lambda status: status["service"]["reloads"]["succeeded"] == 1)
    assert "Standby" in standby.status()["service"]["summary"]


def effective(service: Service, path: str) -> str:
    (found,) = (setting["value"] for setting in service.status()["configuration"] if setting["path"] == path)
    return str(found)


def paused_in_a_micro_batch(service: Service, scene: Scene) -> None:
    """A part of a request has reached Redis by then, and what else there is to write has not."""
    scene.cache.mode = "stall"
    scene.orders.change("UPDATE {} SET amount = amount + 1")
    until(lambda: scene.cache.stalled, describe=service.log.read_text)
    service.pause()
    assert entries(scene.redis.url, "orders:") != scene.orders.rows
    scene.cache.mode = "pass"


def ends_when_it_wakes_up(service: Service) -> None:
    os.killpg(service.pid, signal.SIGCONT)
    until(lambda: not service.running, 30, service.log.read_text)
    assert service._process.returncode == 75
    assert "the lease is lost" in service.log.read_text()
