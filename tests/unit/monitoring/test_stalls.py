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


def test_it_has_stalled_once_nothing_has_moved_for_so_long(standstill, clock):
    assert not standstill.is_stalled(at(3), delivers=False)
    clock.now += 9
    assert not standstill.is_stalled(at(3), delivers=False)
    clock.now += 1
    assert standstill.is_stalled(at(3), delivers=False)


@pytest.mark.parametrize("moved", [at(4), at(3, batches=2), at(3, job=2), at(3, tasks=1), None])
def test_whatever_moves_gives_it_as_much_time_again(standstill, clock, moved):
    standstill.is_stalled(at(3), delivers=False)
    clock.now += 9
    standstill.is_stalled(moved, delivers=True)
    clock.now += 9
    assert not standstill.is_stalled(moved, delivers=True)


def test_with_nothing_to_do_it_never_stalls(standstill, clock):
    for _ in range(3):
        clock.now += 100
        assert not standstill.is_stalled(None, delivers=False)


def test_a_slow_trigger_is_waited_for_twice(clock):
    assert StallDetector(10, 30, lambda: clock.now).seconds == 60


def test_a_new_begin_counts_until_a_micro_batch_is_committed(standstill):
    standstill.is_stalled(at(3), delivers=False)
    standstill.mark_restarted()
    standstill.is_stalled(at(3, batches=2), delivers=False)
    assert standstill.restarted
    standstill.is_stalled(at(3, batches=2), delivers=True)
    assert not standstill.restarted
