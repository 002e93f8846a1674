"""What one command asks of the lease holder, and the answer."""

from __future__ import annotations

from types import SimpleNamespace

from cdf_replicator import requests
from cdf_replicator.reception import Reception
from cdf_replicator.requests import Progress, Request
from cdf_replicator.state import StatePath

MALFORMED = {
    "cut": "{",
    "newer": '{"kind": "replay", "route": "a", "wholly": "new"}',
    "list": "[1]",
    "number": '{"kind": "replay", "route": "orders", "at": null}',
    "route": '{"kind": "replay", "route": []}',
    "kind": '{"kind": "mend", "route": "orders"}',
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
        requests.submit(tmp_path / "requests", request)
    assert requests.pending(tmp_path / "requests") == asked, "oldest first"


def test_nobody_asked_anything_before_the_folder_is_there(tmp_path):
    assert requests.pending(tmp_path / "requests") == []


def test_a_request_is_unanswered_until_it_is_taken(tmp_path):
    request = Request("resync", "orders_search")
    requests.submit(tmp_path, request)
    assert requests.follow(tmp_path, request.id) is None
    requests.take(tmp_path, request)
    assert requests.follow(tmp_path, request.id) == Progress("running", "accepted")
    assert requests.pending(tmp_path) == [request], "a restart finds it"
    requests.settle(tmp_path, request.id)
    assert requests.pending(tmp_path) == []


def test_what_is_no_request_is_answered_so_and_stands_in_nobodys_way(tmp_path):
    request = Request("resync", "orders_search")
    requests.submit(tmp_path, request)
    for name, text in MALFORMED.items():
        (tmp_path / f"{name}.request.json").write_text(text)
    (tmp_path / "folder.request.json").mkdir()
    assert requests.pending(tmp_path) == [request]
    for name in MALFORMED:
        assert requests.follow(tmp_path, name).state == "failed"
    assert requests.pending(tmp_path) == [request]


def test_a_request_is_known_by_the_name_of_its_file(tmp_path):
    (tmp_path / "a.request.json").write_text('{"kind": "resync", "route": "r", "id": "../../elsewhere"}')
    assert [request.id for request in requests.pending(tmp_path)] == ["a"]


def test_a_malformed_request_keeps_no_other_from_being_given_to_its_route(tmp_path):
    given, state_path = [], StatePath.open(tmp_path)
    reception = Reception({"orders": SimpleNamespace(submit=given.append)}, state_path)
    for name, text in MALFORMED.items():
        state_path.requests.mkdir(exist_ok=True)
        (state_path.requests / f"{name}.request.json").write_text(text)
    request = Request("resync", "orders")
    requests.submit(state_path.requests, request)
    reception.look()
    assert given == [request]
    assert requests.follow(state_path.requests, "number").state == "failed"


def test_what_an_earlier_process_did_not_live_to_answer_is_answered(tmp_path):
    state_path = StatePath.open(tmp_path)
    begun, waiting, done = (Request("replay", "orders", 1) for _ in range(3))
    for request in (begun, waiting, done):
        requests.submit(state_path.requests, request)
        requests.take(state_path.requests, request)
    for request in (begun, done):
        requests.settle(state_path.requests, request.id)
    requests.answer(state_path.requests, done.id, Progress("done", "all of it", 1.0))
    given = []
    Reception({"orders": SimpleNamespace(submit=given.append)}, state_path).look()
    assert requests.follow(state_path.requests, begun.id).state == "failed"
    assert "started again" in requests.follow(state_path.requests, begun.id).message
    assert (given, requests.follow(state_path.requests, done.id).state) == ([waiting], "done")


def test_the_last_answer_counts(tmp_path):
    request = Request("replay", "orders_search", 3)
    requests.submit(tmp_path, request)
    requests.take(tmp_path, request)
    requests.answer(tmp_path, request.id, Progress("running", "version 4 of 8 delivered", 0.5))
    requests.answer(tmp_path, request.id, Progress("failed", "no"))
    assert requests.follow(tmp_path, request.id) == Progress("failed", "no", 0.0)


def test_two_requests_are_answered_apart(tmp_path):
    one, other = Request("resync", "a"), Request("resync", "a")
    requests.submit(tmp_path, one)
    requests.submit(tmp_path, other)
    requests.take(tmp_path, one)
    requests.settle(tmp_path, one.id)
    assert requests.pending(tmp_path) == [other]
    assert requests.follow(tmp_path, other.id) is None


def test_a_forgotten_request_leaves_nothing(tmp_path):
    taken, waiting = Request("resync", "a"), Request("resync", "b")
    for request in (taken, waiting):
        requests.submit(tmp_path, request)
    requests.take(tmp_path, taken)
    for request in (taken, waiting, waiting):
        requests.forget(tmp_path, request.id)
    assert list(tmp_path.iterdir()) == []
