"""A command that only reads is a process without a JVM where a service answers it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from cdf_replicator.commands import session
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.queries.answer import End, Failure, Finding, Progress, ReplayPlan, Values
from cdf_replicator.queries.query import ListDeadLetters
from cdf_replicator.server import Queries, server
from cdf_replicator.settings import load
from cdf_replicator.state.lease import Lease
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore

BEFORE = (
    "import atexit, os, sys; atexit.register(lambda: {'pyspark', 'py4j', 'pandas'} & set(sys.modules) and os._exit(99))"
)
CODE = f"{BEFORE}; sys.argv[0] = 'cdf-replicator'; from cdf_replicator.cli import main; main()"
TOKEN = "the-token-of-the-control"
LETTER = {
    "id": "3f2a9c01b7de",
    "route": "orders_audit",
    "key": "7",
    "commit_version": 12,
    "row": '{"id": 7}',
    "code": "bad_name",
    "reason": "the name is bad",
    "state": "open",
    "created_at": "2026-01-31 12:30:00.123456",
}
GIVEN = {
    "CDF_TABLES__ORDERS__PATH": "/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "audit",
    "CDF_SINKS__AUDIT__TYPE": "delta_audit",
    "CDF_SINKS__AUDIT__PATH": "/audit",
}
PLAN = ReplayPlan("orders", 1, 9, ("insert", "delete"), ((1, 5, 0),), 1, (5, 0))


class Answers:
    """Gives the same values for a query of each name."""

    def __init__(self, **values):
        self.given = values

    def start(self, query):
        self.query = query
        return self

    def events(self):
        yield Progress(0, 1)
        found = self.given[query_name(self.query)]
        yield from [found] if isinstance(found, Failure) else [Values(tuple(found)), End()]

    def cancel(self, seconds=0.0):
        pass

    def close(self):
        pass


def query_name(query):
    return query.name.replace("-", "_")


@pytest.fixture
def answered(tmp_path):
    """Run a command beside a service that gives these values; returns the process and the query."""
    state, queries, board = StateStore.open(LocalPath(tmp_path / "state")), Queries(), StatusStore()
    state.lease = Lease.acquire(state.root)
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, queries=queries)
    given = {"CDF_STATE_PATH": str(state.root), **GIVEN}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CDF_")}

    def run(*words, **values):
        answers = Answers(**values)
        with queries.opened(answers, state):
            words = [sys.executable, "-c", CODE, *words]
            ended = subprocess.run(
                words,
                env=kept | given,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        return ended, answers.query

    yield run
    running.stop()
    state.lease.release()


def test_dead_letters_are_listed_without_spark(answered):
    ended, query = answered("dead-letters", "list", "orders_audit", "--limit", "5", dead_letters=[LETTER])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == "3f2a9c01b7de  orders_audit  bad_name  open  2026-01-31 12:30"
    assert (query.route, query.limit, query.closed) == ("orders_audit", 6, False)


@pytest.mark.parametrize(
    ("words", "values", "printed"),
    [
        (("dead-letters", "show", "3f2a9c"), {"dead_letter": [LETTER]}, '"id": 7'),
        (("changes", "orders", "--from", "1", "--format", "csv"), {"changes": [["id"], "7", "8"]}, "id\n7\n8\n"),
        (("replay", "orders", "--starting-version", "1", "--dry-run"), {"replay_plan": [PLAN]}, "versions 1 to 9"),
        (("validate",), {"validation": []}, "configuration, tables and sinks: ok"),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)
def test_further_commands_need_no_spark(answered, words, values, printed):
    ended, _ = answered(*words, **values)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert printed in ended.stdout


def test_errors_of_a_service_are_those_of_the_command(answered):
    failure = Failure("Version 9 is out of range.", "Choose another.")
    ended, _ = answered("changes", "orders", "--from", "9", changes=failure)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Version 9 is out of range." in ended.stderr
    assert "next_step='Choose another.'" in ended.stderr
    found = [Finding("sink audit", "It is away.", "Start it.")]
    ended, _ = answered("validate", validation=found)
    assert (ended.returncode, ended.stderr) == (1, "- sink audit: It is away. Start it.\n")


def test_service_on_an_object_store_answers_its_configuration_alone(tmp_path, monkeypatch):
    """With another token or state path, the command answers by itself and logs the reason."""
    monkeypatch.setattr(session.Answers, "_alone", lambda *_: iter([Values(("alone",)), End()]))
    state, queries, board = StateStore.open(LocalPath(tmp_path / "state")), Queries(TOKEN), StatusStore()
    state.lease = Lease.acquire(state.root)
    board.belongs_to("owner", "s3a://lake/state/")
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, queries=queries)
    given = {"CDF_HTTP__HOST": "127.0.0.1", "CDF_HTTP__BIND_PORT": str(running.port), **GIVEN}
    found = []
    with queries.opened(Answers(dead_letters=[LETTER]), state):
        for state_path, token in (("state", TOKEN), ("state", TOKEN[::-1]), ("other", TOKEN)):
            settings = load(given | {"CDF_STATE_PATH": f"s3a://lake/{state_path}", "CDF_HTTP__TOKEN": token})
            with capture_logs() as logs:
                values = list(session.Answers(settings, settings.spark).values(ListDeadLetters()))
            found.append((values, [entry["reason"] for entry in logs]))
    running.stop()
    state.lease.release()
    assert found == [
        ([LETTER], []),
        (["alone"], ["the running service refuses the token"]),
        (["alone"], [f"127.0.0.1:{running.port} does not answer for the state path s3a://lake/other"]),
    ]
