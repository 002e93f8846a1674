"""A service that follows tables into an audit table and servers, each behind a proxy; and what must be so at the end."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.settings import load
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from deploy.local.servers import Elasticsearch, Postgres, Redis
from tests.chaos.progress import is_inside_a_commit
from tests.chaos.proxy import Proxy
from tests.support.reading import documents, entries, folded, table, table_rows
from tests.support.service import Service, Status, environment
from tests.support.verified import verified

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

TABLES = ("orders", "items")
SINKS = ("audit", "search", "cache", "db")
REFUSED_TEXT = "a\0"
REFUSED_KEY = "concat('a', chr(0))"
"""A key of the map ``tags`` that Elasticsearch and PostgreSQL never accept (docs/types.md): the row becomes a dead letter. ``REFUSED_TEXT`` is its value."""
CAUGHT_UP_SECONDS = 300
NO_DISK_CHECKS = {"cluster.info.update.interval": "24h"}
"""Settings of Elasticsearch. By default it removes the block of a full disk within 30 s, from indices that a fault has blocked."""


@dataclass
class World:
    """``tables``: those that the service follows. ``injected``: faults by name. ``restarts``: of the service.

    ``kills``: for each kill of the service, the routes that it caught in the middle of a commit.
    """

    spark: SparkSession
    folder: Path
    elasticsearch: Elasticsearch
    redis: Redis
    postgres: Postgres
    search: Proxy
    cache: Proxy
    db: Proxy
    service: Service
    random: random.Random
    tables: Sequence[str] = TABLES
    injected: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    kills: list[list[str]] = field(default_factory=list)

    def path(self, name: str) -> Path:
        return self.folder / name

    def version(self, name: str) -> int:
        return max(int(file.stem) for file in (self.path(name) / "_delta_log").glob("*.json"))

    def begin(self) -> None:
        """Restart the service after a fault ended it, and count the restart."""
        self.service.stop()
        self.service.started()
        self.restarts += 1

    def routes_inside_a_commit(self) -> list[str]:
        """Name the routes that are in the middle of a commit which takes several micro-batches."""
        routes = self.folder / "state" / "routes"
        pairs = [(name, f"{name}_{sink}") for name in self.tables for sink in SINKS]
        return [route for name, route in pairs if is_inside_a_commit(routes / route, self.path(name))]

    def change(self) -> None:
        """Have some rows come, change and go, in one commit on each table."""
        for name in self.tables:
            t, first = f"delta.`{self.path(name)}`", self.version(name) * 1000
            self.spark.sql(
                f"MERGE INTO {t} t USING (SELECT id FROM {t} WHERE id % 5 = 0 OR id % 7 = 0 UNION "
                f"SELECT id FROM range({first}, {first + 50})) s ON t.id = s.id WHEN MATCHED AND s.id % 7 = 0 THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET amount = {first} WHEN NOT MATCHED THEN "
                "INSERT (id, name, amount, tags) VALUES (s.id, 'new', s.id, map('t', 1))"
            )

    def wait_caught_up(self, within: float = CAUGHT_UP_SECONDS) -> None:
        """Until every route has delivered the newest version of its table."""
        wanted = {(name, sink): self.version(name) for name in self.tables for sink in SINKS}

        def caught_up(status: Status) -> bool:
            at = {(route["table"], route["sink"]): route["delivered_version"] for route in status["routes"]}
            return all(at.get(route) is not None and at[route] >= version for route, version in wanted.items())

        self.service.wait(caught_up, within)

    def differences(self) -> list[str]:
        """Return the differences between sinks and source tables, and the changes that the audit table holds twice."""
        return [said for name in self.tables for said in self._differences(name)]

    def verified(self) -> list[str]:
        """Return the differences that ``verify`` finds."""
        return verified(self.spark, load(self.service.given), StateStore.open(LocalPath(self.folder / "state")))

    def _differences(self, name: str) -> Iterator[str]:
        everything = table(self.spark, self.path(name), ["id"])
        taken = {key: row for key, row in everything.items() if REFUSED_TEXT not in (row["tags"] or {})}
        shown: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "elasticsearch": (documents(self.elasticsearch.url, name), taken),
            "redis": (entries(self.redis.url, f"{name}:"), everything),
            "postgres": ({str(row["id"]): row for row in table_rows(self.postgres.url, name)}, taken),
            "audit": (folded(self.spark, self.folder / "audit" / name, ["id"]), everything),
        }
        for sink, (held, expected) in shown.items():
            for key in sorted(held.keys() | expected.keys()):
                if held.get(key) != expected.get(key):
                    yield f"{name} in {sink}, key {key}: {held.get(key)} instead of {expected.get(key)}"
        yield from self._audited(name)
        letters = self.letters(name)
        if letters != (absent := everything.keys() - taken.keys()):
            yield f"{name}: open dead letters of {sorted(letters)}, rows that servers refuse of {sorted(absent)}"

    def _audited(self, name: str) -> Iterator[str]:
        columns = ["id", "name", "amount", "CAST(tags AS string) AS tags"]
        read = self.spark.read.format("delta")
        kept = read.load(str(self.folder / "audit" / name)).where("change_type <> 'snapshot'")
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
        made = feed.load(str(self.path(name)))
        left = Counter(made.selectExpr(*columns, "_change_type AS kind", "_commit_version AS version").collect())
        right = Counter(kept.selectExpr(*columns, "change_type AS kind", "commit_version AS version").collect())
        for what, rows in (("missing in", left - right), ("too much in", right - left)):
            for row in islice(rows.elements(), 5):
                yield f"{name}: {what} the audit table: {row}"

    def letters(self, name: str) -> set[str]:
        folder = self.folder / "state" / "dead_letters"
        if not folder.exists():
            return set()
        letters = self.spark.read.format("delta").load(str(folder))
        found = letters.where((F.col("table") == name) & (F.col("state") == "open")).select("key").distinct()
        return {row["key"] for row in found.collect()}


@contextmanager
def world(
    spark: SparkSession,
    folder: Path,
    seed: int,
    tables: Sequence[str] = TABLES,
    command: type[Service] = Service,
    elasticsearch: Elasticsearch | None = None,
    **variables: object,
) -> Iterator[World]:
    """Start servers, make tables and run a service; all of it is gone afterwards, however the block ends.

    Args:
        spark: Writes the tables.
        folder: Of tables, audit tables and state.
        seed: Of ``World.random``.
        tables: Their names.
        command: Starts the service.
        elasticsearch: A running server without these indices; None starts one.
        variables: Further settings of the service.
    """
    with ExitStack() as stack:
        search = elasticsearch or stack.enter_context(Elasticsearch.start(settings=NO_DISK_CHECKS))
        cache, db = stack.enter_context(Redis.start()), stack.enter_context(Postgres.start())
        before_search, before_cache, before_db = (
            stack.enter_context(Proxy(server.port)) for server in (search, cache, db)
        )
        given = environment(
            folder,
            SINKS__AUDIT__TYPE="delta_audit",
            SINKS__AUDIT__PATH=folder / "audit",
            SINKS__SEARCH__TYPE="elasticsearch",
            SINKS__SEARCH__HOSTS=f"http://127.0.0.1:{before_search.port}",
            SINKS__SEARCH__REQUEST_TIMEOUT=3,
            SINKS__SEARCH__CHUNK_ROWS=100,
            SINKS__CACHE__TYPE="redis",
            SINKS__CACHE__URL=f"redis://127.0.0.1:{before_cache.port}/0",
            SINKS__CACHE__TIMEOUT_SECONDS=3,
            SINKS__CACHE__CHUNK_ROWS=100,
            SINKS__DB__TYPE="postgres",
            SINKS__DB__URL=db.url.replace(str(db.port), str(before_db.port)),
            SINKS__DB__TIMEOUT_SECONDS=3,
            SINKS__DB__CHUNK_ROWS=100,
            TRIGGER_SECONDS=0.2,
            DELIVERY__MAX_REJECTED_SHARE=1,
            SHUTDOWN_SECONDS=60,
            **{
                f"TABLES__{name.upper()}__{key}": value
                for name in tables
                for key, value in {
                    "PATH": folder / name,
                    "KEYS": "id",
                    "SINKS": ",".join(SINKS),
                    "INCLUDE_PREIMAGES": True,
                }.items()
            },
            **variables,
        )
        made = World(
            spark,
            folder,
            search,
            cache,
            db,
            before_search,
            before_cache,
            before_db,
            stack.enter_context(command(given)),
            random.Random(seed),
            tables,
        )
        for name in tables:
            spark.sql(
                f"CREATE TABLE delta.`{made.path(name)}` (id BIGINT, name STRING, amount BIGINT, tags MAP<STRING, INT>) "
                "USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
            )
        made.service.started()
        yield made
