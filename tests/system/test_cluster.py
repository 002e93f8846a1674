"""Run the service on a Spark cluster: executors write the rows, and a killed executor loses no change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from tests.support.reading import entries
from tests.support.service import SHORT_LIVED, Service, environment
from tests.support.session import JAVA_OPTIONS
from tests.support.waiting import until
from tests.system.cluster import Master, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deploy.local.servers import Redis
    from tests.support.source import Source

ROUTES = ("orders_audit", "orders_cache")
ROWS = 50_000
CONF = {
    **SHORT_LIVED,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "600m",
    "spark.driver.host": "127.0.0.1",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python for the executors that has the libraries, and neither the service nor its connectors."""
    home = tmp_path_factory.mktemp("executors") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    found = home / "bin" / "python"
    arguments = [found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.strip()
    # Files of that kind are not read in the folder that this one names, so an editable install of ours does not reach it.
    (home.joinpath(packages) / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    words = [found, "-c", "import redis, pyarrow\nimport connectors"]
    lacking = subprocess.run(words, capture_output=True, text=True, check=False, cwd=home, env={})
    assert "No module named 'connectors'" in lacking.stderr
    return found


@pytest.fixture
def workers() -> Iterator[tuple[Master, list[Worker]]]:
    with Master().started() as master, Worker(master).started() as one, Worker(master).started() as other:
        yield master, [one, other]


@pytest.fixture
def orders(tmp_path: Path, new_source) -> Source:
    return new_source(tmp_path, "orders", ROWS)


@pytest.fixture
def service(
    tmp_path: Path, orders: Source, workers: tuple[Master, list[Worker]], redis_server: Redis, python: Path
) -> Iterator[Service]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    given = environment(
        tmp_path,
        SPARK__MASTER=workers[0].url,
        SPARK__CONF=json.dumps(CONF),
        TRIGGER_SECONDS=0.5,
        TABLES__ORDERS__PATH=orders.path,
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit,cache",
        TABLES__ORDERS__INCLUDE_PREIMAGES=True,
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=tmp_path / "audit",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
        # A micro-batch that lasts long enough to be met in its midst.
        SINKS__CACHE__ROWS_PER_SECOND=ROWS // 5,
        SINKS__CACHE__CHUNK_ROWS=ROWS // 100,
    )
    with Service({**given, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}) as service:
        service.started()
        yield service


def executors(workers: list[Worker]) -> list[psutil.Process]:
    return [
        child for worker in workers for child in running(psutil.Process(worker.pid), "CoarseGrainedExecutorBackend")
    ]


def running(process: psutil.Process, what: str) -> list[psutil.Process]:
    """Return the descendants that run a program. A process that has just ended has no command line."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            if what in " ".join(child.cmdline()):
                found.append(child)
    return found


def writers(process: psutil.Process) -> list[psutil.Process]:
    """Its Python workers."""
    return running(process, "pyspark.daemon")


def test_executors_write_and_a_killed_executor_loses_nothing(
    service: Service,
    workers: tuple[Master, list[Worker]],
    orders: Source,
    tmp_path: Path,
    redis_server: Redis,
):
    for route in ROUTES:
        service.wait_delivered(route, orders.version)
    found = executors(workers[1])
    assert len(found) == 2
    assert any(writers(executor) for executor in found)
    assert writers(psutil.Process(service.pid)) == [], "the driver's machine writes nothing"
    assert len(entries(redis_server.url, "orders:")) == ROWS

    orders.change("UPDATE {} SET amount = amount + 1")
    with redis.Redis.from_url(redis_server.url) as client:
        at_work: list[psutil.Process] = []
        until(lambda: at_work.extend(writing(found, client)) or at_work, 60, str)
    killed = at_work[0].pid
    os.kill(killed, signal.SIGKILL)
    updated = {"route": "orders_cache", "change_type": "update_postimage"}
    assert service.metric("cdf_changes_applied_total", **updated) == 0, "it was not in the midst of a micro-batch"
    orders.change("DELETE FROM {} WHERE id % 3 = 0")
    for route in ROUTES:
        service.wait_delivered(route, orders.version)
    until(lambda: len(executors(workers[1])) == 2, 60, str)
    assert killed not in {executor.pid for executor in executors(workers[1])}
    assert entries(redis_server.url, "orders:") == orders.rows
    assert orders.folded(tmp_path / "audit" / "orders") == orders.rows
    assert service.end() == 0


def writing(found: list[psutil.Process], client: redis.Redis) -> list[psutil.Process]:
    """The executors whose Python workers have written within the last second."""
    clients = [one for one in client.client_list() if one["cmd"] == "evalsha" and int(one["idle"]) <= 1]
    ports = {int(one["addr"].rpartition(":")[2]) for one in clients}
    return [
        executor
        for executor in found
        if any(held.laddr.port in ports for worker in writers(executor) for held in worker.net_connections("tcp"))
    ]
