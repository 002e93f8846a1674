"""The dead letters of a route as a page, and the numbers of a dry run in its confirmation."""

from __future__ import annotations

from contextlib import contextmanager

import httpx
import pytest

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status import Definition
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.queries.answer import End, Failure, Progress, ReplayPlan, ResyncPlan, Values
from cdf_replicator.queries.query import ListDeadLetters, PlanReplay, PlanResync, QueryRefusedError
from cdf_replicator.server import Queries, inquiries, server
from cdf_replicator.server.control import Control
from cdf_replicator.server.pages.plans import replay_lines, resync_lines
from cdf_replicator.state import command_queue
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.unit.boards import START, deliver
from tests.unit.server.answers import Handler, Running
from tests.unit.server.markup import rows, text

READ, CONTROL = "a-token-to-read", "a-token-to-control"
ROUTE = "orders_search"
LETTER = {
    "id": "0a1b2c3d4e5f6a7b",
    "key": "<b>7</b>",
    "commit_version": 12,
    "code": "mapping",
    "reason": "failed to parse <i>",
    "row": '{"id": 7, "name": "<script>"}',
    "created_at": "2026-05-01 11:58:03.123456",
}


@pytest.fixture
def board(clock):
    board = StatusStore(clock)
    deliver(board, version=12, at=START)
    board.update(ROUTE, dead_letters=2)
    board.update(ROUTE, definition=Definition("s3a://lake/orders", "index orders", "upsert", ("id",), None, None))
    return board


@pytest.fixture
def state_path(tmp_path):
    return StateStore.open(LocalPath(tmp_path / "state"))


@pytest.fixture
def handler():
    return Handler(
        Running(Progress(1, 2), Values((LETTER,)), Values(({**LETTER, "id": "f" * 16, "key": None},)), End())
    )


@contextmanager
def served(board, state_path, handler, read_tokens=(READ, CONTROL)):
    queries = Queries(CONTROL)
    queries._handler = handler
    control = Control(CONTROL, [ROUTE], board)
    control.open_to(state_path)
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, control, read_tokens, queries)
    auth = httpx.BasicAuth("operator", READ)
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=20, trust_env=False, auth=auth) as client:
        yield client
    running.stop()


@pytest.fixture
def client(board, state_path, handler):
    with served(board, state_path, handler) as client:
        yield client


LETTERS, ABSENT = f"/routes/{ROUTE}/dead-letters", "/routes/absent/dead-letters"


def listed(client, token=CONTROL):
    return client.post(LETTERS, data={"token": token})


def test_dead_letters_have_key_reason_and_row(client, handler):
    answer = listed(client)
    assert answer.status_code == 200
    assert handler.got == [ListDeadLetters(route=ROUTE, limit=inquiries.LETTERS_SHOWN, rows=True)]
    assert handler.answer.cancelled.is_set(), "its place is free again"
    assert rows(answer.text, "rejected") == [
        '0a1b2c3d4e5f <b>7</b> 12 mapping failed to parse <i> {"id": 7, "name": "<script>"} 2026-05-01 11:58:03',
        'ffffffffffff no key 12 mapping failed to parse <i> {"id": 7, "name": "<script>"} 2026-05-01 11:58:03',
    ]
    for markup in ("<b>7", "<i>", "<script>", CONTROL):
        assert markup not in answer.text


@pytest.mark.parametrize("token", ["", "wrong", READ])
def test_rows_need_the_control_token(client, handler, token):
    answer = listed(client, token)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "The token is not that of CDF_HTTP__TOKEN." in answer.text
    form = client.get(LETTERS)
    assert form.status_code == 200
    assert "The list holds rows of orders, so it needs the token." in form.text
    assert "cdf-replicator dead-letters list orders_search" in form.text
    assert client.post(LETTERS, data={"token": CONTROL}, headers={"Origin": "http://evil"}).status_code == 403
    assert handler.got == []


def test_selected_dead_letters_are_those_of_the_action(client, state_path):
    page = listed(client).text
    assert 'name="letters" value="0a1b2c3d4e5f"' in page
    assert 'formaction="actions/discard"' in page
    chosen = client.get(f"/routes/{ROUTE}/actions/discard?letters=0a1b2c3d4e5f&letters=ffffffffffff").text
    assert 'name="letters" value="0a1b2c3d4e5f,ffffffffffff"' in chosen
    form = {"letters": "0a1b2c3d4e5f,ffffffffffff", "token": CONTROL}
    assert client.post(f"/routes/{ROUTE}/actions/discard", data=form).status_code == 303
    (command,) = command_queue.pending(state_path.requests)
    assert command.letters == ("0a1b2c3d4e5f", "ffffffffffff")


def test_page_without_an_answer_says_why(client, handler, monkeypatch):
    handler.answer = QueryRefusedError("it already answers 2 queries", for_now=True)
    assert "The service does not answer now: it already answers 2 queries." in listed(client).text
    handler.answer = Running(Failure("The table is damaged.", "Run: `cdf-replicator validate`"))
    assert "The table is damaged. Run: <code>cdf-replicator validate</code>" in listed(client).text
    monkeypatch.setattr(inquiries, "ANSWER_SECONDS", 0.05)
    handler.answer = Running(Progress(1, 2), endless=True)
    assert "The answer takes more than 0 s." in listed(client).text
    assert handler.answer.cancelled.is_set()


def test_route_without_dead_letters_and_unknown_route(client, handler, board):
    handler.answer = Running(End())
    assert "No open dead letters." in listed(client).text
    for missing in (client.get(ABSENT), client.post(ABSENT, data={"token": CONTROL})):
        assert missing.status_code == 404
        assert 'href="../../"' in missing.text


def test_confirmation_shows_the_numbers_of_a_dry_run(client, handler, state_path):
    replay = f"/routes/{ROUTE}/actions/replay"
    assert '<button name="step" value="plan">' in client.get(replay).text
    assert 'name="step"' not in client.get(f"/routes/{ROUTE}/actions/pause").text
    plan = ReplayPlan("orders", 7, 12, ("insert", "delete"), ((7, 5, 0), (9, 1, 3)), 2, (6, 3))
    handler.answer = Running(Values((plan,)), End())
    shown = client.post(replay, data={"starting_version": "7", "step": "plan", "token": CONTROL})
    assert shown.status_code == 200
    said = (
        "Versions 7 to 12 of orders would be delivered again: 2 versions with changes, 9 rows (6 inserted · 3 deleted)."
    )
    assert said in text(shown.text)
    assert 'name="starting_version" value="7"' in shown.text
    assert handler.got == [PlanReplay(routes=(ROUTE,), starting_version=7)]
    assert CONTROL not in shown.text
    assert command_queue.pending(state_path.requests) == []


def test_dry_run_needs_the_token_and_says_why_it_fails(client, handler, state_path):
    resync = f"/routes/{ROUTE}/actions/resync"
    assert client.post(resync, data={"step": "plan", "token": READ}).status_code == 401
    assert handler.got == []
    handler.answer = Running(Failure("No answer from search.", "Start it."))
    shown = client.post(resync, data={"step": "plan", "token": CONTROL})
    assert "No answer from search. Start it." in shown.text
    assert handler.got == [PlanResync(route=ROUTE)]
    assert command_queue.pending(state_path.requests) == []


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ResyncPlan("r", "t", 9, 1), ["1 row of version 9 of t would be delivered, marked snapshot."]),
        (
            ResyncPlan("r", "t", 9, 2, "index t"),
            ["2 rows of version 9 of t would be written again.", "index t is empty: nothing would be removed."],
        ),
        (
            ResyncPlan("r", "t", 9, 1000, "index t", True, 2000, 1000),
            [
                "1,000 rows of version 9 of t would be written again, if they pass the filter.",
                "index t has 2,000 entries, of which at least 1,000 (50.0%) would be removed.",
            ],
        ),
        (
            ResyncPlan("r", "t", 9, 3, "index t", False, 1, 1, 8),
            [
                "3 rows of version 9 of t would be written again.",
                "index t has 1 entry, of which 1 (100.0%) would be removed. Version 8 is loaded already, and waits for a larger share to remove.",
            ],
        ),
    ],
)
def test_numbers_of_a_resync_are_sentences(plan, said):
    assert resync_lines(plan) == said


def test_replay_without_changes_is_a_sentence():
    assert replay_lines(ReplayPlan("t", 3, 3, ("insert",), (), 0, (0,))) == [
        "Versions 3 to 3 of t would be delivered again: 0 versions with changes, 0 rows."
    ]
