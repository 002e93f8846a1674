"""How much a sink is sent: less when it is short of something, more again when it is well; never more than the limit."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdf_replicator.delivery import pressure as room
from cdf_replicator.delivery.pressure import LEAST, SLOW_SECONDS, Pressure, turn
from connectors import ArrowSettings, RetryableError, WriteResult
from tests.unit.test_delivery import Naps, always, inserts, sink, write

OVERLOADED = RetryableError("overloaded")


def pressure(**settings):
    return Pressure(ArrowSettings(type="memory", **settings))


def rows(count):
    return inserts([f"{number:03d}" for number in range(count)])


def test_a_refusal_halves_what_is_sent_at_once_and_the_rest_of_the_chunk_follows():
    memory = sink(always(OVERLOADED), chunk_rows=8)
    outcome = write(memory, rows(8))
    assert [len(keys) for keys in memory.writes] == [8, 4, 4]
    assert sorted(memory.writes[1] + memory.writes[2]) == memory.writes[0]
    assert outcome.applied == {"insert": 8}


def test_what_was_refused_in_part_is_sent_again_in_smaller_pieces():
    memory = sink(always(WriteResult(retry=[0, 2, 4, 5, 6, 7])), chunk_rows=8)
    write(memory, rows(8))
    assert memory.writes[1:] == [["000", "002", "004", "005"], ["006", "007"]]


def test_it_grows_back_step_by_step():
    memory = sink(always(OVERLOADED), chunk_rows=16)
    write(memory, rows(16 * 8))
    sizes = [len(keys) for keys in memory.writes]
    assert sizes[:4] == [16, 8, 8, 10]
    assert sizes[-2] == 16


def test_after_slow_answers_less_is_sent_but_no_less_than_a_quarter():
    slow = pressure()
    slow.taken(SLOW_SECONDS + 1)
    assert slow.share == 0.5
    for _ in range(10):
        slow.taken(SLOW_SECONDS + 1)
    assert slow.share == 0.25


def test_a_server_that_is_away_is_not_sent_less():
    away = pressure()
    away.refused(RetryableError("unreachable"))
    assert away.share == 1


def test_as_long_as_pieces_are_taken_there_is_time_to_try_the_next(naps):
    refused, fine = always(OVERLOADED), always(WriteResult())
    memory = sink(*[refused, refused, refused, fine] * 6, chunk_rows=4)
    outcome = write(memory, rows(8), sleep=naps, budget=7)
    assert sum(naps.taken) > 7
    assert (outcome.failure, outcome.applied) == (None, {"insert": 8})


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("reason", "times", "together"), [("overloaded", 1, 4), ("overloaded", 2, 1), ("timeout", 2, 4)]
)
def test_after_two_refusals_requests_go_one_at_a_time_from_this_machine(reason, times, together):
    under_way, most = [], []

    def write_once(_):
        asked = pressure()
        for _ in range(times):
            asked.refused(RetryableError(reason))
        with asked.room(sink()):
            under_way.append(1)
            most.append(len(under_way))
            time.sleep(0.2)
            under_way.pop()

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write_once, range(4)))
    assert max(most) == together


@given(st.lists(st.sampled_from(["good", "slow", "overloaded", "timeout"])))
def test_something_is_always_sent_and_never_more_than_the_bounds(answers):
    asked = pressure(chunk_rows=100)
    for answer in answers:
        if answer in {"good", "slow"}:
            asked.taken(0.1 if answer == "good" else SLOW_SECONDS * 2)
        else:
            asked.refused(RetryableError(answer))
        assert LEAST <= asked.share <= 1
        assert 1 <= asked.rows(rows(3)) <= 100


@pytest.fixture
def naps(monkeypatch):
    return Naps(monkeypatch)


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(room.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("place")
def test_without_a_limit_nobody_waits():
    assert turn(sink(), 1_000_000) == 0


@pytest.mark.usefixtures("place")
def test_turns_follow_each_other_at_the_limit():
    limited = sink(rows_per_second=100)
    waits = [turn(limited, 50) for _ in range(4)]
    assert waits == pytest.approx([0, 0.5, 1, 1.5], abs=0.2)


@pytest.mark.usefixtures("place")
def test_a_few_rows_take_the_time_of_a_few_rows():
    slept = []
    for _ in range(4):
        write(sink(rows_per_second=1000), rows(10), sleep=slept.append)
    assert sum(slept) < 0.2


@pytest.mark.usefixtures("place")
def test_all_writers_together_keep_the_limit():
    with ThreadPoolExecutor(4) as writers:
        waits = list(writers.map(lambda _: turn(sink(rows_per_second=1000), 100), range(40)))
    assert max(waits) == pytest.approx(3.9, abs=0.5)
    assert len({round(wait, 1) for wait in waits}) == 40


def test_without_a_place_to_take_turns_the_sink_is_tried_again_later(monkeypatch, tmp_path):
    monkeypatch.setattr(room.tempfile, "gettempdir", lambda: str(tmp_path / "absent"))
    outcome = write(sink(rows_per_second=100), rows(1))
    assert (outcome.failure.kind, outcome.failure.reason) == ("retryable", "unavailable")
    assert "absent" in outcome.failure.detail


def test_what_a_machine_left_before_it_was_started_again_is_forgotten(place):
    limited = sink(rows_per_second=100)
    turn(limited, 10)
    (file,) = place.iterdir()
    file.write_bytes(room.struct.pack("<d", time.monotonic() + 1e6))
    assert turn(limited, 10) == 0


@pytest.mark.usefixtures("place")
def test_a_chunk_is_no_larger_than_a_second_of_the_limit_and_waits_for_its_turn():
    memory, slept = sink(rows_per_second=4, chunk_rows=100), []
    write(memory, rows(12), sleep=slept.append)
    assert [len(keys) for keys in memory.writes] == [4, 4, 4]
    assert slept == pytest.approx([1, 2], abs=0.2)
