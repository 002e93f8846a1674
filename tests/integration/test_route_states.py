"""The state, the lag and the sink of a route are reported as they are: while writes fail, a command runs, or a load hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cdf_replicator.server.pages import actions
from cdf_replicator.state.command_queue import Command
from tests.support.waiting import until

ROUTE = "orders_files"
WITHIN = 60


def route(world):
    return world.board.snapshot().routes[0]


def shown(world):
    status = world.board.snapshot()
    return status.routes[0].state, status.sinks[0].up


def ended(world, command):
    return world.answer(command).state != "running"


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


def test_mapped_table_without_commits_runs_again_after_a_failure(world, live):
    """Its query starts with the first commit."""
    world.create(rows=["(1, 'a')"], delta__columnMapping__mode="name")
    assert world.run() is None
    moved = Path(world.table).rename(world.folder / "moved")
    live(ROUTE)
    until(lambda: route(world).state == "retrying", WITHIN)
    moved.rename(world.table)
    until(lambda: shown(world) == ("running", True), WITHIN)


def test_replay_with_an_end_is_named_and_the_lag_grows_meanwhile(world, live):
    world.into_lines()
    world.create(rows=["(1, 'a')"])
    (runner,) = live("orders_lines")
    until(lambda: route(world).state == "running" and route(world).lag_versions == 0, WITHIN)
    world.trouble("hang")
    replay = Command("replay", "orders_lines", 0, 1)
    world.submit(runner, replay)
    try:
        until(lambda: route(world).reason == "executing replay of versions 0 to 1", WITHIN)
        assert route(world).state == "running"
        world.insert("(2, 'b')")
        until(lambda: route(world).lag_versions == 1 and route(world).lag_seconds > 0, WITHIN)
        assert "replay" in route(world).reason
    finally:
        world.trouble(None)
    until(lambda: ended(world, replay) and route(world).lag_versions == 0, WITHIN)
    assert world.answer(replay).state == "done"
    until(lambda: (route(world).state, route(world).reason) == ("running", ""), WITHIN)


def test_pause_ends_a_load_which_is_done_after_resume(world, live):
    world.environ["CDF_SHUTDOWN_SECONDS"] = "1"
    world.create(rows=["(1, 'a')"])
    world.trouble("hang")
    (runner,) = live(ROUTE)
    pause, resume = Command("pause", ROUTE), Command("resume", ROUTE)
    try:
        until(lambda: route(world).state == "bootstrapping", WITHIN)
        time.sleep(3)  # the sink hangs in the middle of the load
        world.submit(runner, pause)
        until(lambda: ended(world, pause) and route(world).state == "paused", WITHIN)
        assert (route(world).last_error, world.state().phase) == (None, "bootstrapping")
    finally:
        world.trouble(None)
    world.submit(runner, resume)
    until(lambda: world.delivered() == world.expected() and route(world).state == "running", WITHIN)


def test_redrive_waits_for_a_load_and_does_not_end_it(world, live):
    world.environ["CDF_SHUTDOWN_SECONDS"] = "1"
    world.create(rows=["(1, 'a')"])
    world.trouble("hang")
    (runner,) = live(ROUTE)
    redrive = Command("redrive", ROUTE)
    try:
        until(lambda: route(world).state == "bootstrapping", WITHIN)
        world.submit(runner, redrive)
        time.sleep(5)
        assert (route(world).state, ended(world, redrive)) == ("bootstrapping", False)
    finally:
        world.trouble(None)
    until(lambda: world.delivered() == world.expected() and ended(world, redrive), WITHIN)


def test_load_that_hangs_is_stalled_until_it_moves(world, live):
    world.environ["CDF_DELIVERY__STALL_SECONDS"] = "2"
    world.create(rows=["(1, 'a')"])
    world.trouble("hang")
    live(ROUTE)
    try:
        until(lambda: route(world).state == "stalled", WITHIN)
        assert "no task of the load has read or finished anything for 2 s" in route(world).reason
    finally:
        world.trouble(None)
    until(lambda: world.delivered() == world.expected() and route(world).state == "running", WITHIN)


def paused(world):
    world.state_path.set_paused(ROUTE)


def halted(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "id > 0"  # another definition than that of the checkpoint


def without_sink(world):
    world.environ["CDF_DELIVERY__RETRY_SECONDS"] = "300"  # longer than the test waits
    world.trouble("unreachable")


def without_table(world):
    Path(world.table).rename(world.folder / "moved")


@pytest.mark.parametrize(
    ("hinder", "state"),
    [(paused, "paused"), (halted, "halted"), (without_sink, "retrying"), (without_table, "retrying")],
)
def test_open_dead_letters_are_shown_after_a_restart_that_delivers_nothing(world, live, hinder, state):
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    world.insert("(3, 'bad')")
    assert world.run() is None
    hinder(world)
    live(ROUTE)
    try:
        until(lambda: (route(world).state, route(world).dead_letters) == (state, 1), WITHIN)
    finally:
        world.trouble(None)
    refusals = {offer.action: offer.refusal for offer in actions.offers(route(world))}
    assert refusals["discard"] == ""
