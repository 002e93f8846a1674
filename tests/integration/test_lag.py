"""The lag and the headroom of a route are reported when they matter: in an outage, and when history is lost."""

from __future__ import annotations

import math

from tests.support.waiting import until

ROUTE = "orders_files"
WITHIN = 60


def status(world):
    return world.board.snapshot().routes[0]


def test_lag_of_a_route_that_can_not_start_is_reported(world, live):
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    world.insert("(2, 'b')")
    world.files.rename(world.files.with_name("unmounted"))
    live(ROUTE)
    until(lambda: status(world).lag_versions == 1, WITHIN)
    assert status(world).state == "halted"
    assert world.sample("cdf_lag_seconds") > 0
    until(lambda: world.sample("cdf_headroom_seconds") < math.inf, WITHIN)


def test_lag_stays_and_headroom_is_zero_after_log_cleanup(world, live):
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    world.state_path.set_paused(ROUTE)
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    live(ROUTE)
    until(lambda: status(world).lag_versions == 2, WITHIN)
    before = world.sample("cdf_lag_seconds")
    world.forget_log_before(3)
    world.insert("(4, 'd')")
    until(lambda: status(world).lag_versions == 3, WITHIN)
    assert world.sample("cdf_lag_seconds") > before
    until(lambda: world.sample("cdf_headroom_seconds") == 0, WITHIN)
