"""Measure the time from a commit until a read by key shows its row, in Elasticsearch and in Redis."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from elasticsearch import Elasticsearch
from redis import Redis

from deploy.local.demo.board import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self

    from deploy.local.demo.board import Commit

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 10
"""Limit for a row after the service has reported its version as delivered. The comparison finds a row that is missing."""
UPDATED_AT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Format of a timestamp in a document or entry. Texts of this format sort by time."""


class Probe:
    """Polls a server for a row of each commit, in a thread, until it returns the committed row or a newer one.

    Args:
        log: The `_delta_log` folder of the source table.
        updated_at: Returns the `updated_at` column of the row with a given key as text; None if there is no such row.
    """

    def __init__(self, log: Path, updated_at: Callable[[str], str | None]) -> None:
        self._log = log
        self._updated_at = updated_at
        self._end = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._seconds: list[Future[float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.shutdown()

    def expect(self, commit: Commit) -> None:
        """Poll for a commit that the caller is about to write."""
        if commit.key is not None:
            self._seconds.append(self._thread.submit(self._visible_after, commit))

    def seconds(self) -> list[float]:
        """Return the seconds from commit to visibility, per commit."""
        return [found.result() for found in wait(self._seconds, PATIENCE_SECONDS).done]

    def _visible_after(self, commit: Commit) -> float:
        assert commit.key is not None
        file = self._log / f"{commit.version:020d}.json"
        while not self._end.wait(POLL_SECONDS):
            if file.exists() and (self._updated_at(commit.key) or "") >= commit.at.strftime(UPDATED_AT):
                break
        return time.time() - file.stat().st_mtime


def elasticsearch_updated_at(url: str) -> Callable[[str], str | None]:
    client = Elasticsearch(url).options(ignore_status=404)

    def updated_at(key: str) -> str | None:
        found = client.get(index=TABLE, id=key, source_includes=["updated_at"])
        return found["_source"]["updated_at"] if found.get("found") else None

    return updated_at


def redis_updated_at(url: str) -> Callable[[str], str | None]:
    client = Redis.from_url(url)

    def updated_at(key: str) -> str | None:
        entry = client.get(f"{TABLE}:{key}")
        return None if entry is None else json.loads(entry)["updated_at"]

    return updated_at
