"""Run the service of the demo, a `cdf-replicator run` process that environment variables configure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from deploy.local.demo.board import KEYS, TABLE
from deploy.local.servers.server import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SINKS = {"audit": "audit table", "search": "Elasticsearch", "os": "OpenSearch", "cache": "Redis", "db": "PostgreSQL"}
TYPES = {
    "search": ("elasticsearch", "HOSTS"),
    "os": ("opensearch", "HOSTS"),
    "cache": ("redis", "URL"),
    "db": ("postgres", "URL"),
}
"""Type of each sink with a server, and the setting with its address."""
COMMAND = str(Path(sys.executable).parent / "cdf-replicator")
PATIENCE_SECONDS = 300
"""Limit for the first load, and for what is still to deliver at the end."""


@dataclass(frozen=True)
class FirstLoad:
    """The first load of a sink.

    Attributes:
        rows: Number of rows.
        seconds: From the start of the load until the route follows the table, with checks and preparation.
        rate: Rows per second of the write to the sink.
    """

    rows: int
    seconds: float
    rate: float


class Service(Server):
    """A service that replicates the table `folder`/flights into the audit table and the sinks at `urls`. Its state path is in `folder`."""

    name: ClassVar[str] = "cdf-replicator"
    start_seconds: ClassVar[float] = 90
    stop_seconds: ClassVar[float] = 30

    def __init__(self, folder: Path, urls: Mapping[str, str]) -> None:
        super().__init__()
        self._folder = folder
        self._urls = urls

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def first_loads(self) -> Iterator[tuple[str, FirstLoad]]:
        """Yield each sink when its first load has ended, with what `/status` reports of it."""
        began: dict[str, datetime] = {}
        ended: set[str] = set()
        for routes in self._statuses():
            for sink, route in routes.items():
                since = datetime.fromisoformat(route["since"].replace("Z", "+00:00"))
                if route["state"] != "running":
                    began[sink] = since
                elif sink not in ended and route["batches"]:
                    ended.add(sink)
                    load = route["batches"][0]
                    seconds = (since - began.get(sink, since)).total_seconds()
                    yield sink, FirstLoad(load["rows"], seconds, load["rows"] / load["seconds"]["write"])
            if ended == {"audit", *self._urls}:
                return

    def await_delivered(self, version: int) -> None:
        """Wait until every route has delivered a version."""
        for routes in self._statuses():
            if len(routes) == 1 + len(self._urls) and all(
                (r["delivered_version"] or 0) >= version for r in routes.values()
            ):
                return

    def verify(self) -> tuple[bool, str]:
        """Run `cdf-replicator verify` on the table while the service runs; return whether all targets equal it, and the output."""
        ended = subprocess.run(
            [COMMAND, "verify", TABLE], env=self._environment(), capture_output=True, text=True, check=False
        )
        return ended.returncode == 0, ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr

    def _statuses(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yield the status of the routes by sink; raise ServerError if the service ends or a route halts."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if not self.running:
                raise ServerError(f"the service has ended; its log: {self.log}")
            with suppress(OSError):  # a busy service answers later
                routes = json.loads(self._get("/status"))["routes"]
                if halted := [route for route in routes if route["state"] == "halted"]:
                    raise ServerError(f"route {halted[0]['route']} halted: {halted[0]['reason']}")
                yield {route["sink"]: route for route in routes}
            time.sleep(0.1)
        raise ServerError(f"the service was not done after {PATIENCE_SECONDS} s; its log: {self.log}")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return answer.read()

    def _command(self) -> list[str]:
        return [COMMAND, "run"]

    def _environment(self) -> Mapping[str, str]:
        own = ("CDF_", "SPARK_", "PYSPARK_")
        spark = {
            "spark.driver.memory": "1g",
            "spark.local.dir": str(self.home),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self.home}",
        }
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(own)},
            "TMPDIR": str(self.home),
            "CDF_STATE_PATH": str(self._folder / "state"),
            "CDF_TRIGGER_SECONDS": "0.5",
            "CDF_SHUTDOWN_SECONDS": "20",
            "CDF_TABLES__FLIGHTS__PATH": str(self._folder / TABLE),
            "CDF_TABLES__FLIGHTS__KEYS": ",".join(KEYS),
            "CDF_TABLES__FLIGHTS__SINKS": ",".join(("audit", *self._urls)),
            "CDF_TABLES__FLIGHTS__INCLUDE_PREIMAGES": "true",
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": str(self._folder / "audit"),
            **{f"CDF_SINKS__{sink.upper()}__TYPE": TYPES[sink][0] for sink in self._urls},
            **{f"CDF_SINKS__{sink.upper()}__{TYPES[sink][1]}": url for sink, url in self._urls.items()},
            "CDF_HTTP__BIND_PORT": str(self.port),
            "CDF_SPARK__MASTER": "local[2]",
            "CDF_SPARK__CONF": json.dumps(spark),
        }

    def _ready(self) -> bool:
        return bool(self._get("/livez"))
