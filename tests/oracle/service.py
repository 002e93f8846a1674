"""The service as an operator configures it, delivering one table through every sink; ``run --once``, in this process."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import BATCHES_KEPT, StatusStore
from cdf_replicator.runtime.route_factory import RouteFactory
from cdf_replicator.settings import load
from cdf_replicator.state import command_queue
from cdf_replicator.state.storage_path import LocalPath
from tests.oracle.counts import unequal_sums
from tests.oracle.dimension import recreate
from tests.oracle.moments import Moments
from tests.oracle.states import RecordedStates
from tests.oracle.targets import Entries, Folder, Index
from tests.support import reading
from tests.support.reading import table_rows
from tests.support.verified import verified

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Mapping, Sequence

    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.monitoring.totals import BatchStatus
    from cdf_replicator.runtime.route_runner import RouteRunner
    from deploy.local.servers import Elasticsearch, OpenSearch, Postgres, Redis
    from tests.oracle.table import Row, Table

SINKS = ("audit", "search", "cache")
FEATURES = '{"held": "count(*)", "total": "sum(amount)", "newest": "max(name)"}'
NARROW = "amount > 40 OR region = 'us'"
NARROW_COLUMNS = ("id", "amount", "label")
PATIENCE_SECONDS = 240
MOST_COMMANDS = 6
"""That an operator runs until a route goes on."""


class Replicator:
    """``slug``: of the table; no two histories share one. ``batches``: how many micro-batches were delivered.

    ``pinned``: the version of the snapshot each route began with, -1 where it began with none. ``epochs``: the same of each of
    its epochs. ``replayed``: the versions that replays began at. ``audited_from``: up to there the audit table has lost
    changes, and its route was rebuilt by a resync. ``delivered``: the last micro-batches of each run, oldest first, by route.
    ``miscounted``: routes of a run whose counts do not add up. ``caught_up``: the version of the table that the last run has
    delivered, -1 if the run may have left out a change.
    """

    def __init__(
        self,
        table: Table,
        slug: str,
        folder: Path,
        elasticsearch: Elasticsearch | OpenSearch,
        cache: Redis,
        database: Postgres,
    ) -> None:
        self.table, self.slug, self.folder = table, slug, folder
        self.elasticsearch, self.cache, self.database = elasticsearch, cache, database
        self.batches = 0
        self.pinned: dict[str, int] = {}
        self.epochs: dict[str, dict[int, int]] = {}
        self.audited_from = -1
        self.replayed: list[int] = []
        self.delivered: dict[str, list[BatchStatus]] = defaultdict(list)
        self.miscounted: list[str] = []
        self.caught_up = -1
        self.settings = load(self._environ())
        self.state_path = RecordedStates.open(LocalPath(folder / "state"))
        if not table.shape.twins:
            recreate(table.spark, self.dimension, table.regions, doubled=False)

    def _environ(self) -> dict[str, str]:
        shape, slug, folder, elasticsearch, cache = (
            self.table.shape,
            self.slug,
            self.folder,
            self.elasticsearch,
            self.cache,
        )
        prefix = f"CDF_TABLES__{slug.upper()}__"
        environ = {
            "CDF_STATE_PATH": str(folder / "state"),
            "CDF_TRIGGER_SECONDS": "0.2",
            "CDF_DELIVERY__MAX_REMOVED_SHARE": "1",
            prefix + "PATH": self.table.path,
            prefix + "KEYS": ",".join(shape.keys),
            prefix + "SINKS": ",".join(self._sinks()),
            prefix + "MAX_FILES_PER_TRIGGER": str(shape.max_files),
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": str(folder / "audit"),
        }
        if shape.twins:
            return environ
        environ |= {
            "CDF_SINKS__SEARCH__TYPE": elasticsearch.name,
            "CDF_SINKS__SEARCH__HOSTS": elasticsearch.url,
            "CDF_SINKS__CACHE__TYPE": "redis",
            "CDF_SINKS__CACHE__URL": cache.url,
            "CDF_ROUTES__NARROW__TABLE": slug,
            "CDF_ROUTES__NARROW__SINK": "cache",
            "CDF_ROUTES__NARROW__FILTER": NARROW,
            "CDF_ROUTES__NARROW__COLUMNS": ",".join(NARROW_COLUMNS),
            "CDF_ROUTES__NARROW__ENRICH__REGIONS__PATH": str(self.dimension),
            "CDF_ROUTES__NARROW__ENRICH__REGIONS__ON": "region=code",
            "CDF_ROUTES__NARROW__ENRICH__REGIONS__COLUMNS": "label",
            "CDF_ROUTES__NARROW__RENAME": "amount=price",
            "CDF_ROUTES__NARROW__KEY_TEMPLATE": ":".join([f"narrow-{slug}", *(f"{{{key}}}" for key in shape.keys)]),
        }
        if shape.further == "none":
            environ |= {"CDF_SINKS__DB__TYPE": "postgres", "CDF_SINKS__DB__URL": self.database.url}
        else:
            environ |= {
                "CDF_SINKS__REPLICA__TYPE": "delta_replica",
                "CDF_SINKS__REPLICA__PATH": str(folder / "replica"),
                "CDF_SINKS__FEATURES__TYPE": "delta_features",
                "CDF_SINKS__FEATURES__PATH": str(folder / "features"),
            }
        if shape.further == "features":
            route = f"CDF_ROUTES__{slug.upper()}_FEATURES__"
            environ |= {route + "ENTITY": "region", route + "AGGREGATES": FEATURES}
        if shape.from_version is not None:
            environ[prefix + "STARTING_VERSION"] = str(shape.from_version)
        return environ

    def _sinks(self) -> tuple[str, ...]:
        shape = self.table.shape
        if shape.twins:
            return ("audit",)
        return (*SINKS, "db" if shape.further == "none" else shape.further)

    @property
    def routes(self) -> list[str]:
        return list(self.settings.routes)

    @property
    def audit(self) -> str:
        return f"{self.slug}_audit"

    def checkpoints(self) -> list[Path]:
        """Return the existing checkpoints of the routes' present generations."""
        states = [state for route in self.routes if (state := self.state_path.load(route))]
        folders = [self.state_path.checkpoint(state.route, state.generation) for state in states]
        return [folder for folder in map(Path, folders) if folder.exists()]

    @property
    def dimension(self) -> Path:
        return self.folder / "regions"

    @property
    def targets(self) -> dict[str, Entries | Folder | Index]:
        """Those that a copy may bring back, by route."""
        slug, spark = self.slug, self.table.spark
        kept = {
            f"{slug}_audit": Folder(spark, self.folder / "audit" / slug),
            f"{slug}_search": Index(self.elasticsearch, slug),
            f"{slug}_cache": Entries(self.cache, f"{slug}:"),
            "narrow": Entries(self.cache, f"narrow-{slug}:"),
            f"{slug}_replica": Folder(spark, self.folder / "replica" / slug),
        }
        return {route: kept[route] for route in self.routes if route in kept}

    def forget(self) -> None:
        """Remove the recorded content of the sinks before a resync of a recreated table."""
        self.pinned.clear()
        self.epochs.clear()
        self.replayed.clear()
        self.delivered.clear()
        self.audited_from = self.caught_up = -1

    def runners(self, stop: threading.Event, *, once: bool) -> tuple[dict[str, RouteRunner], StatusStore]:
        letters = DeadLetters(self.table.spark, self.state_path.dead_letters)
        board = StatusStore()
        for name, sink in self.settings.sinks.items():
            board.add_sink(name, sink.type, "")
        metrics = Metrics(board)
        factory = RouteFactory(self.table.spark, self.settings, self.state_path, letters, metrics, once, stop)
        return {name: factory.runner(route, None) for name, route in self.settings.routes.items()}, board

    def deliver(
        self, commands: Mapping[str, Sequence[command_queue.Command]] | None = None, moments: Moments | None = None
    ) -> dict[str, ErrorDecision]:
        """Run every route to the end, side by side; returns what stopped those that did not get there."""
        whole = moments is None
        moments = moments or Moments()
        runners, board = self.runners(moments.stop, once=True)
        for name, queued in (commands or {}).items():
            for request in queued:
                command_queue.enqueue(self.state_path.requests, request)
                command_queue.accept(self.state_path.requests, request)
                runners[name].submit(request)
        with moments.placed():
            for runner in runners.values():
                runner.start()
            for name, runner in runners.items():
                runner.join(PATIENCE_SECONDS)
                assert not runner.is_alive(), f"route {name} did not come to an end"
        routes = board.snapshot().routes
        self.batches += sum(len(route.batches) for route in routes)
        self.miscounted += unequal_sums(routes)
        for route in routes:
            self.delivered[route.route] += reversed(route.batches[: BATCHES_KEPT - 1])
        last = [state for name in runners if (state := self.state_path.load(name))]
        for state in (*self.state_path.followed(), *last):
            pinned = -1 if state.pinned_version is None else state.pinned_version
            self.pinned.setdefault(state.route, pinned)
            self.epochs.setdefault(state.route, {}).setdefault(state.epoch, pinned)
        failures = {name: runner.failure for name, runner in runners.items() if runner.failure}
        self.caught_up = self.table.version if whole and not failures else -1
        return failures

    def catch_up(self) -> dict[str, ErrorDecision]:
        """Deliver, if there may be something to deliver."""
        return {} if self.caught_up == self.table.version else self.deliver()

    def repaired(
        self, expected: Collection[str], decisions: dict[str, ErrorDecision] | None = None
    ) -> dict[str, ErrorDecision]:
        """Deliver; where a route halts for an expected reason, run the command that it names. Returns what is left.

        A run that gave up waiting for its target is followed by another.
        """
        decisions = self.deliver() if decisions is None else decisions
        for _ in range(MOST_COMMANDS):
            named = {
                name: [found]
                for name, decision in decisions.items()
                if decision.reason in expected and (found := _command(decision))
            }
            if not named and all(decision.action == "halt" for decision in decisions.values()):
                break
            decisions = self.deliver(named)
        return decisions

    def answered(self, request: command_queue.Command) -> str:
        progress = command_queue.read_status(self.state_path.requests, request.id)
        return "nothing" if progress is None else progress.state

    def verified(self, halted: Collection[str]) -> list[str]:
        """Return what ``verify`` finds of the other routes, to be compared with what the oracle finds by itself."""
        return verified(self.table.spark, self.settings, self.state_path, halted)

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
        table = self.table.sql("DESCRIBE DETAIL {t}").first()["id"]
        rows = frame.where(F.col("source_table_id") == table).drop(*own).collect()
        return [row.asDict(recursive=True) for row in rows]

    def replicated(self) -> list[Row]:
        frame = self.table.spark.read.format("delta").load(str(self.folder / "replica" / self.slug))
        return [row.asDict(recursive=True) for row in frame.drop("_cdf_key", "_cdf_guard").collect()]

    def table_rows(self) -> list[Row]:
        """Return the rows of the table in PostgreSQL."""
        return table_rows(self.database.url, self.slug)

    def features(self) -> dict[str, Row]:
        frame = self.table.spark.read.format("delta").load(str(self.folder / "features" / f"{self.slug}_features"))
        return {row["region"]: row.asDict() for row in frame.drop("_cdf_guard").collect()}

    def letters(self) -> int:
        if not Path(self.state_path.dead_letters).exists():
            return 0
        return self.table.spark.read.format("delta").load(str(self.state_path.dead_letters)).count()


def _command(decision: ErrorDecision) -> command_queue.Command | None:
    """The command that a halted route names."""
    found = re.search(r"cdf-replicator (replay|resync) (.*)", decision.remedy)
    if found is None:
        return None
    route, *options = shlex.split(found[2])
    return command_queue.Command(found[1], route, int(options[1]) if found[1] == "replay" else None)
