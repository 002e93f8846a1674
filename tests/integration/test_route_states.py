"""The state, the lag and the sink of a route are reported as they are: while writes fail, a command runs, or a load hangs."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.waiting import until

ROUTE = "orders_files"
WITHIN = 60


def route(world):
    return world.board.snapshot().routes[0]


def shown(world):
    status = world.board.snapshot()
    return status.routes[0].state, status.sinks[0].up


def test_route_whose_writes_fail_stays_retrying_until_one_succeeds(world, live):
    world.create(rows=["(1, 'a')"])
    live(ROUTE)
    until(lambda: world.delivered() == world.expected() and shown(world) == ("running", True), WITHIN)
    world.trouble("away")
    world.insert("(2, 'b')")
    until(lambda: shown(world) == ("retrying", False), WITHIN)
    failures, seen = route(world).last_error.count, set()
    while route(world).last_error.count < failures + 3:
        seen.add(shown(world))
        time.sleep(0.01)
    assert seen == {("retrying", False)}
    world.trouble(None)
    until(lambda: world.delivered() == world.expected() and shown(world) == ("running", True), WITHIN)


def test_route_without_changes_runs_again_after_an_idle_trigger(world, live):
    world.create(rows=["(1, 'a')"])
    live(ROUTE)
    until(lambda: world.delivered() == world.expected() and route(world).state == "running", WITHIN)
    moved = Path(world.table).rename(world.folder / "moved")
    until(lambda: route(world).state == "retrying", WITHIN)
    moved.rename(world.table)
    until(lambda: shown(world) == ("running", True), WITHIN)
