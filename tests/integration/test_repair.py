"""``verify --repair`` writes the present row of each entry that differs, or its delete, and then finds no difference."""

from __future__ import annotations

import json
import threading

import httpx
import pytest
import redis

from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Command
from connectors import guard_of
from tests.integration.test_verify import refused_row, sinks, target, verified  # noqa: F401 - ``target`` is a fixture
from tests.support.tiers import nightly
from tests.support.waiting import PATIENCE_SECONDS, until

ROUTE = "orders_target"


def damage(target, version: int) -> int:  # noqa: F811
    """Damage nine entries, each in another way; return their number."""
    first, newest = guard_of(1, 1, upsert=True), guard_of(1, version, upsert=True)
    target.drop(10)
    target.put(11, first, name="stale")
    target.put(12, first, amount=0.25)
    target.put(13, first, flag=None)
    target.put(14, newest, name="written by another writer")
    target.put(15, newest, name=None, flag=None)
    if target.kind == "elasticsearch":  # another application's update, after which the guard is that of a delete
        update = {"doc": {"id": 16}, "detect_noop": False}
        httpx.post(f"{target.url}/orders/_update/16", json=update).raise_for_status()
    else:
        target.put(16, first + 1)
    target.put(19, newest)  # a deleted row that came back with the guard of the newest version
    target.put(77, first)
    return 9


@pytest.mark.parametrize(
    "target",
    ["redis", nightly("delta_replica"), nightly("elasticsearch"), nightly("redis hash"), nightly("postgres")],
    indirect=True,
)
def test_no_difference_is_left_after_a_repair(world, target, here):  # noqa: F811
    world.change("DELETE FROM {t} WHERE id = 19")
    assert world.run(ROUTE) is None
    unequal = damage(target, world.version())
    tried = here(world.environ, "verify", ROUTE, "--repair", "--dry-run")
    assert (tried.code, f"would write {unequal} entries of {ROUTE} again" in tried.log) == (1, True)

    ended = here(world.environ, "verify", ROUTE, "--repair", "--format", "json")
    before, after = (json.loads(line) for line in ended.output.splitlines())
    assert sum(before["kinds"].values()) == unequal, "the dry run wrote nothing"
    assert (ended.code, after["kinds"]) == (0, {})
    assert world.state(ROUTE).epoch == 1


@pytest.mark.parametrize("target", ["redis"], indirect=True)
def test_repair_loses_to_a_higher_guard_and_names_the_resync(world, target, here):  # noqa: F811
    target.put(14, guard_of(1, 999, upsert=True), name="foreign")
    command = Command("repair", ROUTE, identities=[target.identity(14)])
    assert world.run(ROUTE, command=command) is None
    assert world.answer(command).message.endswith("as of version 1, 1 with a higher guard")
    assert verified(world).comparison.kinds["foreign"] == 1
    assert here(world.environ, "resync", ROUTE, "--yes").code == 0
    assert verified(world).comparison.equal


@pytest.mark.parametrize("target", ["elasticsearch"], indirect=True)
def test_repair_of_too_large_a_share_writes_nothing(world, target, here):  # noqa: F811
    for key in (70, 71):
        target.put(key, guard_of(1, 1, upsert=True))
    world.environ["CDF_DELIVERY__MAX_REMOVED_SHARE"] = "0.1"
    refused = here(world.environ, "verify", ROUTE, "--repair")
    assert refused.code == 1
    assert "a repair might delete 2 of 12 entries (MAX_REMOVED_SHARE=0.1)" in refused.log
    assert f"cdf-replicator resync {ROUTE}" in refused.log
    extra = [f"{target.url}/orders/_doc/{key}" for key in (70, 71)]
    assert all(httpx.get(each).is_success for each in extra)
    assert here(world.environ, "verify", ROUTE, "--repair", "--yes").code == 0, "it finds no difference in the end"
    assert not any(httpx.get(each).is_success for each in extra)


@pytest.mark.parametrize("target", ["elasticsearch"], indirect=True)
def test_repair_beside_a_stream_of_commits_leaves_no_difference(world, target, live):  # noqa: F811
    (runner,) = live(ROUTE)
    stop, names, results = threading.Event(), [], []

    def write() -> None:
        while not stop.wait(1):
            names.append(f"at {len(names)}")
            world.change(f"UPDATE {{t}} SET name = '{names[-1]}' WHERE id IN (16, 17)")

    def caught_up() -> bool:
        """Compare only when the target has the newest row: a comparison takes a second of processor time."""
        newest = httpx.get(f"{target.url}/orders/_doc/17", timeout=60).json()["_source"]
        if newest["name"] != names[-1]:
            return False
        results.append(verified(world))
        return results[-1].version == world.version()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        target.drop(10)
        target.put(11, guard_of(1, 1, upsert=True), name="stale")
        found = verified(world)
        assert found.comparison.kinds == {"missing": 1, "extra": 0, "different": 1, "foreign": 0}
        command = Command("repair", ROUTE, identities=found.comparison.identities)
        command_queue.accept(world.state_path.requests, command)
        runner.submit(command)
        until(lambda: world.answer(command).state != "running", PATIENCE_SECONDS)
        assert world.answer(command).message.startswith("2 entries written")
        assert verified(world).comparison.equal
    finally:
        stop.set()
        writer.join()
    until(caught_up, PATIENCE_SECONDS)
    assert results[-1].comparison.equal


@pytest.fixture
def refusing(world, prepared, elasticsearch, redis_server):
    """Key 2 has an open dead letter: Elasticsearch refuses the long key of its map."""
    prepared(refused_row)
    sinks(world, "elasticsearch", elasticsearch, redis_server)
    httpx.delete(f"{elasticsearch.url}/orders")
    assert world.run(ROUTE) is None
    return f"{elasticsearch.url}/orders/_doc"


def repaired(world, *identities: str) -> str:
    command = Command("repair", ROUTE, identities=identities)
    assert world.run(ROUTE, command=command) is None
    assert verified(world).comparison.equal
    return world.answer(command).message


def test_repair_keeps_the_dead_letter_of_a_row_refused_again(world, refusing):
    guard = guard_of(1, 1, upsert=True)
    httpx.put(f"{refusing}/2?version={guard}&version_type=external_gte", json={"id": 2}).raise_for_status()
    assert repaired(world, "2").endswith("1 entries written as of version 1, 1 refused by the sink")
    assert world.dead_letters("key", "state") == [("2", "open")]
    assert httpx.get(f"{refusing}/2").status_code == httpx.codes.NOT_FOUND


def test_repair_closes_the_dead_letter_of_a_row_that_fits_now(world, refusing):
    world.change("UPDATE {t} SET tags = map('b', 2) WHERE id = 2")
    assert repaired(world, "2") == "1 entries written as of version 2"
    assert ("2", "redriven") in world.dead_letters("key", "state")


def test_key_that_no_row_can_have_is_left(world, elasticsearch, redis_server):
    sinks(world, "redis", elasticsearch, redis_server)
    server = redis.Redis.from_url(redis_server.url)
    server.flushall()
    world.create(rows=["(1, 'a')"])
    assert world.run(ROUTE) is None
    server.set("orders:a{b", "{}")
    command = Command("repair", ROUTE, identities=["orders:a{b", "orders:1"])
    assert world.run(ROUTE, command=command) is None
    assert world.answer(command).message == "1 entries written as of version 1, 1 with an unknown key"
    assert server.get("orders:a{b") == b"{}"
