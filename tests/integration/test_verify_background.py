"""Targets are compared beside a live stream, which never waits for a comparison."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from cdf_replicator.state.command_queue import Command
from cdf_replicator.verification import BackgroundVerifier, ComparisonRequests
from tests.integration.test_verify import Target, sinks
from tests.support.waiting import until

WITHIN = 120
EQUAL = {"missing": 0, "extra": 0, "different": 0, "foreign": 0}


@pytest.fixture
def verifying(world):
    """Start the comparisons as the service does, and stop them at the end of the test."""
    over, threads = threading.Event(), []

    def start():
        settings = world.settings
        given = world.spark, settings, world.state_path, world.board, settings.routes.values(), ComparisonRequests()
        threads.append(threading.Thread(target=BackgroundVerifier(*given).run, args=(over,)))
        threads[-1].start()

        def stop():
            over.set()
            threads[-1].join(20)
            return not threads[-1].is_alive()

        return stop

    yield start
    over.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def endless(world, live):
    """A live route whose comparison has no end."""
    world.environ |= {"CDF_SINKS__FILES__TYPE": "endless", "CDF_VERIFY__EVERY_HOURS": "24"}
    world.create(rows=["(1, 'a')"])
    (runner,) = live("orders_files")
    return runner


def route(world):
    return world.board.snapshot().routes[0]


def differences(world):
    (family,) = (each for each in world.metrics.registry.collect() if each.name == "cdf_verify_differences")
    return {sample.labels["kind"]: sample.value for sample in family.samples}


def test_damage_appears_in_the_metrics_beside_the_stream(world, live, verifying, elasticsearch, redis_server):
    sinks(world, "elasticsearch", elasticsearch, redis_server)
    httpx.delete(f"{elasticsearch.url}/orders")
    world.environ["CDF_VERIFY__EVERY_HOURS"] = "0.0005"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    (runner,) = live("orders_target")
    verifying()
    until(lambda: world.sample("cdf_verified_version") == 1, WITHIN)
    assert differences(world) == EQUAL

    Target(world, "elasticsearch", elasticsearch, redis_server).drop(2)
    until(lambda: differences(world)["missing"] == 1, WITHIN)
    assert differences(world) == EQUAL | {"missing": 1}
    warned = "target differs from version 1 of the table (missing 1). Run: cdf-replicator verify orders_target"
    assert warned in [event.what for event in world.board.snapshot().events]
    world.insert("(4, 'd')")
    until(lambda: world.sample("cdf_verified_version") == 2, WITHIN)
    assert httpx.get(f"{elasticsearch.url}/orders/_doc/4").json()["_source"] == {"id": 4, "name": "d"}
    assert (route(world).state, route(world).restarts) == ("running", 0)

    runner.submit(Command("resync", "orders_target"))
    until(lambda: route(world).epoch == 2 and differences(world) == EQUAL, WITHIN)
    pool = world.spark.sparkContext._jsc.sc().getPoolForName("cdf-verify").get()
    assert (pool.weight(), pool.runningTasks() < 2) == (0, True)


def test_target_that_differed_is_compared_again_after_a_command(world, live, verifying, elasticsearch, redis_server):
    sinks(world, "delta_replica", elasticsearch, redis_server)
    world.environ["CDF_VERIFY__EVERY_HOURS"] = "24"
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run("orders_target") is None
    Target(world, "delta_replica", elasticsearch, redis_server).drop(2)
    (runner,) = live("orders_target")
    stop = verifying()
    until(lambda: differences(world)["missing"] == 1, WITHIN)
    runner.submit(Command("resync", "orders_target"))
    until(lambda: differences(world) == EQUAL, WITHIN)

    assert stop()
    before = route(world)
    world.runner("orders_target")  # a restart: the route has not started yet, so that nothing is compared
    assert route(world).verification is None
    verifying()
    until(lambda: route(world).verification == before.verification, WITHIN)
    assert route(world).verify_deadline == before.verify_deadline


def test_stop_of_the_service_ends_a_running_comparison(world, endless, verifying):
    stop = verifying()
    until((world.files / "viewed").exists, WITHIN)
    world.insert("(2, 'b')")
    until(lambda: world.delivered() == world.expected(), WITHIN)
    began = time.monotonic()
    assert stop()
    assert time.monotonic() - began < 10
    assert (world.files / "closed").exists()
    assert (route(world).state, route(world).verification) == ("running", None)


def test_comparison_ends_with_its_stream_and_begins_again(world, endless, verifying):
    verifying()
    until((world.files / "viewed").exists, WITHIN)
    endless.submit(Command("pause", "orders_files"))
    until((world.files / "closed").exists, WITHIN)
    until(lambda: route(world).state == "paused", WITHIN)
    (world.files / "viewed").unlink()
    endless.submit(Command("resume", "orders_files"))
    until((world.files / "viewed").exists, WITHIN)
    assert not [event.what for event in world.board.snapshot().events if "verify" in event.what]


def test_failed_comparison_is_a_warning_and_not_repeated_at_once(world, endless, verifying):
    world.trouble("view")
    stop = verifying()
    until(lambda: [event for event in world.board.snapshot().events if "verify failed" in event.what], WITHIN)
    world.trouble(None)
    world.insert("(2, 'b')")
    until(lambda: world.delivered() == world.expected(), WITHIN)
    failed = [event.what for event in world.board.snapshot().events if "verify failed" in event.what]
    assert failed == ["verify failed, next comparison in a period: RuntimeError: the plug was pulled"]
    assert not (world.files / "viewed").exists()
    assert (route(world).state, route(world).restarts) == ("running", 0)
    before = route(world).verify_deadline
    assert stop()
    assert verifying()(), "a restart, after which nothing is compared"
    assert route(world).verify_deadline == before
