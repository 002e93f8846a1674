"""How much a sink is sent: less when it is short of something, more again when it is well; never more than the limit."""

from __future__ import annotations

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdf_replicator.delivery import back_pressure
from cdf_replicator.delivery.back_pressure import MIN_SHARE, SLOW_SECONDS, BackPressure, rate_limit_delay
from connectors import ArrowSettings, RetryableError, WriteResult
from tests.unit.delivery.test_delivery import Naps, always, inserts, sink, write

OVERLOADED = RetryableError("overloaded")
START = 1000.0


def start():
    """A clock on which no time passes."""
    return START


def pressure(**settings):
    return BackPressure(ArrowSettings(type="memory", **settings))


def rows(count):
    return inserts([f"{number:03d}" for number in range(count)])


def test_refusal_halves_the_request_and_the_rest_of_the_chunk_follows():
    memory = sink(always(OVERLOADED), chunk_rows=8)
    outcome = write(memory, rows(8))
    assert [len(keys) for keys in memory.writes] == [8, 4, 4]
    assert sorted(memory.writes[1] + memory.writes[2]) == memory.writes[0]
    assert outcome.applied == {"insert": 8}


def test_partly_refused_changes_are_sent_again_in_smaller_pieces():
    memory = sink(always(WriteResult(retry=[0, 2, 4, 5, 6, 7])), chunk_rows=8)
    write(memory, rows(8))
    assert memory.writes[1:] == [["000", "002", "004", "005"], ["006", "007"]]


def test_request_size_grows_back_step_by_step():
    memory = sink(always(OVERLOADED), chunk_rows=16)
    write(memory, rows(16 * 8))
    sizes = [len(keys) for keys in memory.writes]
    assert sizes[:4] == [16, 8, 8, 10]
    assert sizes[-2] == 16


def test_slow_responses_reduce_share_to_a_quarter_at_most():
    slow = pressure()
    slow.on_success(SLOW_SECONDS + 1)
    assert slow.share == 0.5
    for _ in range(10):
        slow.on_success(SLOW_SECONDS + 1)
    assert slow.share == 0.25


def test_unreachable_server_keeps_the_share():
    away = pressure()
    away.on_refused(RetryableError("unreachable"))
    assert away.share == 1


def test_every_accepted_piece_renews_the_time_for_the_next(naps):
    refused, fine = always(OVERLOADED), always(WriteResult())
    memory = sink(*[refused, refused, refused, fine] * 6, chunk_rows=4)
    outcome = write(memory, rows(8), sleep=naps, budget=7)
    assert sum(naps.taken) > 7
    assert (outcome.failure, outcome.applied) == (None, {"insert": 8})


def refused(reason, times):
    limited = pressure()
    for _ in range(times):
        limited.on_refused(RetryableError(reason))
    return limited


@pytest.mark.parametrize(("reason", "times"), [("overloaded", 1), ("timeout", 2)])
def test_requests_stay_concurrent_after_one_refusal_or_after_timeouts(place, reason, times):
    together = threading.Barrier(4, timeout=60)

    def request(_):
        with refused(reason, times).slot(sink()):
            together.wait()

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(request, range(4)))
    assert list(place.iterdir()) == []


def test_requests_of_machine_are_serialized_after_two_refusals(place):
    sent = threading.Event()

    def request():
        with refused("overloaded", 2).slot(sink()):
            sent.set()

    with ThreadPoolExecutor(1) as another:
        with refused("overloaded", 2).slot(sink()):
            waiting = another.submit(request)
            (file,) = place.iterdir()
            with file.open() as shared, pytest.raises(BlockingIOError):
                fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert not sent.is_set()
        waiting.result(60)
    assert sent.is_set()


@given(st.lists(st.sampled_from(["good", "slow", "overloaded", "timeout"])))
def test_batch_rows_stay_between_one_and_the_bounds(answers):
    limited = pressure(chunk_rows=100)
    for answer in answers:
        if answer in {"good", "slow"}:
            limited.on_success(0.1 if answer == "good" else SLOW_SECONDS * 2)
        else:
            limited.on_refused(RetryableError(answer))
        assert MIN_SHARE <= limited.share <= 1
        assert 1 <= limited.batch_rows(rows(3)) <= 100


@pytest.fixture
def naps(monkeypatch):
    return Naps(monkeypatch)


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(back_pressure.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("place")
def test_writes_do_not_wait_without_a_limit():
    assert rate_limit_delay(sink(), 1_000_000, start) == 0


@pytest.mark.usefixtures("place")
def test_slots_follow_each_other_at_the_limit():
    limited = sink(rows_per_second=100)
    assert [rate_limit_delay(limited, 50, start) for _ in range(4)] == pytest.approx([0, 0.5, 1, 1.5])
    assert rate_limit_delay(limited, 50, lambda: START + 1.25) == pytest.approx(0.75), (
        "the time that has passed is not waited again"
    )
    assert rate_limit_delay(limited, 50, lambda: START + 60) == 0


@pytest.mark.usefixtures("place")
def test_delay_is_proportional_to_rows():
    slept = []
    for _ in range(4):
        write(sink(rows_per_second=1000), rows(10), sleep=slept.append)
    assert slept == pytest.approx([0.01, 0.02, 0.03])


@pytest.mark.usefixtures("place")
def test_all_writers_share_the_limit():
    with ThreadPoolExecutor(4) as writers:
        waits = list(writers.map(lambda _: rate_limit_delay(sink(rows_per_second=1000), 100, start), range(40)))
    assert sorted(waits) == pytest.approx([number / 10 for number in range(40)])


def test_unwritable_lock_file_is_a_retryable_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(back_pressure.tempfile, "gettempdir", lambda: str(tmp_path / "absent"))
    outcome = write(sink(rows_per_second=100), rows(1))
    assert (outcome.failure.kind, outcome.failure.reason) == ("retryable", "unavailable")
    assert "absent" in outcome.failure.detail


def test_files_from_before_a_machine_restart_are_ignored(place):
    limited = sink(rows_per_second=100)
    rate_limit_delay(limited, 10, start)
    (file,) = place.iterdir()
    file.write_bytes(back_pressure.struct.pack("<d", START + 1e6))
    assert rate_limit_delay(limited, 10, start) == 0


@pytest.mark.usefixtures("place")
def test_chunk_is_at_most_a_second_of_the_limit_and_waits():
    memory, slept = sink(rows_per_second=4, chunk_rows=100), []
    write(memory, rows(12), sleep=slept.append)
    assert [len(keys) for keys in memory.writes] == [4, 4, 4]
    assert slept == pytest.approx([1, 2])


def test_slow_response_halves_next_chunk():
    seconds = iter([0.0, SLOW_SECONDS + 1, *[SLOW_SECONDS + 1] * 4])
    memory = sink(chunk_rows=8)
    write(memory, rows(16), clock=lambda: next(seconds))
    assert [len(keys) for keys in memory.writes] == [8, 4, 4]
