"""Test the metrics of a route: what is timed, and where each received change is counted."""

from __future__ import annotations

import pytest


def timed(world) -> tuple[int, float]:
    """Return the number and the sum of the latencies of the last run."""
    (family,) = (f for f in world.metrics.registry.collect() if f.name == "cdf_delivery_latency_seconds")
    found = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples}
    return int(found["count"]), found["sum"]


@pytest.mark.parametrize("sink", ["files", "audit"])
def test_only_commits_made_while_the_route_follows_are_timed(world, sink):
    if sink == "audit":
        world.into_delta("audit")
    route = f"orders_{sink}"
    world.create(rows=["(1, 'a')"])
    assert world.run(route) is None
    assert timed(world) == (0, 0), "a bootstrap"
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    assert world.run(route) is None
    count, seconds = timed(world)
    assert count == 2
    assert 0 < seconds < 120
    assert world.run(route, start_version=1) is None
    assert world.last_batch().received
    assert timed(world) == (0, 0), "a replay"
