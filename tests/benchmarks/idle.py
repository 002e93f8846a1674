"""Measure the cost of an idle service."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from deploy.local.servers import Redis
from tests.benchmarks import light_table
from tests.benchmarks.usage import measured, tree
from tests.support.service import SPARK_CONF, Service, environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.service import Status

ROWS = 10
LONGEST_START_SECONDS = 900


@dataclass(frozen=True)
class Idle:
    """``cpu_share``: of one core, by driver, JVM and workers together. Memory in bytes, at the end.

    ``start_seconds``: until every route has loaded its table and runs. ``scrape_seconds``: one request for the metrics.
    """

    routes: int
    start_seconds: float
    scrape_seconds: float
    seconds: float
    cpu_share: float
    driver_rss: int
    jvm_rss: int
    workers_rss: int


def idle(
    tables: int,
    routes_each: int,
    settle_seconds: float,
    seconds: float,
    report: Callable[[str], None],
    heap: str = "1g",
) -> Idle:
    """So many tables with so many routes each into Redis, at the default trigger."""
    with TemporaryDirectory() as name, Redis.start() as cache:
        folder = Path(name)
        given = _given(folder, cache.url, tables, routes_each)
        given["CDF_SPARK__CONF"] = json.dumps({"spark.driver.memory": heap, **SPARK_CONF})
        with Service(given).started() as service:
            began = time.monotonic()
            service.wait(all_run, within=LONGEST_START_SECONDS)
            start = time.monotonic() - began
            report(f"idle: {tables * routes_each} routes run after {start:.0f} s; {settle_seconds:.0f} s of warm-up")
            time.sleep(settle_seconds)
            with measured([service.pid]) as usage:
                time.sleep(seconds)
            driver, jvm, workers = _memory(service.pid)
            began = time.monotonic()
            service.get("/metrics")
            scrape = time.monotonic() - began
    found = Idle(
        tables * routes_each, start, scrape, usage.seconds, usage.cpu_seconds / usage.seconds, driver, jvm, workers
    )
    report(f"idle: {found.cpu_share:.1%} of one core; driver {driver / 2**20:.0f} MiB, JVM {jvm / 2**20:.0f} MiB")
    return found


def all_run(status: Status) -> bool:
    return {route["state"] for route in status["routes"]} == {"running"}


def _given(folder: Path, url: str, tables: int, routes_each: int) -> dict[str, str]:
    variables: dict[str, object] = {"SINKS__CACHE__TYPE": "redis", "SINKS__CACHE__URL": url}
    for table in range(tables):
        light_table.create(folder / f"t{table}", ROWS)
        variables |= {f"TABLES__T{table}__PATH": folder / f"t{table}", f"TABLES__T{table}__KEYS": "id"}
        for number in range(routes_each):
            route = f"ROUTES__T{table}_R{number}__"
            template = f"t{table}-r{number}:{{id}}"
            variables |= {route + "TABLE": f"t{table}", route + "SINK": "cache", route + "KEY_TEMPLATE": template}
    return environment(folder, **variables)


def _memory(service: int) -> tuple[int, int, int]:
    """Return the memory of the driver, of its JVM and of Spark's Python workers, which end after an idle minute."""
    driver = jvm = workers = 0
    for process in tree([service]):
        try:
            rss, name = process.memory_info().rss, process.name()
        except psutil.NoSuchProcess:
            continue
        if process.pid == service:
            driver = rss
        elif name == "java":
            jvm += rss
        else:
            workers += rss
    return driver, jvm, workers
