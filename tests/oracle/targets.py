"""Copy and restore the content of targets, each by the means of its server: Redis keys, a snapshot of an index, a table's version."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import httpx
import redis
from delta.tables import DeltaTable

from tests.support.index_marks import record_as_a_day_old

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deploy.local.servers import Elasticsearch, OpenSearch, Redis

REPOSITORY = "/_snapshot/oracle"
_numbers = itertools.count()


class Entries:
    """The target of a route into Redis: the values under its prefix, their guards, its claim."""

    def __init__(self, server: Redis, prefix: str) -> None:
        self.server, self.prefix = server, prefix

    def copy(self) -> list[tuple[bytes, int, bytes]]:
        with redis.Redis.from_url(self.server.url) as client:
            return [(key, max(client.pttl(key), 0), client.dump(key)) for key in self._keys(client)]

    def restore(self, copy: list[tuple[bytes, int, bytes]]) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            for key in self._keys(client):
                client.delete(key)
            for key, lives, value in copy:
                client.restore(key, lives, value)

    def _keys(self, client: redis.Redis) -> Iterator[bytes]:
        for head in ("", "cdf:guard:{", "cdf:claim:{"):
            yield from list(client.scan_iter(f"{head}{self.prefix}*", count=1000))


class Index:
    """The target of a route into Elasticsearch: an index, which is deleted and restored from a snapshot."""

    def __init__(self, server: Elasticsearch | OpenSearch, name: str) -> None:
        self.server, self.name = server, name

    def copy(self) -> str | None:
        with self._client() as client:
            if not client.head(f"/{self.name}").is_success:
                return None
            record_as_a_day_old(self.server.url, self.name)
            _send(client, "PUT", REPOSITORY, {"type": "fs", "settings": {"location": "oracle"}})
            copy = f"{REPOSITORY}/{self.name}-{next(_numbers)}"
            body = {"indices": self.name, "include_global_state": False}
            _send(client, "PUT", f"{copy}?wait_for_completion=true", body)
            return copy

    def restore(self, copy: str | None) -> None:
        with self._client() as client:
            _send(client, "DELETE", f"/{self.name}?ignore_unavailable=true")
            if copy is not None:
                _send(client, "POST", f"{copy}/_restore?wait_for_completion=true", {"indices": self.name})

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, timeout=60, trust_env=False)


class Folder:
    """The target of a route into a Delta table, which RESTORE sets back to an older version."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, str(path)

    def copy(self) -> int | None:
        if not DeltaTable.isDeltaTable(self.spark, self.path):
            return None
        return int(self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path}` LIMIT 1").first()["version"])

    def restore(self, copy: int | None) -> None:
        if copy not in (None, self.copy()):
            self.spark.sql(f"RESTORE delta.`{self.path}` TO VERSION AS OF {copy}")


def _send(client: httpx.Client, method: str, path: str, body: Any = None) -> None:
    client.request(method, path, json=body).raise_for_status()
