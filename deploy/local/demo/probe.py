"""Measure the time from a commit to its visibility in Elasticsearch, in Redis and in the audit table."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from elasticsearch import Elasticsearch
from redis import Redis

from deploy.local.demo.service import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from typing_extensions import Self

    from deploy.local.demo.source import Commit

POLL_SECONDS = 0.02
UPDATED_AT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Format of a timestamp in a document or entry. Texts of this format sort by time."""


class Probe:
    """Polls a server for one row of each commit until it returns the committed state of the row or a newer state.

    Args:
        log: The `_delta_log` folder of the source table.
        updated_at: Returns the `updated_at` column of the row with a given key as text; None if there is no such row.

    Attributes:
        seconds: Seconds from commit to visibility, per commit.
    """

    def __init__(self, log: Path, updated_at: Callable[[str], str | None]) -> None:
        self._log = log
        self._updated_at = updated_at
        self._pending: deque[Commit] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def expect(self, commit: Commit) -> None:
        """Add a commit to poll for, before the source writes it."""
        if commit.key is not None:
            self._pending.append(commit)

    def _poll(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            made = [commit for commit in list(self._pending) if commit_file(self._log, commit.version).exists()]
            for number in reversed(range(len(made))):
                if self._shows(made[number]):
                    # A later commit may have deleted or moved the row of an older commit, which counts as seen now.
                    self._seen(number + 1)
                    break

    def _shows(self, commit: Commit) -> bool:
        assert commit.key is not None
        found = self._updated_at(commit.key)
        return found is not None and found >= commit.at.strftime(UPDATED_AT)

    def _seen(self, count: int) -> None:
        now = time.time()
        for _ in range(count):
            commit = self._pending.popleft()
            self.seconds.append(now - commit_file(self._log, commit.version).stat().st_mtime)


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


def audit_seconds(spark: SparkSession, audit: Path, source_log: Path) -> list[float]:
    """Return the seconds from each commit to its rows in the audit table, by the commit times of both tables."""
    kept = {}
    for file in (audit / "_delta_log").glob("*.json"):
        for action in map(json.loads, file.read_text().splitlines()):
            if "txn" in action:
                kept[action["txn"]["version"]] = file.stat().st_mtime
    rows = spark.read.format("delta").load(str(audit)).where("change_type <> 'snapshot'")
    # A commit that was read in two micro-batches counts from the batch of its last row.
    last = rows.groupBy("commit_version").agg({"generation": "max", "batch": "max"}).collect()
    return [
        kept[row["max(generation)"] << 32 | row["max(batch)"]]
        - commit_file(source_log, row["commit_version"]).stat().st_mtime
        for row in last
    ]


def commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"
