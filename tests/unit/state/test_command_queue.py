"""Commands to the lease holder are stored, accepted and answered."""

from __future__ import annotations

import os
from types import SimpleNamespace

from cdf_replicator.runtime.command_dispatcher import CommandDispatcher
from cdf_replicator.runtime.reload import ReloadRequests
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Command, CommandStatus
from cdf_replicator.state.store import StateStore

MALFORMED = {
    "cut": "{",
    "newer": '{"kind": "replay", "route": "a", "wholly": "new"}',
    "list": "[1]",
    "number": '{"kind": "replay", "route": "orders", "at": null}',
    "route": '{"kind": "replay", "route": []}',
    "kind": '{"kind": "rebuild", "route": "orders"}',
    "deep": "[" * 100_000,
    "bytes": "\x00\x01",
}


def test_request_arrives_unchanged(tmp_path):
    commands = [
        Command("replay", "orders_audit", 3, 9, at=1000.1),
        Command("replay", "orders_cache", 0, at=1000.2),
        Command("resync", "orders_search", at=1000.3),
    ]
    for request in reversed(commands):
        command_queue.enqueue(tmp_path / "requests", request)
    assert command_queue.pending(tmp_path / "requests") == commands, "oldest first"


def test_no_request_is_pending_without_the_folder(tmp_path):
    assert command_queue.pending(tmp_path / "requests") == []


def test_command_has_no_status_until_accepted(tmp_path):
    request = Command("resync", "orders_search")
    command_queue.enqueue(tmp_path, request)
    assert command_queue.read_status(tmp_path, request.id) is None
    command_queue.accept(tmp_path, request)
    assert command_queue.read_status(tmp_path, request.id) == CommandStatus("running", "accepted")
    assert command_queue.pending(tmp_path) == [request], "a restart finds it"
    command_queue.complete(tmp_path, request.id)
    assert command_queue.pending(tmp_path) == []


def test_invalid_request_is_answered_and_does_not_block_others(tmp_path):
    request = Command("resync", "orders_search")
    command_queue.enqueue(tmp_path, request)
    for name, text in MALFORMED.items():
        (tmp_path / f"{name}.request.json").write_text(text)
    (tmp_path / "latin.request.json").write_bytes(b'{"kind": "\xe9"}')
    (tmp_path / "folder.request.json").mkdir()
    assert command_queue.pending(tmp_path) == [request]
    for name in (*MALFORMED, "latin"):
        assert command_queue.read_status(tmp_path, name).state == "failed"
    assert command_queue.pending(tmp_path) == [request]


def test_command_id_is_the_file_name(tmp_path):
    (tmp_path / "a.request.json").write_text('{"kind": "resync", "route": "r", "id": "../../elsewhere"}')
    assert [request.id for request in command_queue.pending(tmp_path)] == ["a"]


def test_malformed_request_does_not_block_requests_of_other_routes(tmp_path):
    given, state_path = [], StateStore.open(tmp_path)
    reception = CommandDispatcher({"orders": SimpleNamespace(submit=given.append)}, state_path, ReloadRequests())
    for name, text in MALFORMED.items():
        state_path.requests.mkdir(exist_ok=True)
        (state_path.requests / f"{name}.request.json").write_text(text)
    request = Command("resync", "orders")
    command_queue.enqueue(state_path.requests, request)
    reception.poll()
    assert given == [request]
    assert command_queue.read_status(state_path.requests, "number").state == "failed"


def test_command_that_a_stopped_route_did_not_execute_is_dispatched_again(tmp_path):
    given, state_path = {"old": [], "new": []}, StateStore.open(tmp_path)
    runners = {"orders": SimpleNamespace(submit=given["old"].append)}
    dispatcher = CommandDispatcher(runners, state_path, ReloadRequests())
    request = Command("resync", "orders")
    command_queue.enqueue(state_path.requests, request)
    dispatcher.poll()
    dispatcher.poll()
    runners["orders"] = SimpleNamespace(submit=given["new"].append)
    dispatcher.poll()
    dispatcher.poll()
    assert given == {"old": [request], "new": [request]}
    del runners["orders"]
    dispatcher.poll()
    answer = command_queue.read_status(state_path.requests, request.id)
    assert answer == CommandStatus("failed", "this instance does not run route orders")
    assert command_queue.pending(state_path.requests) == []


def test_run_once_leaves_commands_of_other_routes_in_the_queue(tmp_path):
    given, state_path = [], StateStore.open(tmp_path)
    accepted, waiting, own = Command("resync", "a", at=1.0), Command("replay", "a", 1, at=2.0), Command("resync", "b")
    for request in (accepted, waiting, own):
        command_queue.enqueue(state_path.requests, request)
    command_queue.accept(state_path.requests, accepted)
    runners = {"b": SimpleNamespace(submit=given.append)}
    CommandDispatcher(runners, state_path, ReloadRequests(), once=True).poll()
    assert given == [own]
    assert command_queue.pending(state_path.requests) == [accepted, waiting, own]
    assert command_queue.read_status(state_path.requests, accepted.id) == CommandStatus("running", "accepted")
    assert command_queue.read_status(state_path.requests, waiting.id) is None


def test_reload_goes_to_the_main_loop_and_its_answer_is_written(tmp_path):
    state_path, reloads = StateStore.open(tmp_path), ReloadRequests()
    dispatcher = CommandDispatcher({}, state_path, reloads)
    by_signal, queued, later = Command("reload"), Command("reload", dry_run=True, at=1.0), Command("reload", at=2.0)
    reloads.submit(by_signal)
    for request in (queued, later):
        command_queue.enqueue(state_path.requests, request)
    dispatcher.poll()
    assert [reloads.take() for _ in range(4)] == [by_signal, queued, later, None]
    wrong = CommandStatus("failed", "2 problems", exit_code=78)
    for command, answer in ((by_signal, wrong), (queued, wrong)):
        reloads.answers.append((command, answer))
    dispatcher.poll()
    assert command_queue.read_status(state_path.requests, queued.id) == wrong
    assert command_queue.read_status(state_path.requests, by_signal.id) is None
    assert command_queue.pending(state_path.requests) == [later], "a stop leaves it to the next start"
    assert reloads.take() is None


def test_dispatcher_forgets_commands_that_left_the_queue(tmp_path, monkeypatch):
    given, state_path = [], StateStore.open(tmp_path)
    dispatcher = CommandDispatcher({"orders": SimpleNamespace(submit=given.append)}, state_path, ReloadRequests())
    request = Command("resync", "orders")
    command_queue.enqueue(state_path.requests, request)
    dispatcher.poll()
    with monkeypatch.context() as unreadable:
        unreadable.setattr(command_queue, "pending", lambda folder: [])
        dispatcher.poll()
    dispatcher.poll()
    assert given == [request], "a file that was unreadable for a moment is not dispatched again"
    command_queue.complete(state_path.requests, request.id)
    dispatcher.poll()
    assert dispatcher._given == {}


def test_request_of_an_earlier_process_is_answered(tmp_path):
    state_path = StateStore.open(tmp_path)
    begun, waiting, done = (Command("replay", "orders", 1) for _ in range(3))
    for request in (begun, waiting, done):
        command_queue.enqueue(state_path.requests, request)
        command_queue.accept(state_path.requests, request)
    for request in (begun, done):
        command_queue.complete(state_path.requests, request.id)
    command_queue.write_status(state_path.requests, done.id, CommandStatus("done", "all of it", 1.0))
    given = []
    CommandDispatcher({"orders": SimpleNamespace(submit=given.append)}, state_path, ReloadRequests()).poll()
    assert command_queue.read_status(state_path.requests, begun.id).state == "failed"
    assert "started again" in command_queue.read_status(state_path.requests, begun.id).message
    assert (given, command_queue.read_status(state_path.requests, done.id).state) == ([waiting], "done")


def test_status_of_a_running_command_is_kept_until_its_answer_is_old(tmp_path):
    statuses = {
        "runs": CommandStatus("running", "accepted"),
        "done": CommandStatus("done"),
        "old": CommandStatus("failed"),
    }
    for name, status in statuses.items():
        command_queue.write_status(tmp_path, name, status)
    (tmp_path / "torn.progress.json").write_text("{")

    def purged():
        for file in tmp_path.iterdir():
            os.utime(file, (0, 0))
        command_queue.purge_expired(tmp_path)
        return sorted(file.name for file in tmp_path.iterdir())

    assert purged() == ["runs.progress.json"]
    command_queue.answer_interrupted(tmp_path)
    assert command_queue.read_status(tmp_path, "runs").state == "failed"
    assert purged() == []


def test_the_last_answer_counts(tmp_path):
    request = Command("replay", "orders_search", 3)
    command_queue.enqueue(tmp_path, request)
    command_queue.accept(tmp_path, request)
    command_queue.write_status(tmp_path, request.id, CommandStatus("running", "version 4 of 8 delivered", 0.5))
    command_queue.write_status(tmp_path, request.id, CommandStatus("failed", "no"))
    assert command_queue.read_status(tmp_path, request.id) == CommandStatus("failed", "no", 0.0)


def test_two_requests_are_answered_apart(tmp_path):
    one, other = Command("resync", "a"), Command("resync", "a")
    command_queue.enqueue(tmp_path, one)
    command_queue.enqueue(tmp_path, other)
    command_queue.accept(tmp_path, one)
    command_queue.complete(tmp_path, one.id)
    assert command_queue.pending(tmp_path) == [other]
    assert command_queue.read_status(tmp_path, other.id) is None


def test_deleted_command_leaves_no_file(tmp_path):
    taken, waiting = Command("resync", "a"), Command("resync", "b")
    for request in (taken, waiting):
        command_queue.enqueue(tmp_path, request)
    command_queue.accept(tmp_path, taken)
    for request in (taken, waiting, waiting):
        command_queue.delete(tmp_path, request.id)
    assert list(tmp_path.iterdir()) == []
