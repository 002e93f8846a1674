"""The image, built from its Dockerfile and run as a cluster would: from environment variables alone, hardened, replaced, drained."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from deploy.servers.server import free_port
from tests.e2e.reading import entries
from tests.service import until
from tests.system.containers import PACKAGES, Container, Podman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.servers import Redis
    from tests.e2e.conftest import Source

UID = 10_001
WITHIN = 120


@pytest.fixture(scope="module")
def podman(installed: Callable[..., None]) -> Podman:
    installed(*PACKAGES)
    podman = Podman()
    podman.build()
    return podman


@pytest.fixture
def orders(tmp_path: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(tmp_path / "lake", "orders")


@pytest.fixture
def given(redis_server: Redis) -> dict[str, str]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return {
        "CDF_TRIGGER_SECONDS": "0.2",
        "CDF_HTTP__HOST": "127.0.0.1",
        "CDF_HTTP__BIND_PORT": str(free_port()),
        "CDF_TABLES__ORDERS__PATH": "/lake/orders",
        "CDF_TABLES__ORDERS__KEYS": "id",
        "CDF_TABLES__ORDERS__SINKS": "audit,cache",
        "CDF_SINKS__AUDIT__TYPE": "delta_audit",
        "CDF_SINKS__AUDIT__PATH": "/var/lib/cdf/audit",
        "CDF_SINKS__CACHE__TYPE": "redis",
        "CDF_SINKS__CACHE__URL": redis_server.url,
    }


@pytest.fixture
def new_container(
    podman: Podman, tmp_path: Path, orders: Source, given: dict[str, str]
) -> Iterator[Callable[..., Container]]:
    """``uid``: the user that it runs as; None leaves it to the image."""
    made: list[Container] = []
    state = tmp_path / "state"
    state.mkdir()

    def make(name: str, *, uid: int | None = None) -> Container:
        os.chown(state, UID if uid is None else uid, 0)
        as_user = ("--user", f"{uid}:0") if uid is not None else ()
        mounts = ("--volume", f"{state}:/var/lib/cdf", "--volume", f"{orders.path.parent}:/lake:ro")
        made.append(Container(podman, name, given, (*as_user, *mounts)))
        return made[-1]

    yield make
    for container in made:
        container.remove()


@pytest.fixture
def asked(given: dict[str, str]) -> Callable[[str], httpx.Response]:
    return lambda path: httpx.get(f"http://127.0.0.1:{given['CDF_HTTP__BIND_PORT']}{path}", timeout=10, trust_env=False)


def answers(asked: Callable[[str], httpx.Response], path: str) -> bool:
    try:
        return asked(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def is_delivered(asked: Callable[[str], httpx.Response], version: int) -> bool:
    return answers(asked, "/status") and all(
        route["delivered_version"] == version for route in asked("/status").json()["routes"]
    )


def test_it_replicates_is_scraped_drains_and_replays(
    new_container: Callable[..., Container],
    asked: Callable[[str], httpx.Response],
    orders: Source,
    redis_server: Redis,
    podman: Podman,
    record_property: Callable[[str, object], None],
):
    container = new_container("cdf-image-test")
    began = container.start()
    until(lambda: answers(asked, "/readyz"), WITHIN, container.logs)
    seconds = time.monotonic() - began
    size = int(str(podman.image()["Size"])) / 1e6
    print(f"\nimage: {size:.0f} MB unpacked, ready {seconds:.1f} s after its start")  # noqa: T201 - told with -s and by make image-test
    version = orders.sql("UPDATE {} SET amount = 1 WHERE id < 5")
    until(lambda: is_delivered(asked, version), WITHIN, container.logs)
    assert entries(redis_server.url, "orders:") == orders.rows
    assert (
        'cdf_route_state{route="orders_cache",sink="cache",state="running",table="orders"} 1.0'
        in asked("/metrics").text
    )
    assert container.healthcheck() == 0
    assert container.stop() == 0
    log = container.logs().splitlines()
    assert all(line.startswith("{") for line in log if "WARNING: Using incubator modules" not in line), log

    with redis.Redis.from_url(redis_server.url) as client:
        client.delete("orders:1", "orders:7")
    replayed = container.once("replay", "orders_cache", "--starting-version", "1", "--yes")
    assert replayed.code == 0
    assert entries(redis_server.url, "orders:") == orders.rows


def test_it_runs_under_any_user_id(new_container: Callable[..., Container], orders: Source, redis_server: Redis):
    container = new_container("cdf-image-any", uid=123_456)
    assert container.once("run", "--once").code == 0
    assert entries(redis_server.url, "orders:") == orders.rows


def test_it_needs_no_network_to_start(new_container: Callable[..., Container], given: dict[str, str]):
    for name in [name for name in given if "CACHE" in name]:
        del given[name]
    given["CDF_TABLES__ORDERS__SINKS"] = "audit"
    ended = new_container("cdf-image-alone").once("run", "--once", network="none")
    assert "batch delivered" in ended.log


def test_what_is_wrong_is_told_and_ends_it_with_78(new_container: Callable[..., Container], given: dict[str, str]):
    given["CDF_SINKS__CACHE__URL"] = "not a url"
    ended = new_container("cdf-image-wrong").once("run", check=False)
    assert ended.code == 78
    assert "CDF_SINKS__CACHE__URL" in ended.log


def test_it_is_described_and_not_root(podman: Podman):
    image = podman.image()
    config = image["Config"]
    assert isinstance(config, dict)
    assert config["User"] == "10001:0"
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert len(config["Labels"]["org.opencontainers.image.revision"]) == 40
    assert config["Entrypoint"] == ["tini", "--", "entrypoint", "cdf-replicator"]
