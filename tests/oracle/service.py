"""The service as an operator configures it, delivering one table through every sink; ``run --once``, in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cdf_replicator import requests
from cdf_replicator.board import Board
from cdf_replicator.dead_letters import DeadLetters
from cdf_replicator.metrics import Metrics
from cdf_replicator.runner import Runner
from cdf_replicator.settings import load
from cdf_replicator.shared import Service
from cdf_replicator.state import StatePath
from tests.support import reading

if TYPE_CHECKING:
    from cdf_replicator.exceptions import Verdict
    from deploy.servers import Elasticsearch, Redis
    from tests.oracle.table import Row, Table

SINKS = ("audit", "search", "cache")
FEATURES = "SELECT region, count(*) AS held, sum(amount) AS total, max(name) AS newest FROM {source} GROUP BY region"
NARROW = "amount > 40 OR region = 'us'"
NARROW_COLUMNS = ("id", "amount")
PATIENCE_SECONDS = 240


class Replicator:
    """``slug``: of the table; no two histories share one. ``batches``: how many micro-batches were delivered.

    ``pinned``: the version of the snapshot each route began with, -1 where it began with none. ``replayed``: the
    versions that replays began at.
    """

    def __init__(self, table: Table, slug: str, folder: Path, elasticsearch: Elasticsearch, cache: Redis) -> None:
        shape = table.shape
        self.table, self.slug, self.folder = table, slug, folder
        self.elasticsearch, self.cache = elasticsearch, cache
        self.batches = 0
        self.pinned: dict[str, int] = {}
        self.replayed: list[int] = []
        prefix = f"CDF_TABLES__{slug.upper()}__"
        environ = {
            "CDF_STATE_PATH": str(folder / "state"),
            prefix + "PATH": table.path,
            prefix + "KEYS": ",".join(shape.keys),
            prefix + "SINKS": ",".join(SINKS if shape.further == "none" else (*SINKS, shape.further)),
            prefix + "MAX_FILES_PER_TRIGGER": str(shape.max_files),
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": str(folder / "audit"),
            "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
            "CDF_SINKS__SEARCH__HOSTS": elasticsearch.url,
            "CDF_SINKS__CACHE__TYPE": "redis",
            "CDF_SINKS__CACHE__URL": cache.url,
            "CDF_ROUTES__NARROW__TABLE": slug,
            "CDF_ROUTES__NARROW__SINK": "cache",
            "CDF_ROUTES__NARROW__FILTER": NARROW,
            "CDF_ROUTES__NARROW__COLUMNS": ",".join(NARROW_COLUMNS),
            "CDF_ROUTES__NARROW__RENAME": "amount=price",
            "CDF_ROUTES__NARROW__KEY_TEMPLATE": ":".join([f"narrow-{slug}", *(f"{{{key}}}" for key in shape.keys)]),
        }
        if shape.further != "none":
            environ |= {
                "CDF_SINKS__REPLICA__TYPE": "delta_replica",
                "CDF_SINKS__REPLICA__PATH": str(folder / "replica"),
                "CDF_SINKS__FEATURES__TYPE": "delta_features",
                "CDF_SINKS__FEATURES__PATH": str(folder / "features"),
            }
        if shape.further == "features":
            route = f"CDF_ROUTES__{slug.upper()}_FEATURES__"
            environ |= {route + "ENTITY": "region", route + "QUERY": FEATURES}
        if shape.from_version is not None:
            environ[prefix + "STARTING_VERSION"] = str(shape.from_version)
        self.settings = load(environ)
        self.state_path = StatePath.open(folder / "state")

    @property
    def routes(self) -> list[str]:
        return list(self.settings.resolved)

    def deliver(self, ask: dict[str, requests.Request] | None = None) -> dict[str, Verdict]:
        """Run every route to the end, side by side; returns what stopped those that did not get there."""
        letters = DeadLetters(self.table.spark, self.state_path.dead_letters)
        board = Board()
        for name, sink in self.settings.sinks.items():
            board.add_sink(name, sink.type, "")
        service = Service(
            self.table.spark, self.settings, self.state_path, letters, Metrics(), board, True, threading.Event()
        )
        runners = {name: Runner(service, route, None) for name, route in self.settings.resolved.items()}
        for name, request in (ask or {}).items():
            requests.submit(self.state_path.requests, request)
            requests.take(self.state_path.requests, request)
            runners[name].submit(request)
        for runner in runners.values():
            runner.start()
        for name, runner in runners.items():
            runner.join(PATIENCE_SECONDS)
            assert not runner.is_alive(), f"route {name} did not come to an end"
        self.batches += sum(len(route.batches) for route in board.snapshot().routes)
        for name in runners:
            if name not in self.pinned and (state := self.state_path.load(name)):
                self.pinned[name] = -1 if state.pinned_version is None else state.pinned_version
        return {name: runner.verdict for name, runner in runners.items() if runner.verdict}

    def replay(self, version: int) -> dict[str, Verdict]:
        self.replayed.append(version)
        asked = {name: requests.Request("replay", name, starting_version=version) for name in self.routes}
        return self.deliver(asked)

    def lose_commits(self) -> None:
        """Take back Spark's word that the newest micro-batch of each route was committed, as a kill before it would."""
        for route in self.routes:
            state = self.state_path.load(route)
            if state is None:
                continue
            commits = self.state_path.checkpoint(route, state.generation) / "commits"
            if numbers := [int(file.name) for file in commits.glob("[0-9]*")]:
                (commits / str(max(numbers))).unlink()
                (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)

    # What the sinks show

    def documents(self) -> dict[str, Row]:
        return reading.documents(self.elasticsearch.url, self.slug)

    def entries(self) -> dict[str, Row]:
        return reading.entries(self.cache.url, f"{self.slug}:")

    def narrow_entries(self) -> dict[str, Row]:
        return reading.entries(self.cache.url, f"narrow-{self.slug}:")

    def audited(self) -> list[Row]:
        frame = self.table.spark.read.format("delta").load(str(self.folder / "audit" / self.slug))
        own = [name for name in reading.AUDIT_COLUMNS if name not in ("change_type", "commit_version")]
        return [row.asDict() for row in frame.drop(*own).collect()]

    def replicated(self) -> list[Row]:
        frame = self.table.spark.read.format("delta").load(str(self.folder / "replica" / self.slug))
        return [row.asDict() for row in frame.drop("_cdf_key", "_cdf_guard").collect()]

    def features(self) -> dict[str, Row]:
        frame = self.table.spark.read.format("delta").load(str(self.folder / "features" / f"{self.slug}_features"))
        return {row["region"]: row.asDict() for row in frame.drop("_cdf_guard").collect()}

    def letters(self) -> int:
        if not Path(self.state_path.dead_letters).exists():
            return 0
        return self.table.spark.read.format("delta").load(str(self.state_path.dead_letters)).count()
