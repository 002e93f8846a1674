"""Measure the service on a standalone Spark cluster: rate over executors, and processor time of driver and executors apart.

The rate is measured on a line to Redis with a long latency: the executors wait most of the time, so that eight of them share two cores
without much loss. It shows that no part of a delivery is done by one process for all. It does not show what eight cores deliver.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx

from deploy.local.servers import Redis
from tests.benchmarks import linked_table
from tests.benchmarks.line import late
from tests.benchmarks.linked_table import LinkedTable
from tests.benchmarks.usage import measured
from tests.support.service import SPARK_CONF, Service, environment
from tests.support.waiting import until
from tests.system.cluster import Master, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.benchmarks.scale import Cluster

    Report = Callable[[str], None]

TOKEN = "token"
ROUTE = "rows_cache"
PATIENCE_SECONDS = 600
LATENCY_SECONDS = 0.02
CHUNK_ROWS = 250
FILE_PER_TASK = {"spark.sql.files.openCostInBytes": "128m"}
"""A task for each file: Spark counts the cost of opening a file as so many bytes, and a task reads at most 128 MiB."""


@dataclass(frozen=True)
class Rate:
    """``rows_a_second``: the median of several loads."""

    executors: int
    rows: int
    rows_a_second: float


@dataclass(frozen=True)
class Work:
    """The load of a table with so many files, each by a task of its own; processor seconds."""

    files: int
    rows: int
    driver_seconds: float
    executor_seconds: float


@dataclass(frozen=True)
class Found:
    rates: list[Rate]
    works: list[Work]


def executors(scale: Cluster, report: Report) -> Found:
    with ExitStack() as stack:
        master = stack.enter_context(Master().started())
        workers = [stack.enter_context(Worker(master).started()) for _ in range(max(scale.executors))]
        rates = [_rate(master, count, scale, report) for count in scale.executors]
        works = [_work(master, workers, files, rows, scale, report) for files, rows in scale.works]
    return Found(rates, works)


def _rate(master: Master, count: int, scale: Cluster, report: Report) -> Rate:
    with (
        Redis.start(config={"appendonly": "no"}) as cache,
        late(cache.port, LATENCY_SECONDS) as port,
        _loaded(master, count, scale.files, scale.rows_a_file, port, SINKS__CACHE__CHUNK_ROWS=CHUNK_ROWS) as service,
    ):
        loads = [_load(service) for _ in range(scale.loads)]
    rows = scale.files * scale.rows_a_file
    found = Rate(count, rows, rows / median(loads))
    report(f"executors: {count}: {found.rows_a_second:,.0f} rows a second")
    return found


def _work(
    master: Master, workers: Sequence[Worker], files: int, rows_a_file: int, scale: Cluster, report: Report
) -> Work:
    with (
        Redis.start(config={"appendonly": "no"}) as cache,
        _loaded(master, scale.cpu_executors, files, rows_a_file, cache.port) as service,
    ):
        seen = []
        for _ in range(scale.loads):
            with measured([service.pid]) as driver, measured([worker.pid for worker in workers]) as of_executors:
                _load(service)
            seen.append((driver.cpu_seconds, of_executors.cpu_seconds))
    drivers, rest = (median(each) for each in zip(*seen, strict=True))
    report(
        f"executors: {files} files, {files * rows_a_file:,} rows: driver {drivers:.1f}, executors {rest:.1f} processor seconds"
    )
    return Work(files, files * rows_a_file, drivers, rest)


@contextmanager
def _loaded(
    master: Master, count: int, files: int, rows_a_file: int, redis_port: int, **more: object
) -> Iterator[Service]:
    """Start the service with so many executors, and let it load the table once."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        LinkedTable(folder / "rows", rows_a_file).create(files)
        conf = {
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "800m",
            "spark.cores.max": count,
            **FILE_PER_TASK,
            **SPARK_CONF,
        }
        given = environment(
            folder,
            SPARK__MASTER=master.url,
            HTTP__TOKEN=TOKEN,
            TABLES__ROWS__PATH=folder / "rows",
            TABLES__ROWS__KEYS=linked_table.KEYS,
            TABLES__ROWS__SINKS="cache",
            SINKS__CACHE__TYPE="redis",
            SINKS__CACHE__URL=f"redis://127.0.0.1:{redis_port}/0",
            **more,
        )
        given |= {
            "CDF_SPARK__CONF": json.dumps(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PATH": os.environ["PATH"],
        }
        with Service(given).started() as service:
            service.wait_state(ROUTE, "running", PATIENCE_SECONDS)
            yield service


def _load(service: Service) -> float:
    """Load the whole table again by a resync, and return the seconds of its delivery."""
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False) as client:
        accepted = client.post(f"/routes/{ROUTE}/resync", json={}).raise_for_status().json()["id"]

        def answer() -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/requests/{accepted}").json()
            return found

        until(lambda: answer()["state"] not in ("waiting", "running"), PATIENCE_SECONDS, lambda: str(answer()))
        assert answer()["state"] == "done", answer()
    entries = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    seconds: float = [entry["seconds"] for entry in entries if entry["message"] == "batch delivered"][-1]
    return seconds
