"""The history of a route: samples of the last hour and the last day, bounded in memory."""

from __future__ import annotations

import math
import tracemalloc
from datetime import timedelta

import pytest

from cdf_replicator.monitoring.history import SPANS, STEP_SECONDS
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.monitoring.totals import BatchStatus
from tests.unit.boards import START

ROUTE = "orders_search"
HOUR, DAY = SPANS


@pytest.fixture
def board(clock):
    board = StatusStore(clock)
    board.add_sink("search", "elasticsearch", "http://search:1")
    board.add_route(ROUTE, "orders", "search")
    return board


def deliver(board, at, rows, latency=None):
    batch = BatchStatus(1, (1, 1), {"insert": rows}, {}, "delivered", at, latency_seconds=latency)
    board.batch(ROUTE, batch)


def sample_for(board, clock, seconds):
    for _ in range(seconds // STEP_SECONDS):
        board.history.sample(board.snapshot())
        clock.tick(STEP_SECONDS)


def test_a_sample_holds_lag_rate_and_longest_latency(board, clock):
    board.update(
        ROUTE, source_version=2, delivered_version=1, oldest_undelivered_commit_at=START - timedelta(seconds=7)
    )
    deliver(board, clock.tick(1), 40, latency=0.5)
    deliver(board, clock.tick(1), 10, latency=1.5)
    board.history.sample(board.snapshot())
    clock.tick(STEP_SECONDS)
    board.history.sample(board.snapshot())
    hour = board.history.samples(ROUTE, HOUR)
    assert (hour.step, hour.until) == (STEP_SECONDS, (START + timedelta(seconds=STEP_SECONDS)).timestamp())
    assert (hour.lag, hour.rows, hour.latency) == ((9.0,), (10.0,), (1.5,))


def test_delivery_counts_once(board, clock):
    deliver(board, clock(), 50, latency=0.5)
    sample_for(board, clock, 20)
    hour = board.history.samples(ROUTE, HOUR)
    assert hour.rows == (10.0, 0.0, 0.0)
    assert hour.latency[0] == 0.5
    assert all(map(math.isnan, hour.latency[1:]))


def test_a_minute_of_the_day_is_the_worst_of_its_samples(board, clock):
    for _ in range(24):
        deliver(board, clock(), STEP_SECONDS, latency=0.25)
        board.update(
            ROUTE, source_version=2, delivered_version=1, oldest_undelivered_commit_at=START - timedelta(seconds=1)
        )
        board.history.sample(board.snapshot())
        clock.tick(STEP_SECONDS)
    day = board.history.samples(ROUTE, DAY)
    assert (day.lag, day.rows, day.latency) == ((56.0,), (1.0,), (0.25,))


def test_history_is_bounded_and_keeps_the_newest(board, clock):
    sample_for(board, clock, HOUR)
    deliver(board, clock(), 500)
    sample_for(board, clock, HOUR)
    hour = board.history.samples(ROUTE, HOUR)
    assert len(hour.rows) == HOUR // STEP_SECONDS
    assert hour.rows[0] == 0.0
    assert max(board.history.samples(ROUTE, DAY).rows) == pytest.approx(500 / 60)


def test_a_route_needs_little_memory(board, clock):
    tracemalloc.start()
    try:
        for number in range(50):
            board.add_route(f"r{number}", "orders", "search")
        before = tracemalloc.get_traced_memory()[0]
        sample_for(board, clock, 60)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / 51 < 30_000


@pytest.mark.parametrize("seconds", [3 * STEP_SECONDS, -3 * STEP_SECONDS, 10 * DAY, -10 * DAY])
def test_a_pause_or_a_changed_clock_leaves_a_gap(board, clock, seconds):
    sample_for(board, clock, 60)
    clock.tick(seconds)
    deliver(board, clock(), 5 * STEP_SECONDS)
    sample_for(board, clock, 2 * STEP_SECONDS)
    hour = board.history.samples(ROUTE, HOUR)
    assert len(hour.rows) <= HOUR // STEP_SECONDS
    if seconds > HOUR or seconds < -HOUR:
        assert hour.rows == (5.0,)
    elif seconds > 0:
        assert [math.isnan(rate) for rate in hour.rows] == [False] * 12 + [True] * 3 + [False]
    else:
        assert max(hour.rows) == 5.0


def test_a_removed_route_leaves_the_history(board, clock):
    board.add_route("other", "orders", "search")
    sample_for(board, clock, 20)
    del board._routes["other"]
    board.history.sample(board.snapshot())
    assert board.history.samples("other", HOUR).rows == ()
    board.add_route("other", "orders", "search")
    sample_for(board, clock, 10)
    assert len(board.history.samples("other", HOUR).rows) == 1, "a route of the same name begins again"


def test_a_restarted_route_counts_no_row_twice_and_none_below_zero(board, clock):
    deliver(board, clock(), 100)
    sample_for(board, clock, 10)
    board.add_route(ROUTE, "orders", "search")  # what a reload does to a changed route
    deliver(board, clock(), 25)
    sample_for(board, clock, 10)
    assert board.history.samples(ROUTE, HOUR).rows == (20.0, 0.0, 5.0)


def test_unknown_route_has_no_samples(board):
    assert board.history.samples("absent", HOUR).lag == ()


def test_samples_are_evenly_spaced(board, clock):
    sample_for(board, clock, 600)
    first, second = (board.history.samples(ROUTE, span) for span in (HOUR, DAY))
    assert len(first.rows) == 119
    assert len(second.rows) == 9
