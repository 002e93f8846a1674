"""Restore targets to their content at an earlier time, each by the means of its server."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
import redis

from connectors.delta import audit, merge
from connectors.delta.audit import DeltaAuditSink
from connectors.delta.replica import DeltaReplicaSink
from connectors.elasticsearch import ElasticsearchSink
from connectors.redis import RedisSink
from deploy.local.servers import Redis
from tests.support.index_marks import record_as_a_day_old
from tests.support.reading import documents
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    import pytest
    from typing_extensions import Self

    from connectors import Sink
    from tests.integration.conftest import World


class Target:
    """``sink``: the class that fills it. ``calls``: those of its methods that are steps."""

    sink: ClassVar[type[Sink]]
    calls: ClassVar[tuple[str, ...]] = (
        "prepare",
        "save_watermark",
        "lost_acknowledged_writes",
        "count_entries",
        "delete_orphans",
    )

    @classmethod
    @contextmanager
    def opened(cls, world: World, request: pytest.FixtureRequest) -> Iterator[Self]:
        raise NotImplementedError

    def emptied(self, run: int) -> Mapping[str, str]:
        """Begin again with nothing; returns what the sink is configured with."""
        raise NotImplementedError

    def remember(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def lose(self) -> None:
        """Go back to that copy."""
        raise NotImplementedError

    def held(self) -> dict[str, Any]:
        raise NotImplementedError


class Snapshots(Target):
    """Redis writes its memory to a file at intervals; after a crash it holds the content of that file."""

    sink = RedisSink
    config: ClassVar = {"appendonly": "no", "save": ""}

    def __init__(self, server: Redis) -> None:
        self.server = server

    @classmethod
    @contextmanager
    def opened(cls, world: World, request: pytest.FixtureRequest) -> Iterator[Self]:
        with Redis.start(config=cls.config) as server:
            yield cls(server)

    def emptied(self, run: int) -> Mapping[str, str]:
        with redis.Redis.from_url(self.server.url) as client:
            client.flushall()
        return {"CDF_SINKS__COPY__TYPE": "redis", "CDF_SINKS__COPY__URL": self.server.url}

    def remember(self) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.save()
        self.copy = (self.server.home / "dump.rdb").read_bytes()

    def lose(self) -> None:
        self.server.kill()
        (self.server.home / "dump.rdb").write_bytes(self.copy)
        self.server.restart()

    def held(self) -> dict[str, Any]:
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            return {key.removeprefix("orders:"): json.loads(client.get(key)) for key in client.scan_iter("orders:*")}


class CutLog(Snapshots):
    """Redis appends each write to a file, of which a crash takes the end."""

    config: ClassVar = {"appendonly": "yes", "save": "", "appendfsync": "always"}

    def remember(self) -> None:
        self.length = self._log().stat().st_size

    def lose(self) -> None:
        self.server.kill()
        with self._log().open("ab") as log:
            log.truncate(self.length)
        self.server.restart()

    def _log(self) -> Path:
        return max(self.server.home.rglob("appendonly*.aof"), key=lambda file: file.stat().st_size)


class FailOver(Snapshots):
    """A replica that lags behind takes over; then the first server follows it, and is promoted again: the same process."""

    config: ClassVar = {"appendonly": "no", "save": "", "repl-diskless-sync": "no"}

    @classmethod
    @contextmanager
    def opened(cls, world: World, request: pytest.FixtureRequest) -> Iterator[Self]:
        with Redis.start(config=cls.config) as other, super().opened(world, request) as target:
            target.other = other
            yield target

    def remember(self) -> None:
        with redis.Redis.from_url(self.server.url) as client, redis.Redis.from_url(self.other.url) as lagging:
            lagging.flushall()
            for key in client.scan_iter(count=1000):
                lagging.restore(key, max(client.pttl(key), 0), client.dump(key))

    def lose(self) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.replicaof("127.0.0.1", self.other.port)
            until(lambda: client.info("replication")["master_link_status"] == "up")
            client.replicaof("NO", "ONE")


class RestoredIndex(Target):
    """An index is deleted, and restored from a snapshot."""

    sink = ElasticsearchSink
    repository = "/_snapshot/lost"

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.copies = client, 0

    @classmethod
    @contextmanager
    def opened(cls, world: World, request: pytest.FixtureRequest) -> Iterator[Self]:
        url = request.getfixturevalue("elasticsearch").url
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            target = cls(client)
            target._request("PUT", cls.repository, {"type": "fs", "settings": {"location": "lost"}})
            yield target
            target._request("DELETE", f"{cls.repository}/*")
            target._request("DELETE", cls.repository)

    def emptied(self, run: int) -> Mapping[str, str]:
        self._delete()
        return {
            "CDF_SINKS__COPY__TYPE": "elasticsearch",
            "CDF_SINKS__COPY__HOSTS": str(self.client.base_url).rstrip("/"),
        }

    def remember(self) -> None:
        self.copies += 1
        self.there = self.client.head("/orders").is_success
        if self.there:
            record_as_a_day_old(str(self.client.base_url).rstrip("/"), "orders")
            self._request(
                "PUT", f"{self._copy}?wait_for_completion=true", {"indices": "orders", "include_global_state": False}
            )

    def lose(self) -> None:
        self._delete()
        if self.there:
            self._request("POST", f"{self._copy}/_restore?wait_for_completion=true", {"indices": "orders"})

    def held(self) -> dict[str, Any]:
        return documents(str(self.client.base_url).rstrip("/"), "orders")

    @property
    def _copy(self) -> str:
        return f"{self.repository}/{self.copies}"

    def _delete(self) -> None:
        self.client.delete("/orders?ignore_unavailable=true").raise_for_status()

    def _request(self, method: str, path: str, body: Any = None) -> None:
        self.client.request(method, path, json=body).raise_for_status()


class RestoredTable(Target):
    """RESTORE brings a Delta table back to an older version."""

    calls = ("prepare", "write", "save_watermark", "count_entries", "delete_orphans")
    type: ClassVar[str]
    commits: ClassVar[tuple[ModuleType, str]]
    """The function that commits a micro-batch, once the commits before it have been checked."""

    def __init__(self, world: World) -> None:
        self.world, self.path = world, ""

    @classmethod
    @contextmanager
    def opened(cls, world: World, request: pytest.FixtureRequest) -> Iterator[Self]:
        yield cls(world)

    def emptied(self, run: int) -> Mapping[str, str]:
        folder = self.world.folder / f"copy-{run}"
        self.path = str(folder / "orders")
        return {"CDF_SINKS__COPY__TYPE": self.type, "CDF_SINKS__COPY__PATH": str(folder)}

    def remember(self) -> None:
        self.version = self.newest()

    def lose(self) -> None:
        if self.version not in (None, self.newest()):
            self.world.spark.sql(f"RESTORE delta.`{self.path}` TO VERSION AS OF {self.version}")

    def newest(self) -> int | None:
        return max((int(file.stem) for file in Path(self.path, "_delta_log").glob("[0-9]*.json")), default=None)


class RestoredReplica(RestoredTable):
    sink, type, commits = DeltaReplicaSink, "delta_replica", (merge, "_merging")

    def held(self) -> dict[str, Any]:
        rows = self.world._rows(self.path, ("id", "name"))
        assert len({id_ for id_, _ in rows}) == len(rows)
        return {str(id_): {"id": id_, "name": name} for id_, name in rows}


class RestoredAudit(RestoredTable):
    sink, type, commits = DeltaAuditSink, "delta_audit", (audit, "_append")
    calls = ("prepare", "write", "save_watermark")

    def held(self) -> dict[str, Any]:
        """Fold the changes since the newest snapshot; fail if a change is there twice."""
        rows = self.world._rows(self.path, ("commit_version", "change_type", "id", "name"))
        changes = [(version, kind != "delete", id_, kind, name) for version, kind, id_, name in rows]
        assert len(set(changes)) == len(changes)
        pinned = max(version for version, _, _, kind, _ in changes if kind == "snapshot")
        newest = {
            id_: (there, name)
            for version, there, id_, _, name in sorted(changes, key=lambda c: c[:3])
            if version >= pinned
        }
        return {str(id_): {"id": id_, "name": name} for id_, (there, name) in newest.items() if there}
