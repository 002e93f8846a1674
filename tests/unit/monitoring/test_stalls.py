"""When a query counts as stalled."""

from types import SimpleNamespace

import pytest

from cdf_replicator.monitoring.stalls import QueryActivity, StallDetector


@pytest.fixture
def clock():
    return SimpleNamespace(now=100.0)


@pytest.fixture
def standstill(clock):
    return StallDetector(10, 1, lambda: clock.now)


def at(delivered, batches=1, job=1, tasks=0):
    return QueryActivity(delivered, batches, job, tasks)


def test_query_stalls_after_the_time_without_movement(standstill, clock):
    assert not standstill.is_stalled(at(3), delivers=False)
    clock.now += 9
    assert not standstill.is_stalled(at(3), delivers=False)
    clock.now += 1
    assert standstill.is_stalled(at(3), delivers=False)


@pytest.mark.parametrize("moved", [at(4), at(3, batches=2), at(3, job=2), at(3, tasks=1), None])
def test_every_movement_restarts_the_time(standstill, clock, moved):
    standstill.is_stalled(at(3), delivers=False)
    clock.now += 9
    standstill.is_stalled(moved, delivers=True)
    clock.now += 9
    assert not standstill.is_stalled(moved, delivers=True)


def test_idle_query_never_stalls(standstill, clock):
    for _ in range(3):
        clock.now += 100
        assert not standstill.is_stalled(None, delivers=False)


def test_progress_is_compared_twenty_times_in_the_limit(standstill, clock):
    compared = 0
    for _ in range(40):
        compared += standstill.is_due()
        clock.now += 0.25
    assert compared == 20


def test_slow_trigger_has_two_intervals_before_a_stall(clock):
    assert StallDetector(10, 30, lambda: clock.now).seconds == 60


def test_restart_counts_until_a_micro_batch_is_committed(standstill):
    standstill.is_stalled(at(3), delivers=False)
    standstill.mark_restarted()
    standstill.is_stalled(at(3, batches=2), delivers=False)
    assert standstill.restarted
    standstill.is_stalled(at(3, batches=2), delivers=True)
    assert not standstill.restarted
