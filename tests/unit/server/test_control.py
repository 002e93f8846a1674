"""Control over HTTP: authorization, the command that is stored, the response."""

from __future__ import annotations

import os
import threading
import time

import httpx
import pytest
from structlog.testing import capture_logs

from cdf_replicator.errors.exceptions import ComparisonRefusedError
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.server import server
from cdf_replicator.server.control import AT_ONCE, BODY_BYTES, Control
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import CommandStatus
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.support.waiting import until

TOKEN = "a-token-of-eighteen"


@pytest.fixture
def state_path(tmp_path):
    return StateStore.open(LocalPath(tmp_path / "state"))


@pytest.fixture
def board():
    return StatusStore()


@pytest.fixture
def control(board):
    return Control(TOKEN, ["orders_search", "orders_audit"], board)


def client_of(control, board):
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, control)
    return running, httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=10, trust_env=False)


@pytest.fixture
def anybody(control, board):
    running, client = client_of(control, board)
    with client:
        yield client
    running.stop()


@pytest.fixture
def operator(anybody, control, state_path):
    control.open_to(state_path)
    anybody.headers["Authorization"] = f"Bearer {TOKEN}"
    return anybody


def test_control_is_disabled_without_a_token():
    running, client = client_of(None, StatusStore())
    with client:
        assert client.post("/routes/orders_search/pause").status_code == 404
        assert client.get("/requests/" + "0" * 32).status_code == 404
    running.stop()


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe4"]
)
def test_request_without_token_is_refused_before_it_is_parsed(anybody, control, state_path, header):
    control.open_to(state_path)
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for path in ("/routes/orders_search/pause", "/routes/unknown_route/replay", "/config/reload"):
        answer = anybody.post(path, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert anybody.get("/requests/" + "0" * 32, headers=headers).status_code == 401
    assert command_queue.pending(state_path.requests) == []


def test_request_is_stored_and_followed(operator, state_path):
    accepted = operator.post("/routes/orders_search/replay", json={"starting_version": 12})
    assert accepted.status_code == 202
    (request,) = command_queue.pending(state_path.requests)
    assert (request.kind, request.route, request.starting_version, request.ending_version) == (
        "replay",
        "orders_search",
        12,
        None,
    )
    follow = accepted.json()["follow"]
    assert operator.get(follow).json() == {"state": "waiting", "message": "", "ratio": 0.0}
    command_queue.accept(state_path.requests, request)
    command_queue.write_status(
        state_path.requests, request.id, CommandStatus("running", "version 3 of 9 delivered", 0.25)
    )
    assert operator.get(follow).json() == {"state": "running", "message": "version 3 of 9 delivered", "ratio": 0.25}


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_route_is_paused_and_resumed(operator, state_path, kind):
    assert operator.post(f"/routes/orders_audit/{kind}").status_code == 202
    assert [(found.kind, found.route) for found in command_queue.pending(state_path.requests)] == [
        (kind, "orders_audit")
    ]


@pytest.mark.parametrize(
    ("kind", "body", "field", "value"),
    [
        ("resync", {}, "max_removed_share", None),
        ("resync", {"max_removed_share": 0.25}, "max_removed_share", 0.25),
        ("redrive", {"letters": ["0a1b2c", "ffffff"]}, "letters", ("0a1b2c", "ffffff")),
        ("discard", {}, "letters", ()),
    ],
)
def test_commands_of_the_queue_are_accepted(operator, state_path, kind, body, field, value):
    assert operator.post(f"/routes/orders_search/{kind}", json=body).status_code == 202
    (found,) = command_queue.pending(state_path.requests)
    assert (found.kind, found.route, getattr(found, field)) == (kind, "orders_search", value)


def test_command_is_logged_and_an_event_with_the_name_of_its_token(operator, board):
    with capture_logs() as logged:
        accepted = operator.post("/routes/orders_audit/pause")
    assert logged == [
        {
            "event": "command accepted",
            "route": "orders_audit",
            "action": "pause",
            "token": "http_token",
            "id": accepted.json()["id"],
            "log_level": "info",
        }
    ]
    (event,) = board.snapshot().events
    assert (event.what, event.route) == ("pause accepted over HTTP with http_token", "orders_audit")


def test_reload_is_stored_and_followed(operator, state_path):
    accepted = operator.post("/config/reload")
    assert accepted.status_code == 202
    (request,) = command_queue.pending(state_path.requests)
    assert (request.kind, request.route, request.dry_run) == ("reload", "", False)
    answer = CommandStatus("failed", "configuration: 1 problem", exit_code=78)
    command_queue.answer(state_path.requests, request.id, answer)
    found = operator.get(accepted.json()["follow"]).json()
    assert found == {"state": "failed", "message": "configuration: 1 problem", "ratio": 0.0}


def test_invalid_request_is_refused_and_writes_nothing(operator, state_path):
    unknown = operator.post("/routes/nobody/pause")
    assert unknown.status_code == 404
    assert "the routes are orders_search, orders_audit" in unknown.json()["detail"]
    for body in ({}, {"starting_version": -1}, {"starting_version": "x"}, {"starting_version": 1, "end": 2}):
        assert operator.post("/routes/orders_search/replay", json=body).status_code == 422
    reversed_range = operator.post("/routes/orders_audit/replay", json={"starting_version": 20, "ending_version": 12})
    assert reversed_range.status_code == 422
    assert "12 is before 20" in reversed_range.text
    for kind, body in (
        ("resync", {"max_removed_share": 1.5}),
        ("redrive", {"letters": ["id' or 1=1"]}),
        ("discard", {"letters": ["0a"]}),
    ):
        assert operator.post(f"/routes/orders_search/{kind}", json=body).status_code == 422
    assert operator.get("/requests/" + "0" * 32).status_code == 404
    assert operator.get("/requests/..%2Fformat").status_code in (404, 422)
    assert command_queue.pending(state_path.requests) == []


def test_body_must_be_small_and_have_a_length(operator):
    path = "/routes/orders_search/replay"
    assert operator.post(path, content=b"x" * (BODY_BYTES + 1)).status_code == 413
    assert operator.post(path, content=iter([b"{}"])).status_code == 411


def test_standby_refuses_requests(anybody):
    answer = anybody.post("/routes/orders_search/pause", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 503


def test_endpoints_have_a_schema(operator):
    described = operator.get("/openapi.json").json()
    assert {"/metrics", "/status", "/routes/{route}/pause", "/requests/{id}"} <= described["paths"].keys()
    assert "security" in described["paths"]["/routes/{route}/pause"]["post"]
    assert "security" not in described["paths"]["/status"]["get"]


def test_unread_answer_is_deleted_after_a_day(state_path):
    folder = state_path.requests
    for request_id, age in (("old", command_queue.KEPT_SECONDS + 60), ("new", 60)):
        command_queue.write_status(folder, request_id, CommandStatus("done"))
        at = time.time() - age
        os.utime(folder / f"{request_id}.progress.json", (at, at))
    command_queue.purge_expired(folder)
    assert command_queue.read_status(folder, "old") is None
    assert command_queue.read_status(folder, "new") == CommandStatus("done")


class Comparisons:
    """Accepts one comparison, and refuses the next."""

    def __init__(self):
        self.started = []

    def submit(self, route):
        if self.started:
            raise ComparisonRefusedError(f"A comparison of route {self.started[0]} is running.")
        self.started.append(route)
        return "c" * 32

    def follow(self, request_id):
        return CommandStatus("running", "9 rows", 0.5) if request_id == "c" * 32 else None


def test_comparison_is_started_followed_and_a_second_one_refused(operator, control, state_path, board):
    assert operator.post("/routes/orders_audit/verify").status_code == 503, "no route runs yet"
    control.comparisons = Comparisons()
    accepted = operator.post("/routes/orders_audit/verify")
    assert (accepted.status_code, accepted.json()) == (202, {"id": "c" * 32, "follow": f"/requests/{'c' * 32}"})
    assert operator.get(accepted.json()["follow"]).json() == {"state": "running", "message": "9 rows", "ratio": 0.5}
    refused = operator.post("/routes/orders_search/verify")
    assert (refused.status_code, refused.json()) == (409, {"detail": "A comparison of route orders_audit is running."})
    assert operator.post("/routes/absent/verify").status_code == 404
    assert operator.get("/requests/" + "0" * 32).status_code == 404
    assert command_queue.pending(state_path.requests) == []
    assert [event.what for event in board.snapshot().events] == ["verify accepted over HTTP with http_token"]


def test_views_that_hang_leave_the_turns_of_commands(operator, control, state_path, monkeypatch):
    """The state path does not answer the reads of pages, which more readers than turns have opened."""
    operator.post("/routes/orders_search/pause")
    hang, reading, read_status = threading.Event(), [], command_queue.read_status

    def hanging(folder, request_id):
        reading.append(request_id)
        hang.wait(10)
        return read_status(folder, request_id)

    monkeypatch.setattr(command_queue, "read_status", hanging)
    readers = [threading.Thread(target=control.submitted, args=("orders_search",)) for _ in range(AT_ONCE + 2)]
    for reader in readers:
        reader.start()
    try:
        until(lambda: sum(reader.is_alive() for reader in readers) == len(reading) == AT_ONCE, 10)
        shown = [command.state for command in control.submitted("orders_search")]
        assert shown == ["waiting"], "a further view shows what is known, without a wait"
        assert operator.post("/routes/orders_search/resume").status_code == 202
        assert len(command_queue.pending(state_path.requests)) == 2
    finally:
        hang.set()
        for reader in readers:
            reader.join()
