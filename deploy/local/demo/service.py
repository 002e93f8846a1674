"""Run the service of the demo: a `cdf-replicator run` process that environment variables configure."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from deploy.local.demo.source import KEYS
from deploy.local.servers.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.local.servers import Elasticsearch, Redis

TABLE = "flights"
ROUTES = {"audit": f"{TABLE}_audit", "search": f"{TABLE}_search", "cache": f"{TABLE}_cache"}


@dataclass(frozen=True)
class Delivered:
    """Work of a route so far: rows it read, and seconds it was busy."""

    rows: int
    seconds: float


class Service(Server):
    """A service that replicates the table `folder`/flights into all three sinks. Its state path is in `folder`."""

    name: ClassVar[str] = "cdf-replicator"
    start_seconds: ClassVar[float] = 60
    stop_seconds: ClassVar[float] = 30

    def __init__(self, folder: Path, elasticsearch: Elasticsearch, redis: Redis) -> None:
        super().__init__()
        self._folder = folder
        self._sinks = (elasticsearch, redis)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self) -> dict[str, str]:
        """Return the whole configuration as environment variables."""
        elasticsearch, redis = self._sinks
        spark = {
            "spark.driver.memory": "1g",
            "spark.local.dir": str(self.home),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self.home}",
        }
        return {
            "CDF_STATE_PATH": str(self._folder / "state"),
            "CDF_TRIGGER_SECONDS": "0.5",
            "CDF_SHUTDOWN_SECONDS": "20",
            "CDF_TABLES__FLIGHTS__PATH": str(self._folder / TABLE),
            "CDF_TABLES__FLIGHTS__KEYS": ",".join(KEYS),
            "CDF_TABLES__FLIGHTS__SINKS": "audit,search,cache",
            "CDF_TABLES__FLIGHTS__INCLUDE_PREIMAGES": "true",
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": str(self._folder / "audit"),
            "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
            "CDF_SINKS__SEARCH__HOSTS": elasticsearch.url,
            "CDF_SINKS__CACHE__TYPE": "redis",
            "CDF_SINKS__CACHE__URL": redis.url,
            "CDF_HTTP__BIND_PORT": str(self.port),
            "CDF_SPARK__MASTER": "local[2]",
            "CDF_SPARK__CONF": json.dumps(spark),
        }

    def status(self) -> dict[str, Any]:
        """Return the service's `/status`. Raise OSError if the service does not answer."""
        return json.loads(self._get("/status"))

    def routes(self) -> dict[str, dict[str, Any]]:
        """Return the entries of `/status` by route."""
        return {route["route"]: route for route in self.status()["routes"]}

    def delivered(self) -> dict[str, Delivered]:
        """Return the work of each route from `/metrics`."""
        from prometheus_client.parser import text_string_to_metric_families

        rows, seconds = dict.fromkeys(ROUTES.values(), 0.0), dict.fromkeys(ROUTES.values(), 0.0)
        for family in text_string_to_metric_families(self._get("/metrics").decode()):
            for sample in family.samples:
                if sample.name == "cdf_changes_applied_total":
                    rows[sample.labels["route"]] += sample.value
                if sample.name == "cdf_batch_duration_seconds_sum":
                    seconds[sample.labels["route"]] += sample.value
        return {route: Delivered(int(rows[route]), seconds[route]) for route in rows}

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return answer.read()

    def _command(self) -> list[str]:
        return [str(Path(sys.executable).parent / "cdf-replicator"), "run"]

    def _environment(self) -> Mapping[str, str]:
        others = {
            name: value for name, value in os.environ.items() if not name.startswith(("CDF_", "SPARK_", "PYSPARK_"))
        }
        return {**others, "TMPDIR": str(self.home), **self.settings()}

    def _ready(self) -> bool:
        try:
            return bool(self._get("/livez"))
        except urllib.error.HTTPError:
            return False
