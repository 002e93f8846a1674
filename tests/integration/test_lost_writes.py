"""A target loses what it acknowledged, at each step of a bootstrap, a batch, a mark and a resync: nothing stays missing.

A step is a call by which the driver reads or writes the target or the state path. A run of the history without a fault counts
them; then the history runs again for each of them, or for a sample, and the target goes back to what it held at an earlier
step, which a seeded draw chooses. Afterwards the route goes on as an operator has it: it starts again, and a halt is answered
with the command that it names.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import redis

from cdf_replicator import batch
from cdf_replicator.requests import Request
from cdf_replicator.state import StatePath
from connectors.redis import RedisSink
from deploy.servers import Redis
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEED = 7
MOST_RUNS = 8
ROUTE = "orders_cache"


@pytest.fixture
def every_step(pytestconfig) -> bool:
    return bool(pytestconfig.getoption("every_step"))


class Steps:
    """Counts the steps of a history, and acts before some of them."""

    def __init__(self) -> None:
        self.begin({})

    def begin(self, plan: dict[int, Callable[[], None]]) -> None:
        self.reached, self.plan, self.names = 0, dict(plan), []

    def before(self, monkeypatch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
        for name in names:
            monkeypatch.setattr(owner, name, self._stepped(getattr(owner, name), name))

    def _stepped(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def stepped(*arguments: Any, **named: Any) -> Any:
            self.reached += 1
            self.names.append(name)
            self.plan.pop(self.reached, lambda: None)()
            return call(*arguments, **named)

        return stepped


@pytest.fixture
def steps(monkeypatch):
    steps = Steps()
    steps.before(monkeypatch, RedisSink, "prepare", "mark", "kept", "count", "sweep")
    steps.before(monkeypatch, StatePath, "save")
    steps.before(monkeypatch, batch, "deliver")
    return steps


class Snapshots:
    """Redis writes its memory to a file now and then; after a crash it holds what the file says."""

    config: ClassVar = {"appendonly": "no", "save": ""}

    def __init__(self, server: Redis) -> None:
        self.server = server
        self.file = server.home / "dump.rdb"

    def remember(self) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.save()
        self.held = self.file.read_bytes()

    def lose(self) -> None:
        self.server.kill()
        self.file.write_bytes(self.held)
        self.server.restart()

    def close(self) -> None:
        pass


class CutLog(Snapshots):
    """Redis appends each write to a file, of which a crash takes the end."""

    config: ClassVar = {"appendonly": "yes", "save": "", "appendfsync": "always"}

    def __init__(self, server: Redis) -> None:
        self.server = server

    def remember(self) -> None:
        self.held = self._log().stat().st_size

    def lose(self) -> None:
        self.server.kill()
        with self._log().open("ab") as log:
            log.truncate(self.held)
        self.server.restart()

    def _log(self) -> Path:
        return max(self.server.home.rglob("appendonly*.aof"), key=lambda file: file.stat().st_size)


class FailOver(Snapshots):
    """A replica that lags behind takes over; then the first server follows it, and is promoted again: the same process."""

    config: ClassVar = {"appendonly": "no", "save": "", "repl-diskless-sync": "no"}

    def __init__(self, server: Redis) -> None:
        self.server, self.replica = server, Redis.start(config=self.config)

    def remember(self) -> None:
        with redis.Redis.from_url(self.server.url) as client, redis.Redis.from_url(self.replica.url) as lagging:
            lagging.flushall()
            for key in client.scan_iter(count=1000):
                lagging.restore(key, max(client.pttl(key), 0), client.dump(key))

    def lose(self) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.replicaof("127.0.0.1", self.replica.port)
            until(lambda: client.info("replication")["master_link_status"] == "up")
            client.replicaof("NO", "ONE")

    def close(self) -> None:
        self.replica.close()


class History:
    """Bootstrap, a commit that takes several micro-batches, a resync; each time of the same table, under a new state path."""

    def __init__(self, world, server: Redis, steps: Steps) -> None:
        self.world, self.server, self.steps, self.runs = world, server, steps, 0
        world.environ |= {
            "CDF_TABLES__ORDERS__SINKS": "cache",
            "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "1",
            "CDF_SINKS__CACHE__TYPE": "redis",
            "CDF_SINKS__CACHE__URL": server.url,
        }
        del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
        world.create(rows=[f"({number}, 'a')" for number in range(20)])

    def run(self, plan: dict[int, Callable[[], None]]) -> None:
        """Stop after the part in which the plan comes to its end, and compare key by key."""
        self.runs += 1
        self.world.environ["CDF_STATE_PATH"] = str(self.world.folder / f"state-{self.runs}")
        with redis.Redis.from_url(self.server.url) as client:
            client.flushall()
        self.steps.begin(plan)
        for part in (self.bootstrap, self.follow, self.resync):
            part()
            if plan and not self.steps.plan:
                break
        self.go_on()
        assert self.held() == self.world.expected(), f"lost at {self.steps.names[: max(plan, default=0)]}"

    def bootstrap(self) -> None:
        self.go_on()

    def follow(self) -> None:
        first = self.runs * 100
        rows = self.world.spark.range(first, first + 3, 1, 3).selectExpr("id", "'b' AS name")
        rows.write.format("delta").mode("append").save(self.world.table)
        self.world.sql(f"DELETE FROM {{t}} WHERE id = {first - 100}")
        self.go_on()

    def resync(self) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.set("orders:5000", '{"id": 5000, "name": "theirs"}')
        self.go_on(Request("resync", ROUTE))

    def go_on(self, ask: Request | None = None) -> None:
        for _ in range(MOST_RUNS):
            verdict = self.world.run(ROUTE, ask=ask)
            if verdict is None:
                return
            ask = told(verdict.next_step) if verdict.action == "halt" else None
        raise AssertionError(verdict)

    def held(self) -> dict[str, Any]:
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            return {key.removeprefix("orders:"): json.loads(client.get(key)) for key in client.scan_iter("orders:*")}


def told(next_step: str) -> Request:
    """The command that a halted route names."""
    found = re.search(r"cdf-replicator (.*)", next_step)
    assert found, next_step
    kind, route, *options = shlex.split(found[1])
    version = int(options[1]) if options else None
    return Request(kind, route, version)


@pytest.mark.parametrize("losing", [Snapshots, CutLog, FailOver])
def test_redis_loses_writes_at_any_step(world, steps, losing, every_step):
    with Redis.start(config=losing.config) as server:
        loss, history, draw = losing(server), History(world, server, steps), random.Random(SEED)
        history.run({})
        last = steps.reached
        assert last > 30, "the history has all its parts"
        stride = 1 if every_step else 11
        for at in range(draw.randrange(2, 2 + stride), last + 1, stride):
            history.run({draw.randrange(1, at): loss.remember, at: loss.lose})
        loss.close()
