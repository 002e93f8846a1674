"""The forms of the actions: confirmation, token, execution, and what the next operator sees."""

from __future__ import annotations

from contextlib import contextmanager

import httpx
import pytest

from cdf_replicator.errors.exceptions import ComparisonRefusedError
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status import Definition
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.server import server
from cdf_replicator.server.commands import BODIES
from cdf_replicator.server.control import BODY_BYTES, Control
from cdf_replicator.server.pages.actions import ACTIONS
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import CommandStatus
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.unit.boards import START, deliver
from tests.unit.server.markup import rows, text

TOKEN = "a-token-of-eighteen"
ROUTE = "orders_search"
PAUSE = f"/routes/{ROUTE}/actions/pause"


@pytest.fixture
def board(clock):
    board = StatusStore(clock)
    deliver(board, version=12, at=START)
    board.update(ROUTE, dead_letters=3, headroom_seconds=3600.0)
    board.update(ROUTE, definition=Definition("s3a://lake/orders", "index orders", "upsert", ("id",), None, None))
    return board


@pytest.fixture
def state_path(tmp_path):
    return StateStore.open(LocalPath(tmp_path / "state"))


@pytest.fixture
def control(board):
    return Control(TOKEN, [ROUTE, "orders_cache"], board)


@contextmanager
def served(board, control):
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, control)
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=10, trust_env=False) as client:
        yield client
    running.stop()


@pytest.fixture
def standby(board, control):
    with served(board, control) as client:
        yield client


@pytest.fixture
def client(standby, control, state_path):
    control.open_to(state_path)
    return standby


def pending(state_path):
    return command_queue.pending(state_path.requests)


def test_each_action_has_a_form():
    assert set(ACTIONS) == set(BODIES)


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("pause", "The table keeps those that the route needs for 1 h more."),
        ("replay", "The sink keeps the last change of each key, so the replay continues to the newest version"),
        ("resync", "The target index orders is rebuilt: each row of the newest snapshot of orders is written again."),
        ("redrive", "3 dead letters of the route are open."),
        ("discard", "Those that you select are closed as discarded."),
        (
            "verify",
            "The entries of the target index orders are compared with a version of orders, of which 12 is the newest",
        ),
    ],
)
def test_confirmation_says_what_will_happen(client, state_path, action, said):
    answer = client.get(f"/routes/{ROUTE}/actions/{action}")
    assert answer.status_code == 200
    assert said in text(answer.text)
    assert f'<form method="post" action="{action}">' in answer.text
    assert 'type="password" autocomplete="current-password"' in answer.text
    assert "<noscript>" not in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    assert pending(state_path) == [], "a confirmation writes nothing"


def test_paused_route_offers_resume_alone(client, board):
    assert "The route is neither paused nor halted." in client.get(f"/routes/{ROUTE}/actions/resume").text
    board.state(ROUTE, "paused")
    assert "Delivery continues after version 12." in client.get(f"/routes/{ROUTE}/actions/resume").text
    refused = client.get(f"/routes/{ROUTE}/actions/replay").text
    assert "The route is paused: resume it first." in refused
    assert "<form" not in refused


@pytest.mark.parametrize(
    ("action", "form", "field", "value"),
    [
        ("pause", {}, "ending_version", None),
        ("resume", {}, "ending_version", None),
        ("replay", {"starting_version": "7", "ending_version": ""}, "starting_version", 7),
        ("resync", {"max_removed_share": ""}, "max_removed_share", None),
        ("resync", {"max_removed_share": "0.2"}, "max_removed_share", 0.2),
        ("redrive", {"letters": "0a1b2c, ffffff"}, "letters", ("0a1b2c", "ffffff")),
        ("redrive", {"letters": ["0a1b2c", "ffffff"]}, "letters", ("0a1b2c", "ffffff")),
        ("discard", {"letters": ""}, "letters", ()),
    ],
)
def test_form_becomes_a_command_and_leads_to_its_progress(client, state_path, action, form, field, value):
    answer = client.post(f"/routes/{ROUTE}/actions/{action}", data={**form, "token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, f"../../{ROUTE}#commands")
    (command,) = pending(state_path)
    assert (command.kind, command.route, getattr(command, field)) == (action, ROUTE, value)
    followed = client.get(PAUSE.replace("/actions/pause", ""))
    assert rows(followed.text, "commands")[0].endswith(f"{action} by http_token waiting")


class Comparisons:
    """Accepts one comparison, whose progress is ``status``."""

    def __init__(self):
        self.status = None

    def submit(self, route):
        if self.status is not None:
            raise ComparisonRefusedError(f"A comparison of route {route} is running.")
        self.status = CommandStatus("running", "9 rows and entries read in 3 s", 0.25)
        return "c" * 32

    def follow(self, request_id):
        return self.status if request_id == "c" * 32 else None


def test_comparison_is_shown_until_its_result_and_refused_meanwhile(client, control, state_path):
    control.comparisons = Comparisons()
    path = f"/routes/{ROUTE}/actions/verify"
    assert "The duration is not known" in client.get(path).text
    assert client.post(path, data={"token": "wrong"}).status_code == 401
    assert control.comparisons.status is None
    answer = client.post(path, data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, f"../../{ROUTE}#commands")
    shown = client.get(f"/routes/{ROUTE}").text
    assert rows(shown, "commands")[0].endswith("verify by http_token running · 25 % 9 rows and entries read in 3 s")
    refused = client.post(path, data={"token": TOKEN})
    assert (refused.status_code, f"A comparison of route {ROUTE} is running." in refused.text) == (409, True)
    assert "It ends if the route stops or restarts." in client.get(f"/routes/{ROUTE}/actions/resync").text
    control.comparisons.status = CommandStatus("done", "equal to version 12 of the table", 1.0)
    for _ in range(2):  # the second view is of the kept answer
        found = rows(client.get(f"/routes/{ROUTE}").text, "commands")
        assert [each.endswith("verify by http_token done equal to version 12 of the table") for each in found] == [True]
        control.comparisons.status = None
    assert pending(state_path) == []


@pytest.mark.parametrize("state", ["paused", "halted", "bootstrapping"])
def test_comparison_is_not_offered_for_a_route_that_does_not_run(client, board, state):
    board.state(ROUTE, state)
    refused = client.get(f"/routes/{ROUTE}/actions/verify").text
    assert "The target is compared while the route runs" in refused
    assert "<form" not in refused


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "\xe4"])
def test_wrong_token_gives_the_form_again_and_nothing_else(client, state_path, token):
    form = {"starting_version": "7"} | ({} if token is None else {"token": token})
    answer = client.post(f"/routes/{ROUTE}/actions/replay", data=form)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "The token is not that of CDF_HTTP__TOKEN. Nothing was done." in answer.text
    assert 'name="starting_version" value="7"' in answer.text
    if token:
        assert token not in answer.text.replace("wrong", token)
    assert pending(state_path) == []


@pytest.mark.parametrize(
    ("action", "field", "given", "shown"),
    [
        ("discard", "letters", ["0a1b2c", "3d4e5f", "ffffff"], "0a1b2c,3d4e5f,ffffff"),
        ("redrive", "letters", "0a1b2c", "0a1b2c"),
        ("resync", "max_removed_share", "0.2", "0.2"),
        ("replay", "ending_version", "9", "9"),
    ],
)
def test_wrong_token_keeps_the_parameters_of_the_action(client, board, action, field, given, shown):
    mode = "append" if action == "replay" else "upsert"
    board.update(ROUTE, definition=Definition("s3a://lake/orders", "index orders", mode, ("id",), None, None))
    answer = client.post(f"/routes/{ROUTE}/actions/{action}", data={field: given, "token": "wrong", "step": "plan"})
    assert answer.status_code == 401
    assert f'name="{field}" value="{shown}"' in answer.text


def test_token_is_in_no_page_and_no_address(client, board):
    answer = client.post(PAUSE, data={"token": TOKEN})
    shown = (
        client.get(f"/routes/{ROUTE}").text + client.get("/").text + client.get(PAUSE).text + client.get("/status").text
    )
    assert TOKEN not in shown + answer.headers["location"]
    assert "pause accepted over HTTP with http_token" in shown


def test_token_in_the_address_is_ignored(client, state_path):
    assert client.post(f"{PAUSE}?token={TOKEN}", data={"token": "wrong"}).status_code == 401
    assert pending(state_path) == []


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 303),
        ({"Host": "cdf:1", "Origin": "http://cdf:1"}, 303),
        ({"Origin": "http://proxy.example", "Sec-Fetch-Site": "same-origin"}, 303),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "cdf:1", "Origin": "http://cdf:1", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_form_of_another_site_is_refused(client, state_path, headers, code):
    assert client.post(PAUSE, data={"token": TOKEN}, headers=headers).status_code == code
    assert len(pending(state_path)) == (code == 303)


@pytest.mark.parametrize(
    ("action", "form", "said"),
    [
        ("replay", {}, "starting_version: Field required"),
        ("replay", {"starting_version": "-1"}, "starting_version: Input should be greater than or equal to 0"),
        ("replay", {"starting_version": "<b>"}, "starting_version: Input should be a valid integer"),
        ("replay", {"starting_version": "20", "ending_version": "12"}, "ending_version: Value error, 12 is before 20"),
        ("resync", {"max_removed_share": "2"}, "max_removed_share: Input should be less than or equal to 1"),
        ("redrive", {"letters": "'; drop table"}, "letters: String should match pattern"),
        ("pause", {"ending_version": "1"}, "ending_version: Extra inputs are not permitted"),
    ],
)
def test_invalid_form_says_what_is_wrong_and_keeps_the_input(client, state_path, action, form, said):
    answer = client.post(f"/routes/{ROUTE}/actions/{action}", data={**form, "token": TOKEN})
    assert answer.status_code == 422
    assert said in text(answer.text)
    assert "<b>" not in answer.text
    assert pending(state_path) == []


@pytest.mark.parametrize("path", ["/routes/absent/actions/pause", f"/routes/{ROUTE}/actions/drop"])
def test_action_on_a_route_that_is_gone_is_a_page(client, state_path, path):
    for answer in (client.get(path), client.post(path, data={"token": TOKEN})):
        assert answer.status_code == 404
        assert 'href="../../../"' in answer.text
    assert pending(state_path) == []


def test_second_operator_sees_the_command_of_the_first(client, state_path, board, clock):
    client.post(f"/routes/{ROUTE}/actions/replay", data={"starting_version": "3", "token": TOKEN})
    (command,) = pending(state_path)
    command_queue.accept(state_path.requests, command)
    command_queue.write_status(
        state_path.requests, command.id, CommandStatus("running", "version 3 of 9 delivered", 0.25)
    )
    other = text(client.get(f"/routes/{ROUTE}/actions/resync").text)
    assert "A replay is running" in other
    assert "version 3 of 9 delivered" in other
    assert rows(client.get(f"/routes/{ROUTE}").text, "commands")[0].endswith("running · 25 % version 3 of 9 delivered")
    command_queue.answer(state_path.requests, command.id, CommandStatus("failed", "a later resync took its place"))
    assert "A replay" not in client.get(f"/routes/{ROUTE}/actions/resync").text
    command_queue.delete(state_path.requests, command.id)
    assert rows(client.get(f"/routes/{ROUTE}").text, "commands")[0].endswith("failed a later resync took its place")
    assert rows(client.get("/routes/orders_cache").text, "commands") == []


def test_command_without_an_answer_has_ended_and_is_not_shown_as_failed(client, state_path):
    client.post(PAUSE, data={"token": TOKEN})
    (command,) = pending(state_path)
    command_queue.delete(state_path.requests, command.id)
    page = client.get(f"/routes/{ROUTE}").text
    assert rows(page, "commands")[0].endswith("unknown its answer is no longer kept")
    assert '<td class="bad">' not in page
    assert "A pause is" not in client.get(f"/routes/{ROUTE}/actions/resync").text


def test_standby_refuses_and_keeps_the_page(standby):
    answer = standby.post(PAUSE, data={"token": TOKEN})
    assert answer.status_code == 503
    assert "This instance is starting or a standby." in answer.text
    assert "<form" in answer.text


def test_state_path_that_does_not_answer_keeps_the_page(client, state_path, monkeypatch):
    client.post(PAUSE, data={"token": TOKEN})

    def gone(*_):
        raise OSError("no answer")

    monkeypatch.setattr(command_queue, "read_status", gone)
    shown = client.get(f"/routes/{ROUTE}")
    assert rows(shown.text, "commands")[0].endswith("pause by http_token waiting")
    monkeypatch.setattr(command_queue, "enqueue", gone)
    refused = client.post(PAUSE, data={"token": TOKEN})
    assert refused.status_code == 503
    assert "The state path does not answer." in refused.text


def test_body_must_be_a_small_form(client, state_path):
    assert client.post(PAUSE, json={"token": TOKEN}).status_code == 415
    assert client.post(PAUSE, data={"token": TOKEN, "x": "y" * BODY_BYTES}).status_code == 413
    assert client.post(PAUSE, data={"token": TOKEN} | {f"f{n}": "1" for n in range(30)}).status_code == 400
    content = {"content": b"token=\xff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}
    assert client.post(PAUSE, **content).status_code == 400
    assert pending(state_path) == []


def test_actions_are_off_without_a_token(board):
    with served(board, None) as client:
        assert client.get(PAUSE).status_code == 404
        assert client.post(PAUSE, data={"token": ""}).status_code == 404
        assert "Actions are off. CDF_HTTP__TOKEN" in client.get(f"/routes/{ROUTE}").text


def test_parameters_of_an_address_are_the_values_of_the_form(client):
    shown = client.get(f"/routes/{ROUTE}/actions/redrive?letters=0a1b2c&token={TOKEN}").text
    assert 'name="letters" value="0a1b2c"' in shown
    assert TOKEN not in shown
