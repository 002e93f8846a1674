"""What one command asks of the lease holder, and the answer."""

from __future__ import annotations

from cdf_replicator import requests
from cdf_replicator.requests import Progress, Request


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
    for name, text in (("cut", "{"), ("newer", '{"kind": "replay", "route": "a", "wholly": "new"}'), ("list", "[1]")):
        (tmp_path / f"{name}.request.json").write_text(text)
    assert requests.pending(tmp_path) == [request]
    for name in ("cut", "newer", "list"):
        assert requests.follow(tmp_path, name).state == "failed"
    assert requests.pending(tmp_path) == [request]


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
