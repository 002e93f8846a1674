"""A paused route delivers nothing, reports its lag, and loses no change."""

from __future__ import annotations

import math
import time

import pytest

from cdf_replicator.pipeline.route_stream import RouteStream
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Command
from tests.support.waiting import until

ROUTE = "orders_files"
WITHIN = 60


@pytest.fixture
def runner(world, live):
    world.create(rows=["(1, 'a')"])
    (runner,) = live(ROUTE)
    until(lambda: world.delivered() == world.expected(), WITHIN)
    return runner


def submit(world, runner, kind, **what):
    """As another command does, through the running service; returns the answer."""
    request = Command(kind, ROUTE, **what)
    world.submit(runner, request)
    until(lambda: world.answer(request).state != "running", WITHIN)
    return world.answer(request)


def route(world):
    return world.board.snapshot().routes[0]


def is_paused(world, behind):
    return (route(world).state, route(world).lag_versions) == ("paused", behind) and route(world).lag_seconds > 0


def test_paused_route_delivers_nothing_until_it_is_resumed(world, runner):
    assert submit(world, runner, "pause") == command_queue.CommandStatus("done", "paused", 1.0)
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    until(lambda: is_paused(world, 2), WITHIN)
    assert "resume orders_files" in route(world).reason
    time.sleep(1)
    assert world.delivered() != world.expected()

    assert submit(world, runner, "resume").state == "done"
    until(lambda: world.delivered() == world.expected() and route(world).state == "running", WITHIN)
    events = [event.what for event in world.board.snapshot().events]
    assert [what for what in events if "requested" in what] == ["resume requested", "pause requested"]


def test_replay_interrupted_by_a_pause_continues_and_is_answered(world, runner):
    replay = Command("replay", ROUTE, 0)
    world.trouble("hang")
    command_queue.enqueue(world.state_path.requests, replay)
    runner.submit(replay)
    until(lambda: world.state().generation == 1, WITHIN)
    pause = Command("pause", ROUTE)
    runner.submit(pause)
    world.trouble(None)
    until(lambda: world.answer(pause) is not None and route(world).state == "paused", WITHIN)
    submit(world, runner, "resume")
    until(lambda: world.answer(replay) is not None and world.answer(replay).state == "done", WITHIN)
    assert command_queue.pending(world.state_path.requests) == []


def test_paused_route_stays_paused_after_a_restart_and_reports_its_lag(world, runner, live):
    submit(world, runner, "pause")
    world.insert("(2, 'b')")
    assert world.run() is None, "a run of once"
    (again,) = live(ROUTE)
    until(lambda: is_paused(world, 1), WITHIN)
    assert world.delivered() != world.expected()
    submit(world, again, "resume")
    until(lambda: world.delivered() == world.expected(), WITHIN)


def test_paused_route_refuses_commands_that_write(world, runner):
    submit(world, runner, "pause")
    for kind, what in (("replay", {"starting_version": 0}), ("resync", {}), ("redrive", {})):
        refused = submit(world, runner, kind, **what)
        assert refused.state == "failed"
        assert "is paused. Run: cdf-replicator resume orders_files" in refused.message
    assert world.state().generation == 0


def test_route_that_has_never_run_can_be_paused(world, live):
    world.create(rows=["(1, 'a')"])
    world.state_path.set_paused(ROUTE)
    (runner,) = live(ROUTE)
    until(lambda: route(world).state == "paused", WITHIN)
    assert world.state() is None
    submit(world, runner, "resume")
    until(lambda: world.delivered() == world.expected(), WITHIN)


def test_run_once_of_a_paused_route_ends_as_paused(world):
    world.create(rows=["(1, 'a')"])
    world.state_path.set_paused(ROUTE)
    assert world.run() is None
    assert (route(world).state, world.delivered()) == ("paused", {})
    world.state_path.set_paused(ROUTE, paused=False)
    assert world.run() is None
    assert (route(world).state, world.delivered()) == ("stopped", world.expected())


def test_resume_retries_a_halted_route(world, runner):
    world.trouble("forbidden")
    world.insert("(2, 'b')")
    until(lambda: route(world).state == "halted", WITHIN)
    world.trouble(None)
    assert submit(world, runner, "resume").state == "done"
    until(lambda: world.delivered() == world.expected() and route(world).state == "running", WITHIN)


def test_paused_route_with_an_unchecked_sink_raises_no_alert(world, live):
    world.create(rows=["(1, 'a')"])
    world.state_path.set_paused(ROUTE)
    live(ROUTE)
    until(lambda: route(world).state == "paused", WITHIN)
    assert math.isnan(world.sample("cdf_sink_up"))


@pytest.mark.parametrize("step", ["_check", "_start"])
def test_pause_during_the_start_is_answered_before_the_load(world, live, monkeypatch, step):
    world.create(rows=["(1, 'a')"])
    pause, runners, submitted, original = Command("pause", ROUTE), [], [], getattr(RouteStream, step)

    def interrupted(*given):
        found = original(*given)
        until(lambda: runners, WITHIN)
        if not submitted:
            submitted.append(pause)
            command_queue.enqueue(world.state_path.requests, pause)
            runners[0].submit(pause)
        return found

    monkeypatch.setattr(RouteStream, step, interrupted)
    runners.extend(live(ROUTE))
    until(lambda: world.answer(pause) is not None and route(world).state == "paused", WITHIN)
    assert world.delivered() == {}
    submit(world, runners[0], "resume")
    until(lambda: world.delivered() == world.expected(), WITHIN)
