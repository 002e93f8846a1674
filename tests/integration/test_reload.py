"""A running service reloads its configuration: the routes that differ restart, and no other is interrupted."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest
import yaml

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.runtime.reload import Configuration, ReloadRequests, Selection
from cdf_replicator.runtime.reload.plan import NOTHING
from cdf_replicator.runtime.route_factory import RouteFactory
from cdf_replicator.runtime.route_pool import Heartbeat, RoutePool
from cdf_replicator.settings import load
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Command
from tests.support.waiting import until

EDITED, OTHER, LATER = "orders_files", "orders_other", "orders_later"
WITHIN = 60


@pytest.fixture
def service(world, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CDF_")]:
        monkeypatch.delenv(name)
    service = Service(world, monkeypatch)
    yield service
    world.trouble(None)
    service.stop()


class Service:
    """The main loop of the service in a thread, on the session of the tests. ``content`` is its YAML file."""

    def __init__(self, world, monkeypatch):
        self.world = world
        self.file = world.folder / "cdf.yaml"
        sinks = {}
        for name in ("files", "other", "later"):
            (world.folder / name).mkdir(exist_ok=True)
            sinks[name] = {"type": "picky", "path": str(world.folder / name)}
        orders = {"path": world.table, "keys": "id", "sinks": ["files", "other"]}
        self.content = {
            "state_path": world.environ["CDF_STATE_PATH"],
            "trigger_seconds": 0.2,
            "delivery": {"max_removed_share": 1},
            "tables": {"orders": orders},
            "sinks": sinks,
            "routes": {},
        }
        self.write()
        monkeypatch.setenv("CDF_CONFIG_FILE", str(self.file))
        self.code = "running"

    def start(self, once=False):
        settings = load()
        self.board, self.reloads, self.halt = StatusStore(), ReloadRequests(), threading.Event()
        self.metrics, self.state_path = Metrics(self.board), self.world.state_path
        given = self.world.spark, settings, self.state_path, self.world.letters, self.metrics, once, self.halt
        configuration = Configuration(settings, Selection(), self.board)
        self.pool = RoutePool(RouteFactory(*given), configuration, self.reloads, Heartbeat())
        self.thread = threading.Thread(target=self._run, name="main-loop")
        self.thread.start()

    def _run(self):
        self.code = self.pool.run()
        if self.code is None:
            self.pool.drain(time.monotonic())

    def stop(self):
        self.halt.set()
        self.thread.join(WITHIN)
        assert not self.thread.is_alive()

    def write(self):
        self.file.write_text(yaml.safe_dump(self.content))

    # What an operator does

    def submit(self, kind="reload", route="", **more):
        command = Command(kind, route, **more)
        command_queue.enqueue(self.state_path.requests, command)
        return command

    def answer(self, command):
        return command_queue.read_status(self.state_path.requests, command.id)

    def answered(self, command):
        until(lambda: self.answer(command) and self.answer(command).state != "running", WITHIN)
        return self.answer(command)

    def reload(self, **more):
        self.write()
        return self.answered(self.submit(**more))

    # What runs

    def routes(self):
        return {route.route: route for route in self.board.snapshot().routes}

    def wait_state(self, name, state):
        until(lambda: name in self.routes() and self.routes()[name].state == state, WITHIN, lambda: str(self.routes()))

    def running(self, name):
        """Return the thread of a route, and the run id of its query."""
        threads = [thread for thread in threading.enumerate() if thread.name == f"route-{name}"]
        return threads, [query.runId for query in self.world.spark.streams.active if query.name == name]

    def held(self, sink):
        entries = (json.loads(file.read_text()) for file in (self.world.folder / sink / "orders").glob("*.json"))
        return {entry["key"] for entry in entries if entry["row"] is not None}

    def wait_held(self, sink, *keys):
        until(lambda: self.held(sink) == set(keys), WITHIN, lambda: f"{sink} holds {self.held(sink)}")

    def series(self, name):
        """Return the number of series of a route."""
        samples = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return sum(sample.labels.get("route") == name for sample in samples)

    def reloads_counted(self):
        status = self.board.snapshot().service.reloads
        return status.succeeded, status.failed, status.successful


def test_reload_restarts_what_differs_and_interrupts_no_other_route(world, service):
    """One life of a service; what each step asserts is in its name."""
    world.create(rows=["(1, 'a')"])
    service.start()
    service.wait_held("files", "1")
    service.wait_held("other", "1")
    for name in (EDITED, OTHER):
        service.wait_state(name, "running")
    before = service.running(OTHER)
    assert [len(each) for each in before] == [1, 1]
    for step in (
        a_dry_run_changes_nothing,
        an_edited_filter_and_a_new_sink_while_a_batch_hangs,
        a_resync_makes_the_target_fit_the_filter,
        a_wrong_configuration_changes_nothing_and_names_every_problem,
        a_route_is_removed_and_keeps_its_state,
        a_route_that_returns_resumes_from_its_checkpoint,
        two_reloads_at_once_are_executed_one_after_the_other,
    ):
        step(world, service)
        assert service.running(OTHER) == before, step.__name__
    a_stop_wins_over_a_reload_that_waits(world, service)


def a_dry_run_changes_nothing(world, service):
    del world
    service.content["routes"] = {EDITED: {"filter": "id <> 2"}}
    before = service.running(EDITED)
    answer = service.reload(dry_run=True)
    assert answer.state == "done"
    afterwards = f"(then, if it has delivered: cdf-replicator resync {EDITED})"
    assert answer.message.splitlines() == [
        f"{EDITED}  restart  routes.{EDITED}.filter: not set -> id <> 2 {afterwards}",
        "Nothing was changed.",
    ]
    assert (service.running(EDITED), service.reloads_counted()) == (before, (0, 0, True))


def an_edited_filter_and_a_new_sink_while_a_batch_hangs(world, service):
    service.content["tables"]["orders"]["sinks"].append("later")
    former = service.running(EDITED)
    batches = len(service.routes()[OTHER].batches)
    world.trouble("hang")
    world.insert("(2, 'b')")
    service.wait_held("other", "1", "2")
    service.write()
    reload = service.submit()
    until(lambda: service.answer(reload), WITHIN)
    world.insert("(3, 'c')")
    service.wait_held("other", "1", "2", "3")
    until(lambda: len(service.routes()[OTHER].batches) >= batches + 2, WITHIN)
    assert service.answer(reload).state == "running", "the other route has delivered a batch during the reload"
    assert service.running(EDITED) == former
    service.wait_held("later", "1", "2", "3")  # a new route waits for no route of another target

    world.trouble(None)
    answer = service.answered(reload)
    assert answer.state == "done"
    assert [line.split()[:2] for line in answer.message.splitlines()] == [[EDITED, "restart"], [LATER, "start"]]
    assert service.running(EDITED)[0] != former[0]
    events = {(event.route, event.what) for event in service.board.snapshot().events if "reload" in event.what}
    assert {(LATER, "reload: start")} < events
    assert {route for route, _ in events} == {EDITED, LATER}
    settings = {each.path: each.value for each in service.board.snapshot().configuration}
    assert settings[f"routes.{EDITED}.filter"] == "id <> 2"


def a_resync_makes_the_target_fit_the_filter(world, service):
    del world
    service.wait_state(EDITED, "halted")
    assert "filter was None, is 'id <> 2'" in service.routes()[EDITED].reason
    assert service.answered(service.submit("resync", EDITED, max_removed_share=1.0)).state == "done"
    service.wait_held("files", "1", "3")


def a_wrong_configuration_changes_nothing_and_names_every_problem(world, service):
    del world
    right = yaml.safe_dump(service.content)
    before = {name: service.running(name) for name in service.routes()}
    service.content["sinks"]["files"]["type"] = "pikcy"
    service.content["trigger_seconds"] = -1
    service.content["routes"][LATER] = {"filtre": "id > 1"}
    del service.content["routes"][EDITED]
    answer = service.reload()
    assert (answer.state, answer.exit_code) == ("failed", 78)
    for variable in ("CDF_SINKS__FILES__TYPE", "CDF_TRIGGER_SECONDS", f"CDF_ROUTES__{LATER.upper()}__FILTRE"):
        assert variable in answer.message
    assert {name: service.running(name) for name in service.routes()} == before
    assert service.reloads_counted() == (1, 1, False)
    service.content = yaml.safe_load(right)


def a_route_is_removed_and_keeps_its_state(world, service):
    service.content["tables"]["orders"]["sinks"].remove("later")
    del service.content["sinks"]["later"]
    assert service.series(LATER) > 0
    answer = service.reload()
    assert (answer.message.split(), service.reloads_counted()) == ([LATER, "stop"], (2, 1, True))
    assert service.running(LATER) == ([], [])
    assert (LATER in service.routes(), service.series(LATER)) == (False, 0)
    assert {sink.sink for sink in service.board.snapshot().sinks} == {"files", "other"}
    assert world.state(LATER) is not None
    refused = service.answered(service.submit("pause", LATER))
    assert refused.message == f"this instance does not run route {LATER}"
    world.insert("(4, 'd')")
    service.wait_held("other", "1", "2", "3", "4")


def a_route_that_returns_resumes_from_its_checkpoint(world, service):
    service.content["sinks"]["later"] = {"type": "picky", "path": str(world.folder / "later")}
    service.content["tables"]["orders"]["sinks"].append("later")
    assert service.reload().message.split() == [LATER, "start"]
    service.wait_held("later", "1", "2", "3", "4")
    until(lambda: service.routes()[LATER].batches, WITHIN)
    assert [batch.versions for batch in service.routes()[LATER].batches] == [(4, 4)], "the commit that it has missed"


def two_reloads_at_once_are_executed_one_after_the_other(world, service):
    del world
    service.content["routes"][EDITED]["schema_changes"] = "ignore"
    service.write()
    first, second = service.submit(at=1.0), service.submit(at=2.0)
    assert f"routes.{EDITED}.schema_changes: add -> ignore" in service.answered(first).message
    assert service.answered(second).message == NOTHING
    assert service.reloads_counted() == (5, 1, True)
    service.wait_held("files", "1", "3", "4")


def a_stop_wins_over_a_reload_that_waits(world, service):
    service.wait_state(EDITED, "running")
    former = service.running(EDITED)
    world.trouble("hang")
    world.insert("(5, 'e')")
    service.wait_held("other", "1", "2", "3", "4", "5")
    service.content["routes"][EDITED]["schema_changes"] = "add"
    service.write()
    reload = service.submit()
    until(lambda: service.answer(reload), WITHIN)
    service.halt.set()
    until(lambda: service.code is None, WITHIN)
    assert service.running(EDITED)[0] == former[0]
    world.trouble(None)
    service.stop()
    assert service.held("files") == {"1", "3", "4", "5"}, "the running micro-batch is finished"
    assert command_queue.pending(service.state_path.requests) == [reload], "the next start answers it"


def test_route_whose_sink_hangs_delays_no_other_route(world, service):
    """Both routes restart. A reload of a sink that raises an error changes nothing."""
    world.create(rows=["(1, 'a')"])
    service.start()
    for name in (EDITED, OTHER):
        service.wait_state(name, "running")
    world.trouble("hang")
    world.insert("(2, 'b')")
    service.wait_held("other", "1", "2")
    former = {name: service.running(name)[0] for name in (EDITED, OTHER)}
    service.content["delivery"]["retry_seconds"] = 7
    service.write()
    reload = service.submit()
    until(lambda: OTHER in service.routes() and service.running(OTHER)[0] not in ([], former[OTHER]), WITHIN)
    world.insert("(3, 'c')")
    service.wait_held("other", "1", "2", "3")
    assert service.running(EDITED)[0] == former[EDITED]
    assert service.answer(reload).state == "running"
    paused = service.submit("pause", OTHER)
    assert service.answered(paused).state == "done", "the route that has restarted executes commands"
    world.trouble(None)
    assert service.answered(reload).state == "done"
    service.wait_held("files", "1", "2", "3")
    assert service.running(EDITED)[0] != former[EDITED]

    present = {name: service.running(name) for name in (EDITED, OTHER)}
    service.content["sinks"]["nameless"] = {"type": "nameless", "path": str(world.folder)}
    service.content["delivery"]["retry_seconds"] = 8
    answer = service.reload()
    assert (answer.state, answer.exit_code) == ("failed", 78)
    assert "CDF_SINKS__NAMELESS" in answer.message
    assert "it raised RuntimeError: the address is not known" in answer.message
    assert {name: service.running(name) for name in (EDITED, OTHER)} == present
    assert {sink.sink for sink in service.board.snapshot().sinks} == {"files", "other", "later"}


def test_reload_cancels_a_load_and_the_route_continues_it(world, service):
    """The load hangs for longer than the limit. A replay that the route executes is answered, as is a later command."""
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    world.trouble("hang")
    service.content["shutdown_seconds"] = 0.5
    service.content["tables"]["orders"]["sinks"] = ["files"]
    service.write()
    service.start()
    service.wait_state(EDITED, "bootstrapping")
    service.content["routes"][EDITED] = {"schema_changes": "ignore"}
    reload = service.reload()
    assert (reload.state, reload.message.split()[:2]) == ("done", [EDITED, "restart"])
    world.trouble(None)
    service.wait_held("files", "1", "2")
    service.wait_state(EDITED, "running")
    assert (world.state(EDITED).epoch, world.state(EDITED).phase) == (1, "streaming")

    world.trouble("hang")
    replay = service.submit("replay", EDITED, starting_version=0)
    until(lambda: world.state(EDITED).generation == 1, WITHIN)
    service.content["routes"][EDITED] = {"schema_changes": "fail"}
    service.write()
    former = service.running(EDITED)[0]
    reload = service.submit()
    until(service.pool._runners[EDITED]._inbox.ended.is_set, WITHIN)
    resync = service.submit("resync", EDITED)
    assert service.answered(reload).state == "done"
    assert service.running(EDITED)[0] != former
    stopped = service.answered(replay)
    assert (stopped.state, "a reload stopped the route" in stopped.message) == ("failed", True)
    world.trouble(None)
    assert service.answered(resync).state == "done", "a command that waited goes to the new thread"
    assert world.state(EDITED).epoch == 2
    service.wait_held("files", "1", "2")


def test_reload_cancels_a_comparison_which_begins_again_or_is_switched_off(world, service):
    """The comparison of an endless sink has no end."""
    viewed, closed = world.files / "viewed", world.files / "closed"

    world.create(rows=["(1, 'a')"])
    service.content["verify"] = {"every_hours": 24}
    service.content["sinks"]["files"]["type"] = "endless"
    service.content["tables"]["orders"]["sinks"] = ["files"]
    service.write()
    service.start()
    until(viewed.exists, WITHIN)
    viewed.unlink()
    service.content["routes"][EDITED] = {"schema_changes": "ignore"}
    assert service.reload().message.split()[:2] == [EDITED, "restart"]
    until(lambda: closed.exists() and viewed.exists(), WITHIN)
    viewed.unlink()
    closed.unlink()
    assert service.routes()[EDITED].verify_deadline is not None
    before = service.running(EDITED)
    del service.content["verify"]
    assert service.reload().message == "takes effect at once: verify.every_hours: 24.0 -> not set"
    until(closed.exists, WITHIN)
    assert not viewed.exists()
    assert service.routes()[EDITED].verify_deadline is None, "else an alert would report an overdue comparison"
    assert service.running(EDITED) == before
    assert not [event for event in service.board.snapshot().events if "verify failed" in event.what]


def test_run_once_refuses_a_reload(world, service):
    world.create(rows=["(1, 'a')"])
    world.trouble("hang")
    service.start(once=True)
    answer = service.reload()
    assert (answer.state, answer.message) == ("failed", "run --once reads its configuration at the start only")
    world.trouble(None)
    service.thread.join(WITHIN)
    assert service.code == 0


def test_run_once_leaves_a_command_of_another_route_in_the_queue(world, service):
    world.create(rows=["(1, 'a')"])
    command = Command("resync", LATER)
    command_queue.enqueue(world.state_path.requests, command)
    command_queue.accept(world.state_path.requests, command)
    service.start(once=True)
    service.thread.join(WITHIN)
    assert service.code == 0
    assert command_queue.pending(world.state_path.requests) == [command]
    assert service.answer(command) == command_queue.CommandStatus("running", "accepted")
