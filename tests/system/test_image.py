"""The image, built from its Dockerfile and run as a cluster would: from environment variables alone, hardened, replaced, drained."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from deploy.local.servers.server import PROJECT, free_port
from tests.support import session
from tests.support.reading import documents, entries
from tests.support.service import SHORT_LIVED
from tests.support.waiting import until
from tests.system.cluster import Master
from tests.system.containers import IMAGE, Container, Podman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Elasticsearch, Redis
    from tests.support.source import Source

pytestmark = pytest.mark.timeout(1200)  # the first test waits for the image to be built
WITHIN = 240
ANY_USER = "123456:123456"
LARGEST_MB = 950
"""Unpacked, with the base."""
JAVA_OPTIONS = (
    "-Dspark.app.name=of two words",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *session.JAVA_OPTIONS.split(),
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.nio", "java.util", "sun.nio.ch")
    ),
)
"""Some of those that Spark gives an executor, and those of a short life."""


@pytest.fixture
def orders(tmp_path: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(tmp_path / "lake", "orders")


@pytest.fixture
def given(redis_server: Redis) -> dict[str, str]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return {
        "CDF_SPARK__CONF": json.dumps(SHORT_LIVED),
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
    """``user``: what it runs as, of which the state path belongs to the group, as Kubernetes' fsGroup has it."""
    made: list[Container] = []
    state = tmp_path / "state"
    state.mkdir()

    def make(name: str, user: str = "10001:0", variables: dict[str, str] | None = None) -> Container:
        os.chown(state, 0, int(user.split(":")[1]))
        state.chmod(0o2770)
        mounts = ("--volume", f"{state}:/var/lib/cdf", "--volume", f"{orders.path.parent}:/lake:ro")
        made.append(Container(podman, name, variables or given, ("--user", user, *mounts)))
        return made[-1]

    yield make
    for container in made:
        container.remove()


@pytest.fixture
def delivering(
    new_container: Callable[..., Container], get: Callable[[str], httpx.Response], orders: Source
) -> Callable[..., Container]:
    """Start a container, and wait until it has delivered the table."""

    def start(name: str, user: str = "10001:0") -> Container:
        container = new_container(name, user)
        container.start()
        until(lambda: is_delivered(get, orders.version), WITHIN, container.logs)
        return container

    return start


@pytest.fixture
def get(given: dict[str, str]) -> Callable[[str], httpx.Response]:
    return lambda path: httpx.get(f"http://127.0.0.1:{given['CDF_HTTP__BIND_PORT']}{path}", timeout=10, trust_env=False)


def keep(given: dict[str, str], sink: str) -> None:
    """Configure only this sink."""
    other = {"audit": "CACHE", "cache": "AUDIT"}[sink]
    for name in [name for name in given if other in name]:
        del given[name]
    given["CDF_TABLES__ORDERS__SINKS"] = sink


def answers(get: Callable[[str], httpx.Response], path: str) -> bool:
    try:
        return get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_delivered(get: Callable[[str], httpx.Response], version: int) -> bool:
    routes = get("/status").json()["routes"] if answers(get, "/status") else []
    return {route["delivered_version"] for route in routes} == {version}


def test_image_replicates_is_scraped_replays_and_drains(
    new_container: Callable[..., Container],
    get: Callable[[str], httpx.Response],
    orders: Source,
    given: dict[str, str],
    redis_server: Redis,
    elasticsearch: Elasticsearch,
    podman: Podman,
    record_property: Callable[[str, object], None],
):
    del given["CDF_SPARK__CONF"]  # its start is measured as it is
    given["CDF_TABLES__ORDERS__SINKS"] = "audit,cache,search"
    given["CDF_SINKS__SEARCH__TYPE"] = "elasticsearch"
    given["CDF_SINKS__SEARCH__HOSTS"] = elasticsearch.url
    container = new_container("cdf-image-test")
    began = container.start()
    until(lambda: answers(get, "/readyz"), WITHIN, container.logs)
    seconds = time.monotonic() - began
    size = int(str(podman.image()["Size"])) / 1e6
    record_property("image", f"{size:.0f} MB unpacked, ready {seconds:.1f} s after its start")
    version = orders.change("UPDATE {} SET amount = 1 WHERE id < 5")
    until(lambda: is_delivered(get, version), WITHIN, container.logs)
    assert entries(redis_server.url, "orders:") == documents(elasticsearch.url, "orders") == orders.rows
    assert (
        'cdf_route_state{route="orders_cache",sink="cache",state="running",table="orders"} 1.0' in get("/metrics").text
    )
    assert container.healthcheck() == 0
    # The JVM maps the archive of the build, so the Java and the jars of the image are those that it was written for.
    assert container.execute("sh", "-c", "grep -l classes.jsa /proc/[0-9]*/maps").output
    with redis.Redis.from_url(redis_server.url) as client:
        client.delete("orders:1", "orders:7")
    container.execute("cdf-replicator", "replay", "orders_cache", "--starting-version", "1", "--yes")
    assert entries(redis_server.url, "orders:") == orders.rows
    assert container.stop() == 0
    log = container.logs().splitlines()
    assert all(line.startswith("{") for line in log if "WARNING: Using incubator modules" not in line), log


@pytest.mark.nightly  # test_image_replicates stops its container, and the process tier stops a service in a micro-batch
def test_container_ends_after_its_running_micro_batch(
    delivering: Callable[..., Container], orders: Source, given: dict[str, str], redis_server: Redis
):
    keep(given, "cache")
    given["CDF_SINKS__CACHE__ROWS_PER_SECOND"] = "2"
    container = delivering("cdf-image-loaded")
    orders.change("UPDATE {} SET amount = -1")

    def written() -> int:
        return sum(row["amount"] == -1 for row in entries(redis_server.url, "orders:").values())

    until(written, WITHIN, container.logs)
    assert written() < len(orders.rows)
    assert container.stop() == 0
    assert entries(redis_server.url, "orders:") == orders.rows


@pytest.mark.nightly  # the driver and the executor below run as such a user
@pytest.mark.parametrize("user", ["123456:123456", "123456:0", "10001:10001"])
def test_image_and_its_commands_run_as_any_user(
    delivering: Callable[..., Container], orders: Source, redis_server: Redis, user: str
):
    container = delivering("cdf-image-any", user)
    assert entries(redis_server.url, "orders:") == orders.rows
    assert container.execute("cdf-replicator", "dead-letters", "list", "--format", "json").output == ""
    assert container.stop() == 0


def test_image_serves_as_driver_and_executor_of_any_user(
    new_container: Callable[..., Container],
    get: Callable[[str], httpx.Response],
    orders: Source,
    given: dict[str, str],
    redis_server: Redis,
):
    """A driver that has a cluster without workers; the one executor is started as Spark has Kubernetes start it."""
    keep(given, "cache")
    port = str(free_port())
    conf = {**SHORT_LIVED, "spark.driver.host": "127.0.0.1", "spark.driver.port": port}
    pod = {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "600m",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "executor-1",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(JAVA_OPTIONS)},
    }
    with Master().started() as master:
        given |= {"CDF_SPARK__MASTER": master.url, "CDF_SPARK__CONF": json.dumps(conf)}
        driver = new_container("cdf-image-driver", ANY_USER)
        executor = new_container("cdf-image-executor", ANY_USER, variables=pod)
        driver.start()
        until(lambda: is_open(int(port)), WITHIN, driver.logs)
        executor.start("executor")
        until(lambda: is_delivered(get, orders.version), WITHIN, lambda: f"{driver.logs()}\n{executor.logs()}")
        assert entries(redis_server.url, "orders:") == orders.rows
        assert driver.execute("cdf-replicator", "dead-letters", "list", "--format", "json").output == ""
        assert driver.stop() == 0


def test_image_starts_without_network(new_container: Callable[..., Container], given: dict[str, str]):
    keep(given, "audit")
    ended = new_container("cdf-image-alone").once("run", "--once", network="none")
    assert "batch delivered" in ended.log


def test_wrong_configuration_is_reported_and_exits_78(new_container: Callable[..., Container], given: dict[str, str]):
    given["CDF_SINKS__CACHE__URL"] = "not a url"
    ended = new_container("cdf-image-wrong").once("run", check=False)
    assert ended.code == 78
    assert "CDF_SINKS__CACHE__URL" in ended.log


def test_image_is_described_and_does_not_run_as_root(podman: Podman):
    image = podman.image()
    config = image["Config"]
    assert isinstance(config, dict)
    assert config["User"] == "10001:0"
    assert config["StopSignal"] in ("SIGTERM", "15")
    labels = {name.rpartition(".")[2] for name in config["Labels"] if name.startswith("org.opencontainers.image.")}
    assert labels >= {"title", "description", "source", "version", "revision", "created", "licenses"}
    assert len(config["Labels"]["org.opencontainers.image.revision"]) == 40
    assert config["Entrypoint"] == ["tini", "--", "cdf-replicator"]


def test_image_takes_at_most_950_megabytes_unpacked(podman: Podman):
    assert int(str(podman.image()["Size"])) / 1e6 <= LARGEST_MB


def test_provided_jars_replace_fetched_jars(podman: Podman, tmp_path: Path):
    (tmp_path / "mine.jar").touch()
    tag = f"{IMAGE}-jars"
    podman.build(tag, PROJECT, "--build-context", f"jars={tmp_path}", "--target", "service")
    # On the host's network, as every container here: a bridge needs iptables.
    words = ("podman", "run", "--rm", "--network", "host", "--entrypoint", "ls", tag)
    jars = podman.run(*words, "/opt/cdf/lib/python3.11/site-packages/pyspark/jars").output.split()
    podman.run("podman", "rmi", tag)
    assert "mine.jar" in jars
    assert not any(jar.startswith("delta-spark") for jar in jars)
