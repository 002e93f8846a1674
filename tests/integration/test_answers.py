"""Commands that only read are answered by a running service, with the output that they print alone."""

from __future__ import annotations

import json
import re
import stat
from contextlib import contextmanager

import pytest

from cdf_replicator.commands.session import Answers
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.queries.answer import Values
from cdf_replicator.queries.handler import AT_ONCE, QueryHandler
from cdf_replicator.queries.query import ListDeadLetters, Verify
from cdf_replicator.server import Queries, server
from cdf_replicator.state.lease import Lease
from tests.support.waiting import until

ALONE = "this command starts Spark itself"


@contextmanager
def served(world):
    """Hold the lease and answer queries, as ``Supervisor`` does; gives the handler."""
    state, queries, board = world.state_path, Queries(), StatusStore()
    state.lease = Lease.acquire(state.root)
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, queries=queries)
    handler = QueryHandler(world.spark, lambda: world.settings, state)
    try:
        with queries.opened(handler, state):
            yield handler
    finally:
        running.stop()
        state.lease.release()


@pytest.fixture
def orders(prepared):
    return prepared(folder_and_replica)


def folder_and_replica(world):
    """Deliver a table with one refused row into a folder and a replica."""
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "files,replica",
        "CDF_SINKS__REPLICA__TYPE": "delta_replica",
        "CDF_SINKS__REPLICA__PATH": str(world.folder / "replica"),
    }
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    world.insert("(3, 'bad')")
    world.change("UPDATE {t} SET name = 'c' WHERE id = 2")
    for route in ("orders_files", "orders_replica"):
        assert world.run(route) is None


def compared(ended):
    """Return what a command printed, without what differs from one call to the next."""
    lines = [re.sub(r"^\S+Z ", "", line) for line in ended.log.splitlines() if ALONE not in line]
    output = re.sub(r"\d+ s, [\d,]+ rows/s|\"seconds\": [\d.]+", "TIME", ended.output)
    return ended.code, output, lines


def test_answer_of_a_service_equals_that_of_the_command_alone(orders, here):
    commands = [
        ("dead-letters", "list"),
        ("dead-letters", "list", "orders_files", "--all", "--format", "json"),
        ("dead-letters", "show", "ffffffff"),
        ("changes", "orders", "--from", "1"),
        ("changes", "orders", "--from-timestamp", "2000-01-01", "--format", "json", "--key", "2"),
        ("changes", "orders", "--from", "9"),
        ("replay", "orders", "--starting-version", "1", "--dry-run"),
        ("resync", "orders_files", "--dry-run"),
        ("verify", "orders_replica"),
        ("verify", "orders", "--format", "json"),
        ("validate",),
    ]
    alone = {words: here(orders.environ, *words) for words in commands}
    codes = {words[0]: set() for words in commands}
    with served(orders):
        for words in commands:
            ended = here(orders.environ, *words)
            assert ALONE in alone[words].log
            assert ALONE not in ended.log, words
            assert compared(ended) == compared(alone[words])
            codes[words[0]].add(ended.code)
    assert codes == {
        "dead-letters": {0, 1},
        "changes": {0, 1},
        "replay": {0},
        "resync": {0},
        "verify": {0, 75},
        "validate": {0},
    }


def test_a_command_with_another_configuration_starts_spark_itself(orders, here):
    other = orders.environ | {"CDF_ROUTES__ORDERS_FILES__FILTER": "id > 1"}
    with served(orders):
        for words, reason in (
            (("resync", "orders_files", "--dry-run"), "its configuration differs"),
            (("validate",), "its configuration differs"),
            (("changes", orders.table, "--from", "1"), "no such table"),
        ):
            ended = here(other, *words)
            assert ended.code == 0, ended.log
            assert ALONE in ended.log
            assert reason in ended.log
        same_route = here(other, "verify", "orders_replica")
        assert same_route.code == 0, same_route.log
        assert ALONE not in same_route.log
        orders.environ |= other  # as a reload does
        assert ALONE not in here(other, "resync", "orders_files", "--dry-run").log


def test_record_of_a_service_is_private_and_void_after_its_end(orders, here):
    path = orders.state_path.root / "service.json"
    with served(orders):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        left = path.read_text()
    assert not path.exists()
    path.write_text(left)  # as a killed service leaves it
    ended = here(orders.environ, "dead-letters", "list")
    assert ended.code == 0, ended.log
    assert ALONE in ended.log
    assert "no service holds the lease" in ended.log


def test_queries_are_limited_and_end_with_their_clients(orders):
    orders.environ |= {"CDF_SINKS__FILES__TYPE": "endless"}
    with served(orders) as handler:
        running = [handler.start(Verify(route="orders_files")) for _ in range(AT_ONCE)]
        until((orders.files / "viewed").exists)
        with pytest.raises(Exception, match=f"already answers {AT_ONCE} queries"):
            handler.start(Verify(route="orders_files"))
        running[0].cancel(30)
        assert not running[0].is_alive
        events = Answers(orders.settings, orders.settings.spark)._of_service(Verify(route="orders_files"))
        assert next(events).done >= 0
        events.close()
        until(lambda: not any(each.is_alive for each in handler._running[-1:]))
        running[1].cancel(30)
        events = handler.start(ListDeadLetters(route="orders_files", rows=True)).events()
        (letter,) = [value for event in events if isinstance(event, Values) for value in event.values]
        assert (letter["reason"], json.loads(letter["row"])) == ("the name is bad", {"id": 3, "name": "bad"})
    assert not any(each.is_alive for each in running)


def test_interrupted_answer_is_given_by_the_command_or_ends_it(orders, here, monkeypatch):
    """Before the first value the command continues alone; later it can't repeat what it has printed."""
    with served(orders) as handler:
        monkeypatch.setattr(
            "cdf_replicator.queries.handler.execute", lambda *_, **__: cut(handler, ["id"], *["{}"] * 200)
        )
        ended = here(orders.environ, "changes", "orders", "--from", "1", "--format", "json")
        assert ended.code == 75
        assert "The output is incomplete" in ended.log
    with served(orders) as handler:
        monkeypatch.setattr("cdf_replicator.queries.handler.execute", lambda *_, **__: cut(handler))
        ended = here(orders.environ, "changes", "orders", "--from", "1", "--format", "json")
        assert ended.code == 0, ended.log
        assert "the running service stopped" in ended.log
        assert [json.loads(line)["_commit_version"] for line in ended.output.splitlines()] == [1, 1, 2, 3, 3]


def cut(handler, *values):
    """Yield values, until the service stops."""
    yield from values
    with handler._lock:  # the query's thread may start before the handler knows the query
        handler._running[-1]._cancelled.set()
    yield "lost"
