"""A second route, of another deployment or under a new name, is led to a target that a route fills."""

from __future__ import annotations

import pytest

from cdf_replicator.state.command_queue import Command


@pytest.fixture
def place(world, request):
    if request.param == "redis":
        return {"TYPE": "redis", "URL": request.getfixturevalue("redis_server").url}
    return {"TYPE": request.param, "PATH": str(world.folder / "audit")}


def through(world, sink, settings, state):
    """Follow the table through only the sink of that name, under a state path; return the route."""
    for name in [name for name in world.environ if name.startswith("CDF_SINKS__")]:
        del world.environ[name]
    world.environ |= {f"CDF_SINKS__{sink.upper()}__{name}": value for name, value in settings.items()}
    world.environ |= {"CDF_TABLES__ORDERS__SINKS": sink, "CDF_STATE_PATH": str(world.folder / state)}
    return f"orders_{sink}"


@pytest.mark.parametrize("place", ["delta_audit", "redis"], indirect=True)
def test_target_of_another_route_is_unchanged_until_a_resync(world, place):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    first = through(world, "first", place, "state")
    assert world.run(first) is None

    for state, whose in (("other", "route orders_first of another state path"), ("state", "route orders_first:")):
        second = through(world, "second", place, state)
        decision = world.run(second)
        assert decision.reason == "target_claimed"
        assert f"is filled by {whose}" in decision.message
        assert "restore the old name" in decision.remedy
        assert "cdf-replicator resync orders_second" in decision.remedy

    second = through(world, "second", place, "other")
    assert world.run(second, command=Command("resync", second)) is None
    first = through(world, "first", place, "state")
    decision = world.run(first)
    assert decision.reason == "target_claimed"
    assert "is filled by route orders_second of another state path" in decision.message
    assert world.run(first, command=Command("resync", first)) is None, "and it can take the target back"
