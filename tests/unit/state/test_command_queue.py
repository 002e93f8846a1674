"""Commands to the lease holder are stored, accepted and answered."""

from __future__ import annotations

from types import SimpleNamespace

from cdf_replicator.runtime.command_dispatcher import Reception
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Progress, Request
from cdf_replicator.state.store import StatePath

MALFORMED = {
    "cut": "{",
    "newer": '{"kind": "replay", "route": "a", "wholly": "new"}',
    "list": "[1]",
    "number": '{"kind": "replay", "route": "orders", "at": null}',
    "route": '{"kind": "replay", "route": []}',
    "kind": '{"kind": "repair", "route": "orders"}',
    "deep": "[" * 100_000,
    "bytes": "\x00\x01",
}


def test_a_request_arrives_as_it_was_asked(tmp_path):
    asked = [
        Request("replay", "orders_audit", 3, 9, at=1000.1),
        Request("replay", "orders_cache", 0, at=1000.2),
        Request("resync", "orders_search", at=1000.3),
    ]
    for request in reversed(asked):
        command_queue.submit(tmp_path / "requests", request)
    assert command_queue.pending(tmp_path / "requests") == asked, "oldest first"


def test_nobody_asked_anything_before_the_folder_is_there(tmp_path):
    assert command_queue.pending(tmp_path / "requests") == []


def test_a_request_is_unanswered_until_it_is_taken(tmp_path):
    request = Request("resync", "orders_search")
    command_queue.submit(tmp_path, request)
    assert command_queue.follow(tmp_path, request.id) is None
    command_queue.take(tmp_path, request)
    assert command_queue.follow(tmp_path, request.id) == Progress("running", "accepted")
    assert command_queue.pending(tmp_path) == [request], "a restart finds it"
    command_queue.settle(tmp_path, request.id)
    assert command_queue.pending(tmp_path) == []


def test_what_is_no_request_is_answered_so_and_stands_in_nobodys_way(tmp_path):
    request = Request("resync", "orders_search")
    command_queue.submit(tmp_path, request)
    for name, text in MALFORMED.items():
        (tmp_path / f"{name}.request.json").write_text(text)
    (tmp_path / "folder.request.json").mkdir()
    assert command_queue.pending(tmp_path) == [request]
    for name in MALFORMED:
        assert command_queue.follow(tmp_path, name).state == "failed"
    assert command_queue.pending(tmp_path) == [request]


def test_a_request_is_known_by_the_name_of_its_file(tmp_path):
    (tmp_path / "a.request.json").write_text('{"kind": "resync", "route": "r", "id": "../../elsewhere"}')
    assert [request.id for request in command_queue.pending(tmp_path)] == ["a"]


def test_a_malformed_request_keeps_no_other_from_being_given_to_its_route(tmp_path):
    given, state_path = [], StatePath.open(tmp_path)
    reception = Reception({"orders": SimpleNamespace(submit=given.append)}, state_path)
    for name, text in MALFORMED.items():
        state_path.requests.mkdir(exist_ok=True)
        (state_path.requests / f"{name}.request.json").write_text(text)
    request = Request("resync", "orders")
    command_queue.submit(state_path.requests, request)
    reception.look()
    assert given == [request]
    assert command_queue.follow(state_path.requests, "number").state == "failed"


def test_what_an_earlier_process_did_not_live_to_answer_is_answered(tmp_path):
    state_path = StatePath.open(tmp_path)
    begun, waiting, done = (Request("replay", "orders", 1) for _ in range(3))
    for request in (begun, waiting, done):
        command_queue.submit(state_path.requests, request)
        command_queue.take(state_path.requests, request)
    for request in (begun, done):
        command_queue.settle(state_path.requests, request.id)
    command_queue.answer(state_path.requests, done.id, Progress("done", "all of it", 1.0))
    given = []
    Reception({"orders": SimpleNamespace(submit=given.append)}, state_path).look()
    assert command_queue.follow(state_path.requests, begun.id).state == "failed"
    assert "started again" in command_queue.follow(state_path.requests, begun.id).message
    assert (given, command_queue.follow(state_path.requests, done.id).state) == ([waiting], "done")


def test_the_last_answer_counts(tmp_path):
    request = Request("replay", "orders_search", 3)
    command_queue.submit(tmp_path, request)
    command_queue.take(tmp_path, request)
    command_queue.answer(tmp_path, request.id, Progress("running", "version 4 of 8 delivered", 0.5))
    command_queue.answer(tmp_path, request.id, Progress("failed", "no"))
    assert command_queue.follow(tmp_path, request.id) == Progress("failed", "no", 0.0)


def test_two_requests_are_answered_apart(tmp_path):
    one, other = Request("resync", "a"), Request("resync", "a")
    command_queue.submit(tmp_path, one)
    command_queue.submit(tmp_path, other)
    command_queue.take(tmp_path, one)
    command_queue.settle(tmp_path, one.id)
    assert command_queue.pending(tmp_path) == [other]
    assert command_queue.follow(tmp_path, other.id) is None


def test_a_forgotten_request_leaves_nothing(tmp_path):
    taken, waiting = Request("resync", "a"), Request("resync", "b")
    for request in (taken, waiting):
        command_queue.submit(tmp_path, request)
    command_queue.take(tmp_path, taken)
    for request in (taken, waiting, waiting):
        command_queue.forget(tmp_path, request.id)
    assert list(tmp_path.iterdir()) == []
