"""The worker sends chunks, reports results and retries; the sinks are in memory."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from pydantic import Field

from cdf_replicator.delivery import RetryPolicy, worker
from cdf_replicator.delivery.back_pressure import BackPressure
from cdf_replicator.delivery.result import DeliveryBugError, DeliveryResult, RejectedRow
from connectors import (
    ArrowSettings,
    ArrowSink,
    PermanentError,
    Rejected,
    RetryableError,
    RouteOptions,
    RouteSpec,
    Watermark,
    WriteResult,
)

ROUTE = RouteSpec("orders_memory", "orders", ("id",), RouteOptions(), "us", 1)


class MemorySink(ArrowSink):
    """``answers``: for each write, a function of the keys it got, giving a result or an exception to raise."""

    Settings, mode = ArrowSettings, "upsert"

    def __init__(self, settings, *answers, opens=()):
        super().__init__(settings)
        self.answers = list(answers)
        self.opens = list(opens)
        self.writes = []
        self.opened = 0

    def target(self, route):
        return "memory"

    def check(self):
        pass

    def read_claim(self, route):
        return None

    def prepare(self, schema, route):
        return ()

    def render(self, schema, route):
        return []

    def open(self, route):
        self.opened += 1
        if self.opens and (error := self.opens.pop(0)):
            raise error

    def write(self, chunk):
        keys = chunk.column("key").to_pylist()
        self.writes.append(keys)
        answer = self.answers.pop(0)(keys) if self.answers else WriteResult()
        if isinstance(answer, Exception):
            raise answer
        return answer


class AppendingSink(MemorySink):
    mode = "append"


def sink(*answers, kind=MemorySink, opens=(), **settings):
    return kind(ArrowSettings(type="memory", **settings), *answers, opens=opens)


def batch(*rows):
    """Rows of (key, guard, change type)."""
    keys, guards, types = ([row[i] for row in rows] for i in range(3))
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.string()), "guard": pa.array(guards, pa.int64()), "change_type": types}
    )


def inserts(keys):
    return batch(*((key, 100 + number, "insert") for number, key in enumerate(keys)))


class Naps:
    """Time that passes only by sleeping."""

    def __init__(self, monkeypatch):
        self.taken = []
        self.now = 1000.0
        monkeypatch.setattr("tenacity.time.monotonic", lambda: self.now)
        monkeypatch.setattr(RetryPolicy, "backoff", lambda policy, attempt: float(attempt))

    def __call__(self, seconds):
        self.taken.append(seconds)
        self.now += seconds


@pytest.fixture
def naps(monkeypatch):
    return Naps(monkeypatch)


def write(to, *batches, sleep=None, budget=30.0, pressure=None, clock=lambda: 0.0):
    policy, pressure = RetryPolicy(budget_seconds=budget), pressure or BackPressure(to.settings)
    return worker.write_partition(to, pressure, ROUTE, policy, iter(batches), sleep or (lambda _: None), clock=clock)


def always(result):
    return lambda keys: result


def test_batch_of_a_snapshot_gets_the_guard_and_type():
    memory = sink(always(WriteResult(rejected=[Rejected(1, "bad", "why")])))
    rows = pa.RecordBatch.from_pydict({"key": pa.array(["a", "b", None]), "line": ["x", "y", "z"]})
    chunks, memory.write = [], lambda chunk, write=memory.write: (chunks.append(chunk), write(chunk))[1]
    (answer,) = worker.partition_function(memory, ROUTE, RetryPolicy(), 1, snapshot_guard=7)(iter([rows]))
    outcome = DeliveryResult.from_json(answer.column("outcome")[0].as_py())
    assert chunks[0].to_pydict() == {
        "key": ["a", "b"], "guard": [7, 7], "change_type": ["snapshot", "snapshot"], "line": ["x", "y"]
    }  # fmt: skip
    assert +outcome.applied == {"snapshot": 1}
    assert sorted((letter.key or "", letter.guard) for letter in outcome.letters) == [("", 7), ("b", 7)]


def test_other_positions_count_as_applied_by_change_type():
    rows = [
        ("a", 3, "insert"),
        ("b", 2, "delete"),
        ("c", 5, "update_postimage"),
        ("d", 5, "insert"),
        ("e", 5, "insert"),
    ]
    outcome = write(sink(always(WriteResult(stale=[0], noop=[1], sent_bytes=77))), batch(*rows))
    assert +outcome.applied == {"update_postimage": 1, "insert": 2}
    assert (outcome.stale, outcome.noop, outcome.sent_bytes, outcome.changes) == (1, 1, 77, 5)
    assert outcome.failure is None
    assert len(outcome.request_seconds) == 1


def test_watched_keys_are_reported_unless_they_were_refused():
    refusing = sink(always(WriteResult(rejected=[Rejected(1, "bad", "it is bad")])))
    rows = batch(("a", 3, "insert"), ("b", 4, "insert"), ("c", 5, "delete"), ("d", 6, "insert"), (None, 7, "insert"))
    result = worker.write_partition(
        refusing,
        BackPressure(refusing.settings),
        ROUTE,
        RetryPolicy(),
        iter([rows]),
        known=frozenset({"a", "b", "c", "elsewhere"}),
    )
    assert DeliveryResult.from_json(result.to_json()).met == {"a": 3, "c": 5}


def test_empty_batch_opens_no_sink():
    memory = sink()
    outcome = write(memory, inserts(""))
    assert (memory.opened, memory.writes, outcome.changes) == (0, [], 0)


def test_a_sink_is_opened_once_for_all_chunks_of_a_task():
    memory = sink(chunk_rows=2)
    write(memory, inserts("abc"), inserts("de"))
    assert memory.opened == 1
    assert memory.writes == [["a", "b"], ["c"], ["d", "e"]]


def test_chunks_are_cut_by_bytes_too():
    memory = sink(chunk_bytes=1000)
    rows = inserts(["x" * 200 + str(number) for number in range(12)])
    write(memory, rows)
    assert len(memory.writes) > 2
    assert list(itertools.chain(*memory.writes)) == rows.column("key").to_pylist()
    assert all(sum(map(len, keys)) <= 1000 for keys in memory.writes)


def test_row_above_chunk_bytes_is_sent_alone():
    memory = sink(chunk_bytes=1000)
    write(memory, inserts(["x" * 3000, "y" * 3000]))
    assert [len(keys) for keys in memory.writes] == [1, 1]


def test_an_unreachable_sink_is_tried_again_and_each_try_is_counted(naps):
    memory = sink(always(RetryableError("unreachable")), always(RetryableError("timeout")))
    outcome = write(memory, inserts("a"), sleep=naps)
    assert memory.writes == [["a"], ["a"], ["a"]]
    assert naps.taken == [1.0, 2.0]
    assert outcome.retries == {"unreachable": 1, "timeout": 1}
    assert outcome.applied == {"insert": 1}
    assert len(outcome.request_seconds) == 3


def test_the_budget_ends_the_tries_and_the_failure_is_a_value(naps):
    memory = sink(*[always(RetryableError("overloaded", "queue full"))] * 100)
    outcome = write(memory, inserts("a"), sleep=naps, budget=10)
    assert sum(naps.taken) <= 10 + 5
    assert len(memory.writes) == len(naps.taken) + 1
    assert (outcome.failure.kind, outcome.failure.reason, outcome.failure.detail) == (
        "retryable",
        "overloaded",
        "queue full",
    )
    with pytest.raises(RetryableError, match="overloaded: queue full"):
        outcome.raise_failure()


def test_each_chunk_has_its_own_retry_budget(naps):
    away = always(RetryableError("unreachable"))
    fine = always(WriteResult())
    memory = sink(away, away, away, fine, away, away, away, fine, chunk_rows=1)
    outcome = write(memory, inserts("ab"), sleep=naps, budget=7)
    assert outcome.failure is None
    assert outcome.applied == {"insert": 2}


def test_retry_after_of_server_is_respected(naps):
    memory = sink(
        always(RetryableError("overloaded", retry_after=7.5)), always(RetryableError("overloaded", retry_after=0.1))
    )
    write(memory, inserts("a"), sleep=naps)
    assert naps.taken == [7.5, 2.0]


def test_wait_follows_the_policy_without_retry_after(naps, monkeypatch):
    monkeypatch.setattr(RetryPolicy, "backoff", lambda policy, attempt: attempt / 4)
    write(sink(*[always(RetryableError("overloaded"))] * 3), inserts("a"), sleep=naps)
    assert naps.taken == [0.25, 0.5, 0.75]


def test_waits_double_up_to_the_longest(monkeypatch):
    monkeypatch.setattr("random.uniform", lambda least, most: (least, most))
    waits = [RetryPolicy(first_seconds=0.5, cap_seconds=7).backoff(attempt) for attempt in range(1, 6)]
    assert waits == [(0, 1), (0, 2), (0, 4), (0, 7), (0, 7)]


def test_requested_wait_beyond_the_budget_delays_the_batch(naps):
    """A worker that slept for minutes could not be stopped; the route waits instead."""
    memory = sink(always(RetryableError("overloaded", "busy", retry_after=600)))
    outcome = write(memory, inserts("a"), sleep=naps, budget=30)
    assert naps.taken == []
    assert outcome.failure.kind == "retryable"


def test_only_positions_to_send_again_are_sent_again(naps):
    memory = sink(
        always(WriteResult(retry=[1, 3], stale=[0], retry_after=4.0, retry_reason="conflict")),
        always(WriteResult(retry=[1])),
        always(WriteResult(noop=[0])),
    )
    rows = batch(("a", 1, "insert"), ("b", 1, "insert"), ("c", 1, "delete"), ("d", 0, "delete"))
    outcome = write(memory, rows, sleep=naps)
    assert memory.writes == [["a", "b", "c", "d"], ["b", "d"], ["d"]]
    assert naps.taken == [4.0, 2.0]
    assert outcome.retries == {"conflict": 1, "overloaded": 1}
    assert +outcome.applied == {"insert": 1, "delete": 1}
    assert (outcome.stale, outcome.noop, outcome.changes) == (1, 1, 4)


def test_positions_never_accepted_are_a_failure_that_counts_applied_changes(naps):
    memory = sink(*[always(WriteResult(retry=[0]))] * 50)
    outcome = write(memory, inserts("a"), sleep=naps, budget=5)
    assert outcome.failure.kind == "retryable"
    assert outcome.failure.detail == "1 changes"
    assert outcome.changes == 0


def test_a_rejected_change_becomes_a_letter_with_its_own_key_and_guard(naps):
    memory = sink(
        always(WriteResult(retry=[1, 2], rejected=[Rejected(3, "mapping", "not a date")])),
        always(WriteResult(rejected=[Rejected(1, "too_long", "key")])),
    )
    rows = batch(("a", 11, "insert"), ("b", 13, "insert"), ("c", 15, "insert"), ("d", 17, "insert"))
    outcome = write(memory, rows, sleep=naps)
    assert outcome.letters == [RejectedRow("d", 17, "mapping", "not a date"), RejectedRow("c", 15, "too_long", "key")]
    assert outcome.rejected == {"mapping": 1, "too_long": 1}
    assert +outcome.applied == {"insert": 2}


def test_letters_of_a_sliced_chunk_are_of_that_chunk():
    memory = sink(always(WriteResult()), always(WriteResult(rejected=[Rejected(0, "bad", "")])), chunk_rows=2)
    outcome = write(memory, inserts("abcd"))
    assert outcome.letters == [RejectedRow("c", 102, "bad", "")]


def test_letters_beyond_the_most_are_only_counted(monkeypatch):
    monkeypatch.setattr("cdf_replicator.delivery.result.MOST_LETTERS", 2)
    memory = sink(lambda keys: WriteResult(rejected=[Rejected(i, "bad", "") for i in range(len(keys))]))
    outcome = write(memory, batch((None, 1, "insert"), ("a", 1, "insert"), ("b", 1, "insert"), ("c", 1, "insert")))
    assert len(outcome.letters) == 2
    assert outcome.rejected == {"null_key": 1, "bad": 3}


def test_a_row_without_a_key_never_reaches_an_upsert_sink():
    memory = sink(always(WriteResult(rejected=[Rejected(1, "bad", "")])))
    outcome = write(memory, batch((None, 5, "insert"), ("a", 7, "insert"), (None, 9, "insert"), ("b", 11, "insert")))
    assert memory.writes == [["a", "b"]]
    assert [(x.key, x.guard, x.code) for x in outcome.letters] == [
        (None, 5, "null_key"),
        (None, 9, "null_key"),
        ("b", 11, "bad"),
    ]
    assert outcome.rejected == {"null_key": 2, "bad": 1}


def test_several_rows_of_a_key_are_a_letter_beside_the_written_change():
    memory = sink()
    reduced = batch(("twice", 10, "delete"), ("moved on", 13, "insert"), ("a", 7, "insert"))
    doubled = pa.array([11, 11, None], pa.int64())
    outcome = write(memory, reduced.append_column("doubled", doubled))
    assert memory.writes == [["twice", "moved on", "a"]]
    assert [(x.key, x.guard, x.code) for x in outcome.letters] == [
        ("twice", 11, "duplicate_key"),
        ("moved on", 11, "duplicate_key"),
    ]


def test_a_row_without_a_key_does_reach_an_append_sink():
    memory = sink(kind=AppendingSink)
    outcome = write(memory, batch((None, 5, "insert"), ("a", 7, "insert")))
    assert memory.writes == [[None, "a"]]
    assert outcome.letters == []


def test_a_permanent_error_is_a_value_and_nothing_more_is_written():
    memory = sink(always(WriteResult()), always(PermanentError("No such index.", "Create it.")), chunk_rows=1)
    outcome = write(memory, inserts("abc"))
    assert memory.writes == [["a"], ["b"]]
    assert outcome.applied == {"insert": 1}
    with pytest.raises(PermanentError) as raised:
        outcome.raise_failure()
    assert (raised.value.reason, raised.value.hint) == ("No such index.", "Create it.")


def test_a_bug_of_a_sink_is_a_value_with_its_traceback():
    memory = sink(always(ZeroDivisionError("oops")))
    outcome = write(memory, inserts("a"))
    assert (outcome.failure.kind, outcome.failure.reason) == ("bug", "ZeroDivisionError: oops")
    assert "test_delivery.py" in outcome.failure.detail
    assert memory.writes == [["a"]], "a bug is not tried again"
    with pytest.raises(DeliveryBugError, match="ZeroDivisionError: oops"):
        outcome.raise_failure()


def test_position_out_of_range_is_a_bug():
    outcome = write(sink(always(WriteResult(stale=[5]))), inserts("a"))
    assert outcome.failure.kind == "bug"


def test_opening_is_tried_again_too(naps):
    memory = sink(opens=[RetryableError("unreachable"), None])
    outcome = write(memory, inserts("a"), sleep=naps)
    assert memory.opened == 2
    assert outcome.retries == {"unreachable": 1}
    assert outcome.applied == {"insert": 1}


def test_a_sink_that_can_not_be_opened_is_a_failure():
    outcome = write(sink(opens=[PermanentError("Wrong password.", "Correct it.")]), inserts("a"))
    assert outcome.failure.reason == "Wrong password."


class MappedSettings(ArrowSettings):
    headers: dict[str, str] = Field(default_factory=dict)


def test_a_task_yields_one_outcome_and_keeps_its_sink_for_the_next(monkeypatch):
    monkeypatch.setattr(worker, "_open_sinks", {})
    settings = MappedSettings(type="memory", headers={"a": "b"})
    first, second = (AppendingSink(pickle.loads(pickle.dumps(settings))) for _ in range(2))
    for copy in (first, second):
        (answer,) = worker.partition_function(copy, ROUTE, RetryPolicy(), 1)(iter([inserts("a")]))
        (text,) = answer.column("outcome").to_pylist()
        assert DeliveryResult.from_json(text).applied == {"insert": 1}
    assert (len(first.writes), len(second.writes)) == (2, 0), "the open one is used again"


@pytest.mark.parametrize(
    ("other", "route", "shared"),
    [
        (AppendingSink, replace(ROUTE, watermark=Watermark(1, 2, 3)), True),
        (AppendingSink, replace(ROUTE, name="customers_memory"), False),
        (MemorySink, ROUTE, False),
    ],
)
def test_worker_shares_an_open_sink_between_batches_of_a_route_only(monkeypatch, other, route, shared):
    monkeypatch.setattr(worker, "_open_sinks", {})
    settings = ArrowSettings(type="memory")
    first, second = AppendingSink(settings), other(settings)
    for copy, of in ((first, ROUTE), (second, route)):
        list(worker.partition_function(copy, of, RetryPolicy(), 1)(iter([inserts("a")])))
    assert (len(first.writes), len(second.writes)) == ((2, 0) if shared else (1, 1))


class ClosedSink(MemorySink):
    """Counts how often it was closed; the server no longer answers."""

    closed = 0

    def close(self):
        self.closed += 1
        raise ConnectionResetError


@pytest.mark.parametrize(("of", "run"), [(ROUTE, 2), (replace(ROUTE, epoch=2), 1)])
def test_worker_closes_the_sink_of_a_former_run_or_epoch(monkeypatch, of, run):
    monkeypatch.setattr(worker, "_open_sinks", {})
    settings = ArrowSettings(type="memory")
    first, second, third = (ClosedSink(settings) for _ in range(3))
    for copy, route, number in ((first, ROUTE, 1), (second, of, run), (third, of, run)):
        (answer,) = worker.partition_function(copy, route, RetryPolicy(), number)(iter([inserts("a")]))
        assert DeliveryResult.from_json(answer.column("outcome")[0].as_py()).failure is None
    assert [len(each.writes) for each in (first, second, third)] == [1, 2, 0]
    assert [each.closed for each in (first, second, third)] == [1, 0, 0]


@pytest.mark.parametrize(("rows", "kept"), [(100, True), (50, False)])
def test_smaller_chunks_of_a_former_run_remain_for_the_same_settings(monkeypatch, rows, kept):
    monkeypatch.setattr(worker, "_open_sinks", {})
    busy = sink(always(RetryableError("overloaded")), chunk_rows=100)
    list(worker.partition_function(busy, ROUTE, RetryPolicy(budget_seconds=0), 1)(iter([inserts("a" * 100)])))
    later = sink(chunk_rows=rows)
    list(worker.partition_function(later, ROUTE, RetryPolicy(), 2)(iter([inserts("a" * 100)])))
    assert (len(later.writes[0]) < rows) is kept


def test_task_reports_the_watched_keys_that_it_wrote(monkeypatch):
    monkeypatch.setattr(worker, "_open_sinks", {})
    (result,) = worker.partition_function(sink(), ROUTE, RetryPolicy(), 1, known=["b", "z"])(iter([inserts("ab")]))
    assert DeliveryResult.from_json(result.column("outcome")[0].as_py()).met == {"b": 101}


def test_task_opens_the_sink_for_its_route(monkeypatch):
    monkeypatch.setattr(worker, "_open_sinks", {})
    routes = []
    monkeypatch.setattr(MemorySink, "open", lambda self, route: routes.append(route))
    list(worker.partition_function(sink(), ROUTE, RetryPolicy(), 1)(iter([inserts("a")])))
    assert routes == [ROUTE]


def test_counts_and_times_of_all_chunks_are_summed():
    noop = WriteResult(noop=[0], sent_bytes=7)
    outcome = write(sink(lambda _: noop, lambda _: noop, chunk_rows=1), inserts("ab"))
    assert (outcome.noop, outcome.sent_bytes, outcome.request_seconds) == (2, 14, [0.0, 0.0])


def test_failure_keeps_the_wait_that_the_server_requested():
    busy = RetryableError("overloaded", retry_after=9.0)
    assert write(sink(lambda _: busy), inserts("a"), budget=0).failure.retry_after == 9


def test_batch_without_a_valid_key_does_not_end_the_task():
    memory = sink()
    outcome = write(memory, batch((None, 1, "insert")), inserts("a"))
    assert (memory.writes, outcome.rejected) == ([["a"]], {"null_key": 1})
