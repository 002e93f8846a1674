"""Tests of targets that lose acknowledged writes at each step of a bootstrap, a batch, a watermark and a resync: no row stays missing.

A step is a call by which the driver reads or writes the target or the state path. A run of the history without a fault counts
them; then the history runs again for each of them, or for a sample, and the target goes back to what it held at an earlier
step, which a seeded draw chooses. Afterwards the route goes on as an operator has it: it starts again, and a halt is answered
with the command that it names.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
import redis
from structlog.testing import capture_logs

from cdf_replicator.pipeline import batch_writer
from cdf_replicator.source import continuity
from cdf_replicator.state.command_queue import Command
from cdf_replicator.state.store import StateStore
from connectors import PermanentError
from connectors.delta import merge
from connectors.delta.tables import table
from deploy.local.servers import Redis
from tests.chaos.proxy import Proxy
from tests.integration.losing import (
    CutLog,
    FailOver,
    RestoredIndex,
    RestoredReplica,
    RestoredTable,
    Snapshots,
    Target,
)
from tests.support.tiers import nightly
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import World

SEED = 7
MOST_RUNS = 8
FEWEST_STEPS = 20
SAMPLE = 3
"""Steps of each target in CI."""


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


class History:
    """Bootstrap, a commit that takes several micro-batches, a resync; each time of the same table, under a new state path."""

    def __init__(self, world: World, target: Target, steps: Steps) -> None:
        self.world, self.target, self.steps, self.runs = world, target, steps, 0
        del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
        world.environ |= {"CDF_TABLES__ORDERS__SINKS": "copy", "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "1"}
        world.create(rows=[f"({number}, 'a')" for number in range(20)])

    def run(self, plan: dict[int, Callable[[], None]]) -> None:
        """Stop after the part in which the plan comes to its end, and compare key by key."""
        self.runs += 1
        self.world.environ["CDF_STATE_PATH"] = str(self.world.folder / f"state-{self.runs}")
        self.world.environ |= self.target.emptied(self.runs)
        self.steps.begin(plan)
        for part in (self.bootstrap, self.follow, self.resync):
            part()
            if plan and not self.steps.plan:
                break
        self.go_on()
        assert self.target.held() == self.world.expected(), f"lost before the last of {self.steps.names}, plan {plan}"

    def bootstrap(self) -> None:
        self.go_on()

    def follow(self) -> None:
        first = self.runs * 100
        self.world.insert(*(f"({number}, 'b')" for number in range(first, first + 3)))
        self.world.change(f"DELETE FROM {{t}} WHERE id = {first - 100}")
        self.go_on()

    def resync(self) -> None:
        self.go_on(Command("resync", "orders_copy"))

    def go_on(self, command: Command | None = None) -> None:
        for _ in range(MOST_RUNS):
            decision = self.world.run("orders_copy", command=command)
            if decision is None:
                return
            command = command_in(decision.remedy) if decision.action == "halt" else None
        raise AssertionError(decision)


def command_in(next_step: str) -> Command:
    """The command that a halted route names."""
    found = re.search(r"cdf-replicator (\w+) (\w+)(?: --starting-version (\d+))?", next_step)
    assert found, next_step
    kind, route, version = found.groups()
    return Command(kind, route, None if version is None else int(version))


@pytest.mark.parametrize("kind", [Snapshots, nightly(CutLog), FailOver, RestoredIndex, *RestoredTable.__subclasses__()])
def test_writes_lost_at_any_step_are_delivered_again(world, kind, request, monkeypatch, pytestconfig):
    steps, draw = Steps(), random.Random(SEED)
    steps.before(monkeypatch, StateStore, "save")
    steps.before(monkeypatch, batch_writer, "deliver")
    with kind.opened(world, request) as target:
        steps.before(monkeypatch, target.sink, *target.calls)
        history = History(world, target, steps)
        history.run({})
        last = steps.reached
        assert last >= FEWEST_STEPS, "the history has all its parts"
        stride = 1 if pytestconfig.getoption("every_step") else last // SAMPLE
        for at in range(last - stride * ((last - 2) // stride), last + 1, stride):
            history.run({draw.randrange(1, at): target.remember, at: target.lose})


def test_new_run_writes_to_the_server_that_replaced_the_master(world):
    """The address leads to another server, and the connections to the former master stay open."""
    with (
        Redis.start(config=Snapshots.config) as former,
        Redis.start(config={**Snapshots.config, "repl-diskless-sync-delay": "0"}) as promoted,
        Proxy(former.port) as address,
        redis.Redis.from_url(promoted.url) as client,
    ):
        del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
        url = f"redis://127.0.0.1:{address.port}/0"
        world.environ |= {"CDF_SINKS__COPY__TYPE": "redis", "CDF_SINKS__COPY__URL": url}
        world.environ["CDF_TABLES__ORDERS__SINKS"] = "copy"
        world.create(rows=["(1, 'a')"])
        assert world.run("orders_copy") is None
        client.replicaof("127.0.0.1", former.port)
        until(lambda: client.info("replication").get("master_link_status") == "up")
        client.replicaof("NO", "ONE")
        address.upstream = promoted.port
        world.insert("(2, 'b')")
        assert world.run("orders_copy") is None
        assert Snapshots(promoted).held() == world.expected()


def test_lost_redrive_opens_its_dead_letter_again(world, request, monkeypatch):
    """The change that was refused is older than what is delivered again. A redrive before the copy is not lost."""
    monkeypatch.setattr(continuity, "DRIVER_CLOCK_SECONDS", 0.0)
    limit = "CDF_SINKS__COPY__MAX_VALUE_BYTES"
    with Snapshots.opened(world, request) as target:
        del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
        world.environ |= {"CDF_TABLES__ORDERS__SINKS": "copy", limit: "1000", **target.emptied(1)}
        world.create(rows=["(1, 'a')"])
        assert world.run("orders_copy") is None
        for key in (2, 3):
            world.insert(f"({key}, '{'x' * 2000}')")
            assert world.run("orders_copy") is None
        letters = {key: letter for letter, key in world.dead_letters("id", "key")}
        del world.environ[limit]
        assert world.run("orders_copy", command=Command("redrive", "orders_copy", letters=(letters["2"],))) is None
        world.insert("(4, 'd')")
        assert world.run("orders_copy") is None
        target.remember()
        assert world.run("orders_copy", command=Command("redrive", "orders_copy", letters=(letters["3"],))) is None
        assert target.held() == world.expected()
        world.insert("(5, 'e')")
        assert world.run("orders_copy") is None
        target.lose()

        with capture_logs() as lines:
            assert world.run("orders_copy") is None
        (warning,) = [line for line in lines if line["event"].endswith("delivering again")]
        assert world.dead_letters("key", "state") == [("2", "redriven"), ("3", "open")]
        assert set(target.held()) == {"1", "2", "4", "5"}
        assert warning["dead_letters_opened_again"] == 1
        assert "verify orders_copy --repair" in warning["next_step"]
        assert world.run("orders_copy", command=Command("redrive", "orders_copy")) is None
        assert target.held() == world.expected()


@pytest.mark.parametrize("kind", RestoredTable.__subclasses__())
def test_restore_between_the_check_and_the_commit_is_detected(world, kind, request, monkeypatch):
    steps = Steps()
    steps.before(monkeypatch, *kind.commits)
    with kind.opened(world, request) as target:
        history = bootstrapped(world, target, steps)
        target.remember()
        steps.begin({2: target.lose})
        history.follow()
        assert not steps.plan
        assert target.held() == world.expected()


@pytest.mark.parametrize("kind", ["redrive", nightly("repair")])
def test_restore_between_the_check_and_the_commit_of_a_request_is_detected(world, kind, request, monkeypatch):
    steps = Steps()
    steps.before(monkeypatch, *RestoredReplica.commits)
    with RestoredReplica.opened(world, request) as target:
        command = requested(world, target, steps, kind)
        steps.begin({1: target.lose})
        assert world.run("orders_copy", command=command) is None
        assert not steps.plan
        assert target.held() == world.expected()
        assert world.answer(command).state == "done"
        assert {state for (state,) in world.dead_letters("state")} <= {"redriven"}


def test_restore_before_a_request_that_a_crash_ends_is_detected(world, request, monkeypatch):
    """The crash follows the commit, before the request checks the table again."""
    steps, merged = Steps(), merge.merge

    def crash(*given: Any, **named: Any) -> None:
        merged(*given, **named)
        raise PermanentError("crashed", "start again")

    steps.before(monkeypatch, *RestoredReplica.commits)
    with RestoredReplica.opened(world, request) as target:
        command = requested(world, target, steps, "repair")
        steps.begin({1: target.lose})
        with monkeypatch.context() as crashing:
            crashing.setattr(merge, "merge", crash)
            world.run("orders_copy", command=command)
        assert world.run("orders_copy") is None
        assert target.held() == world.expected()


def test_write_and_watermark_read_a_commit_of_the_target_once(world, request, monkeypatch):
    with RestoredReplica.opened(world, request) as target:
        history = bootstrapped(world, target, Steps())
        before, read, text = target.newest(), [], table.commit_text
        monkeypatch.setattr(table, "commit_text", lambda path, version: read.append(version) or text(path, version))
        history.follow()
        assert sorted(read) == list(range(before, target.newest() + 1)), (
            "the first by the claim, each batch by its mark"
        )


def bootstrapped(world: World, target: RestoredTable, steps: Steps) -> History:
    history = History(world, target, steps)
    history.runs = 1
    world.environ |= target.emptied(history.runs)
    history.bootstrap()
    return history


def requested(world: World, target: RestoredTable, steps: Steps, kind: str) -> Command:
    """Keep a copy, deliver two commits, and return a command that writes present rows. Before the copy lies a dead letter."""
    history = bootstrapped(world, target, steps)
    if kind == "redrive":
        world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "100"
        world.insert("(50, 'a')", "(50, 'twice')")
        history.go_on()
        world.change("DELETE FROM {t} WHERE name = 'twice'")
        world.insert("(51, 'a')")
        history.go_on()
        assert set(world.dead_letters("key", "state")) == {("50", "open")}
    target.remember()
    history.follow()
    assert target.held().keys() >= {"100", "101"}
    return Command(kind, "orders_copy", identities=("100",) if kind == "repair" else ())
