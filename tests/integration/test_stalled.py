"""A query that runs without progress is detected, restarted once, and reported as stalled."""

from __future__ import annotations

import pytest

from tests.support.waiting import until

WITHIN = 60


@pytest.fixture
def stuck(world, live, monkeypatch):
    """A live route whose sink hangs in the middle of a micro-batch, which counts as stalled after two seconds."""
    world.environ["CDF_DELIVERY__STALL_SECONDS"] = "2"
    world.create(rows=["(1, 'a')"])
    live("orders_files")
    until(lambda: world.delivered() == world.expected(), WITHIN)
    world.trouble("hang")
    world.insert("(2, 'b')")
    yield world
    world.trouble(None)


def route(world):
    return world.board.snapshot().routes[0]


def wait(world, state, restarts):
    until(lambda: (route(world).state, route(world).restarts) == (state, restarts), WITHIN)


def test_stalled_query_restarts_once_then_is_reported_until_it_moves(stuck):
    wait(stuck, "stalled", 1)
    until(lambda: "nothing has moved for 2 s" in route(stuck).reason, WITHIN)
    assert route(stuck).last_error.condition == "stalled"
    assert route(stuck).restarts == 1
    stuck.trouble(None)
    wait(stuck, "running", 1)
    until(lambda: stuck.delivered() == stuck.expected(), WITHIN)


def test_query_that_moved_restarts_again_after_another_stall(stuck):
    wait(stuck, "stalled", 1)
    stuck.trouble(None)
    until(lambda: route(stuck).delivered_version == 2, WITHIN)
    wait(stuck, "running", 1)
    stuck.trouble("hang")
    stuck.insert("(3, 'c')")
    wait(stuck, "stalled", 2)
    stuck.trouble(None)
    wait(stuck, "running", 2)


def test_a_route_with_nothing_to_do_does_not_count_as_stalled(world, live):
    world.environ["CDF_DELIVERY__STALL_SECONDS"] = "1"
    world.create(rows=["(1, 'a')"])
    live("orders_files")
    until(lambda: world.delivered() == world.expected(), WITHIN)
    with pytest.raises(AssertionError):
        until(lambda: route(world).state == "stalled", 4)
