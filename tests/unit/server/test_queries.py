"""Queries over HTTP: authorization, the lines of an answer, and the end of a query whose client leaves or does not read."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.queries.answer import End, Failure, Progress, Values
from cdf_replicator.queries.query import ListDeadLetters, QueryRefusedError
from cdf_replicator.server import Queries, connection, server
from cdf_replicator.state.lease import Lease
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.support.waiting import until
from tests.unit.server.answers import Handler, Running

TOKEN = "the-token-of-the-control"
LETTERS = "/queries/dead-letters"


@pytest.fixture
def handler():
    return Handler(Running(Progress(1, 2), Values(({"id": "ab", "guard": 2**63 - 1},)), End()))


@pytest.fixture
def state(tmp_path):
    state = StateStore.open(LocalPath(tmp_path / "state"))
    state.lease = Lease.acquire(state.root)
    yield state
    state.lease.release()


@pytest.fixture
def queries():
    return Queries(TOKEN)


@pytest.fixture
def client(queries):
    board = StatusStore()
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, read_tokens=("read",), queries=queries)
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=10, trust_env=False) as client:
        client.headers["Authorization"] = f"Bearer {queries.secret}"
        yield client
    running.stop()


@pytest.fixture
def opened(queries, client, handler, state):
    with queries.opened(handler, state):
        yield client


def test_an_answer_is_a_line_for_each_event(opened, handler):
    answer = opened.post(LETTERS, json={"route": "orders_search", "limit": 3})
    assert answer.status_code == 200
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"progress": {"done": 1, "tasks": 2}},
        {"values": [{"id": "ab", "guard": 2**63 - 1}]},
        {"end": True},
    ]
    assert handler.got == [ListDeadLetters(route="orders_search", limit=3)]
    assert "security" in opened.get("/openapi.json").json()["paths"]["/queries/{name}"]["post"]
    handler.answer = Running(Failure("It broke.", "Repair it."))
    failed = opened.post(LETTERS, json={})
    assert [json.loads(line) for line in failed.text.splitlines()] == [
        {"error": {"what": "It broke.", "next_step": "Repair it."}}
    ]


def test_the_secret_of_this_start_and_the_control_token_are_accepted(opened, handler):
    """The token for reading belongs to monitoring, which must not read rows."""
    for token in (None, "", "wrong", "read", Queries(TOKEN).secret):
        answer = opened.post(LETTERS, headers={"Authorization": f"Bearer {token}"} if token else {"Authorization": ""})
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), token
    assert handler.got == []
    assert opened.post(LETTERS, json={}, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_unknown_and_malformed_queries_are_refused(opened, handler):
    unknown = opened.post("/queries/nothing", json={})
    assert unknown.status_code == 404
    assert "the queries are dead-letters, dead-letter, changes," in unknown.json()["detail"]
    for name, body in (
        ("dead-letters", '{"limit": 0}'),
        ("dead-letters", '{"further": 1}'),
        ("dead-letters", "{"),
        ("dead-letter", '{"id": "x\\u0027 or 1"}'),
        ("changes", '{"table": "orders"}'),
        ("replay-plan", '{"routes": [], "starting_version": 1}'),
    ):
        assert opened.post(f"/queries/{name}", content=body).status_code == 422, body
    assert opened.get(LETTERS).status_code == 405
    assert handler.got == []


@pytest.mark.parametrize(("for_now", "status"), [(True, 503), (False, 409)])
def test_a_refused_query_is_answered_with_the_reason(opened, handler, for_now, status):
    handler.answer = QueryRefusedError("it already answers 2 queries", for_now=for_now)
    answer = opened.post(LETTERS, json={})
    assert (answer.status_code, answer.json()) == (status, {"detail": "it already answers 2 queries"})


def test_a_standby_and_a_stopping_service_answer_no_query(client, queries, handler, state):
    assert client.post(LETTERS, json={}).status_code == 503
    with queries.opened(handler, state):
        assert client.post(LETTERS, json={}).status_code == 200
    stopping = client.post(LETTERS, json={})
    assert (stopping.status_code, stopping.json()["detail"]) == (503, "the service is stopping")


def test_a_query_ends_with_its_clients_connection(opened, handler):
    handler.answer = Running(Progress(0, 1), endless=True)
    with opened.stream("POST", LETTERS, json={}) as answer:
        next(answer.iter_lines())
        assert not handler.answer.cancelled.is_set()
    until(handler.answer.cancelled.is_set, 10)


def test_answer_may_take_longer_than_a_request_while_it_is_read(opened, handler, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 3.0)
    handler.answer = Running(Values(("x" * 1000,)), endless=True)
    with opened.stream("POST", LETTERS, json={}) as answer:
        read = sum("values" in line for _, line in zip(range(350), answer.iter_lines(), strict=False))  # 3.5 s at least
        assert read == 350
        assert not handler.answer.cancelled.is_set()


def test_a_query_ends_if_its_client_does_not_read(opened, handler, queries, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 2.0)  # the answer begins, and fills the buffers, within it
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.5)
    handler.answer = Running(Values(("x" * 1_000_000,)), endless=True)
    head = (
        f"POST {LETTERS} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {queries.secret}\r\ncontent-length: 2\r\n\r\n{{}}"
    )
    with socket.create_connection(("127.0.0.1", opened.base_url.port), timeout=10) as silent:
        silent.sendall(head.encode())
        until(handler.answer.cancelled.is_set, 30)
