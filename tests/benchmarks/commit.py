"""Measure a small commit: the service beside the job that a data engineer writes by hand, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from deploy.local.servers import Elasticsearch, Redis
from deploy.local.servers.server import PROJECT
from tests.benchmarks import commits as small
from tests.benchmarks.latency import TABLE, Visible, in_elasticsearch, in_redis, watched
from tests.benchmarks.start import script_environ
from tests.benchmarks.usage import measured
from tests.support.light_table import added_rows
from tests.support.service import Service, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OURS, BY_HAND, EVERY_SECOND = ARMS = "ours", "by hand", "by hand once a second"
"""The second arm starts a micro-batch as soon as the former has ended, the third once a second."""
SINKS: Final = {"redis": ("redis",), "audit": ("audit",), "all": ("redis", "elasticsearch", "audit")}
STOP_SECONDS = 120


@dataclass(frozen=True)
class Cost:
    """Processor seconds of driver, JVM and workers for one commit; seconds until it is visible in Redis, None without Redis."""

    cpu_seconds: float
    visible: float | None


Costs = dict[str, dict[str, Cost]]
"""By sinks, then by arm."""


def costs(commits: int, warm_up: int, report: Callable[[str], None]) -> Costs:
    """Return the cost of a commit of five rows, one commit a second; the first ``warm_up`` commits are not counted."""
    found: Costs = {}
    with Elasticsearch.start(long_lived=True) as search, Redis.start() as cache:
        for name, sinks in SINKS.items():
            for arm in ARMS:
                with TemporaryDirectory() as folder:
                    places = {"redis": cache.url, "elasticsearch": search.url, "audit": str(Path(folder, "audit"))}
                    run = _Run(Path(folder), {sink: places[sink] for sink in sinks}, commits, warm_up)
                    found.setdefault(name, {})[arm] = cost = run.measured(arm)
                _forget(cache, search)
                visible = "" if cost.visible is None else f", visible after {cost.visible:.2f} s (p50)"
                report(f"commit: into {name}: {arm}: {cost.cpu_seconds:.2f} processor seconds{visible}")
    return found


@dataclass(frozen=True)
class _Run:
    folder: Path
    places: dict[str, str]
    commits: int
    warm_up: int

    def measured(self, arm: str) -> Cost:
        source, table = small.made(self.commits + self.warm_up), self.folder / TABLE
        small.begin(source, table)
        arms = {OURS: self._ours, BY_HAND: lambda: self._by_hand(0), EVERY_SECOND: lambda: self._by_hand(1)}
        with arms[arm]() as process:
            watched(source, table, range(self.warm_up), self._views())
            with measured([process]) as usage:
                committed, seen = watched(
                    source, table, range(self.warm_up, self.warm_up + self.commits), self._views()
                )
        in_redis_at = seen[0] if "redis" in self.places else None
        waited = [in_redis_at[key] - committed[key] for key in sorted(committed)] if in_redis_at else None
        return Cost(usage.cpu_seconds / self.commits, Visible.of(waited).p50 if waited else None)

    def _views(self) -> Sequence[Callable[[int], bool]]:
        views = {"redis": in_redis, "elasticsearch": in_elasticsearch}
        return [views[sink](place) for sink, place in self.places.items() if sink in views] or [self._in_audit()]

    def _in_audit(self) -> Callable[[int], bool]:
        """Show a commit by the rows that the audit's log counts; every commit only inserts, and ids have no gaps."""
        rows: dict[str, int] = {}

        def shows(key: int) -> bool:
            for file in Path(self.places["audit"]).glob("**/_delta_log/*.json"):
                if file.name not in rows:
                    rows[file.name] = added_rows(file)
            return sum(rows.values()) >= key + small.ROWS

        return shows

    @contextmanager
    def _ours(self) -> Iterator[int]:
        types = {
            "redis": ("redis", "URL"),
            "elasticsearch": ("elasticsearch", "HOSTS"),
            "audit": ("delta_audit", "PATH"),
        }
        variables: dict[str, object] = {"TABLES__ORDERS__PATH": self.folder / TABLE, "TABLES__ORDERS__KEYS": "id"}
        variables["TABLES__ORDERS__SINKS"] = ",".join(self.places)
        for sink, place in self.places.items():
            kind, where = types[sink]
            variables |= {f"SINKS__{sink.upper()}__TYPE": kind, f"SINKS__{sink.upper()}__{where}": place}
        with Service(environment(self.folder, **variables)).started() as service:
            for sink in self.places:
                service.wait_state(f"orders_{sink}", "running")
            yield service.pid

    @contextmanager
    def _by_hand(self, seconds: int) -> Iterator[int]:
        script = [
            sys.executable,
            "-m",
            "tests.benchmarks.by_hand",
            str(self.folder / TABLE),
            str(self.folder / "checkpoint"),
        ]
        words = [*script, str(seconds), json.dumps(self.places)]
        with subprocess.Popen(words, env=script_environ(), cwd=PROJECT, stderr=subprocess.DEVNULL) as process:
            try:
                yield process.pid
            finally:
                process.terminate()
                process.wait(STOP_SECONDS)


def _forget(cache: Redis, search: Elasticsearch) -> None:
    import httpx
    import redis

    with redis.Redis.from_url(cache.url) as client:
        client.flushall()
    httpx.delete(f"{search.url}/{TABLE}", params={"ignore_unavailable": "true"}).raise_for_status()
