"""Arms of the rivals that need Spark 3.5: es-hadoop and spark-redis. They read the Parquet of a work."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.benchmarks.arm import Arm
from tests.benchmarks.rivals.process import Worker, worker
from tests.benchmarks.rivals.relay import relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.local.servers import Elasticsearch, Redis
    from tests.benchmarks.works import Work

TUNED = {"es.batch.size.entries": "5000", "es.batch.size.bytes": "10mb", "es.batch.write.refresh": "false"}
PIPELINE = {"max.pipeline.size": "1000"}
"""Ten times its default, so a tenth of the round trips; larger groups of rows (``iterator.grouping.size``) brought nothing."""


@dataclass(frozen=True)
class Rivals:
    """Arms that other programs run. The worker's process tree is measured, the relay is not.

    The caller empties the targets.
    """

    worker: Worker

    @contextmanager
    def es_hadoop(self, work: Work, server: Elasticsearch, index: str) -> Iterator[list[Arm]]:
        """Its defaults, then tuned: larger requests, and no refresh after each task."""
        with relay(server.url) as address:
            host, port = address.split(":")
            where = {"es.nodes": host, "es.port": port}
            yield [
                self._arm("es-hadoop default", work, "elasticsearch", index, where),
                self._arm("es-hadoop tuned", work, "elasticsearch", index, {**where, **TUNED}),
            ]

    def spark_redis(self, work: Work, server: Redis, table: str) -> Arm:
        """Its keys are ``<table>:<key text>``, as ours."""
        where = {"host": "127.0.0.1", "port": str(urlsplit(server.url).port)}
        return self._arm("spark-redis", work, "redis", table, {**where, **PIPELINE})

    def _arm(self, name: str, work: Work, to: str, target: str, settings: dict[str, str]) -> Arm:
        def run() -> int:
            self.worker.write(work.parquet, work.keys, to, target, settings)
            return work.rows

        return Arm(name, run, [self.worker.pid])


@contextmanager
def rivals() -> Iterator[Rivals]:
    """Starts Spark 3.5, which takes some seconds and memory: one for all contests."""
    with worker() as started:
        yield Rivals(started)
