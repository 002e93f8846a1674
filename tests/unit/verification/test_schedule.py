"""Comparisons beside the streams are spread over the period, and wait for a route that runs."""

from __future__ import annotations

import pytest

from cdf_replicator.monitoring.status import STATES, ReplayStatus, RouteStatus
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.verification.schedule import Schedule, restored
from tests.unit.boards import START

DAY = 86_400.0
ROUTES = ("a", "b", "c", "d")


def test_first_comparisons_are_spread_over_the_period():
    schedule = Schedule.spread(DAY, {}, dict.fromkeys(ROUTES, 1000))
    assert schedule.due == {"a": 1000, "b": 1000 + DAY / 4, "c": 1000 + DAY / 2, "d": 1000 + DAY * 3 / 4}


def test_restart_continues_the_period_of_a_route():
    schedule = Schedule.spread(DAY, {"a": 4.5 * DAY, "c": DAY}, {"b": 5 * DAY})
    assert schedule.due == {"a": 5.5 * DAY, "b": 5 * DAY, "c": 2 * DAY}


def test_restart_keeps_the_time_of_the_first_schedule(tmp_path):
    file = LocalPath(str(tmp_path / "route" / "verified.json"))
    times = [restored(file, now) for now in (1000.5, 1000.5 + DAY / 3, 1000.5 + 2 * DAY)]
    assert times == [(None, 1000.5)] * 3


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"7", b'{"scheduled": 5}', b'{"version": 1}', b"\xff"])
def test_unreadable_result_is_replaced_by_the_time_of_a_first_schedule(tmp_path, text):
    file = LocalPath(str(tmp_path / "verified.json"))
    file.write_bytes(text)
    assert [restored(file, now) for now in (1000, 2000)] == [(None, 1000)] * 2


def test_result_that_can_not_be_read_now_is_kept(tmp_path):
    (tmp_path / "verified.json").mkdir()  # an error of the storage
    assert restored(LocalPath(str(tmp_path / "verified.json")), 1000) == (None, 1000)


def test_ready_route_that_waits_for_the_longest_time_is_first():
    schedule = Schedule(DAY, {"a": 300, "b": 100, "c": 200})
    assert schedule.first_due(250, ROUTES[:3]) == "b"
    assert schedule.first_due(250, ["a", "c"]) == "c"
    assert schedule.first_due(250, ["a"]) is None
    assert schedule.first_due(250, []) is None


def test_compared_route_is_due_a_period_later():
    schedule = Schedule(DAY, {"a": 0, "b": 100})
    schedule.postpone("a", 7)
    assert schedule.due == {"a": 7 + DAY, "b": 100}


def test_route_without_a_period_is_never_due():
    schedule = Schedule(DAY, {"a": DAY})
    schedule.postpone("b", 7)
    assert schedule.due == {"a": DAY}
    assert schedule.first_due(9 * DAY, ["b"]) is None


@pytest.mark.parametrize("state", STATES)
def test_only_a_running_route_is_compared(state):
    route = RouteStatus("orders_search", "orders", "search", state, START, delivered_version=0)
    assert route.is_undisturbed is (state == "running")


@pytest.mark.parametrize("fields", [{"delivered_version": None}, {"delivered_version": -1}, {"replay": True}])
def test_route_without_a_delivery_or_in_a_replay_waits(fields):
    replay = ReplayStatus(1, 9, 0.5, START) if fields.pop("replay", False) else None
    given = {"delivered_version": 9, **fields}
    route = RouteStatus("orders_search", "orders", "search", "running", START, replay=replay, **given)
    assert not route.is_undisturbed
