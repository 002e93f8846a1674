"""``resync`` starts an epoch that survives any kill, limits removals, and repairs rows of other writers."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from hashlib import sha256

import httpx
import pytest
import redis

from cdf_replicator.commands.dry_run import resync_lines
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import start_position
from cdf_replicator.queries.plans import _waiting, resync_plan
from cdf_replicator.runtime.command_executor import CommandExecutor
from cdf_replicator.state.command_queue import Command
from cdf_replicator.state.store import StateStore
from connectors import guard_of
from tests.support.reading import documents

ROUTE = "orders_files"


@pytest.fixture
def followed(prepared):
    return prepared(ten_rows)


def ten_rows(world):
    world.create(rows=[f"({number}, 'a')" for number in range(10)])
    assert world.run() is None


def resynced(world, **more):
    command = Command("resync", ROUTE, **more)
    return world.run(command=command), world.answer(command)


def dry_run(world):
    route = world.settings.routes[ROUTE]
    with closing(world.settings.sink(route.sink)) as sink:
        plan = resync_plan(world.source(), sink, route, _waiting(world.state_path, route))
    return "\n".join(resync_lines(plan))


def entry(world, key):
    return world.files / "orders" / f"{sha256(key.encode()).hexdigest()}.json"


def forge(world, key, guard, row):
    entry(world, key).write_text(json.dumps({"key": key, "guard": guard, "row": row}))


def test_target_restored_from_before_a_resync_needs_another_resync(followed, tmp_path):
    """Its version counts for nothing: what the resync removed is in it again."""
    world, held = followed, followed.files / "orders"
    shutil.copytree(held, tmp_path / "copy")
    world.change("DELETE FROM {t} WHERE id = 3")
    assert resynced(world)[0] is None
    shutil.rmtree(held)
    shutil.copytree(tmp_path / "copy", held)
    halted = world.run()
    assert (halted.reason, "resync" in halted.remedy) == ("target_restored", True)
    assert resynced(world)[0] is None
    assert world.delivered() == world.expected()


def test_a_resync_survives_a_kill_at_any_point(followed):
    """Each time, a row goes and one comes before the resync, and once more before the restart."""
    world, ids = followed, list(range(10))

    def commit():
        world.change(f"DELETE FROM {{t}} WHERE id = {ids.pop(0)}")
        ids.append(ids[-1] + 1)
        world.insert(f"({ids[-1]}, 'later')")

    def killed_after_the_pin():
        route = world.settings.routes[ROUTE]
        sink = world.settings.sink(route.sink)
        world.state_path.save(start_position.resync_requested(route, world.source(), sink, world.state_path, share=1.0))

    def killed_in(step):
        def kill():
            world.trouble(step)
            assert resynced(world)[0].reason == "bug"
            world.trouble(None)

        return kill

    def killed_after_the_sweep():
        assert resynced(world)[0] is None
        state = world.state()
        assert state.phase == "streaming"
        world.state_path.save(replace(state, phase="bootstrapping", start_version=None, query_started=False))
        shutil.rmtree(world.state_path.checkpoint(ROUTE, state.generation))

    kills = (killed_after_the_pin, killed_in("3"), killed_in("count"), killed_in("sweep"))
    for epoch, kill in enumerate((*kills, killed_after_the_sweep), start=2):
        commit()
        kill()
        assert world.state().epoch == epoch
        assert world.state().phase == "bootstrapping"
        commit()
        assert world.run() is None
        assert world.delivered() == world.expected()
        assert world.state().epoch == epoch, "it went on where it was"


def test_first_load_killed_after_its_claim_keeps_the_rows_of_others(world):
    """A first load has no sweep, and an epoch above the first would have one."""
    world.create(rows=["(1, 'a')"])
    route = world.settings.routes[ROUTE]
    with closing(world.settings.sink(route.sink)) as sink:
        state = start_position.resolve(route, world.source(), sink, world.state_path, world.letters)
        sink.prepare(None, world.state_path.route_spec(route, state))
    forge(world, "99", 0, {"id": 99})
    world.insert("(2, 'b')")
    assert world.run() is None
    assert (world.state().epoch, world.delivered().keys()) == (1, {"1", "2", "99"})


def test_resync_killed_after_its_claim_keeps_the_cap_of_its_command(followed):
    world, route = followed, followed.settings.routes[ROUTE]
    world.change("DELETE FROM {t} WHERE id = 1")
    with closing(world.settings.sink(route.sink)) as sink:
        state = start_position.resync_requested(route, world.source(), sink, world.state_path, share=0.0)
        world.state_path.save(state)
        sink.prepare(None, world.state_path.route_spec(route, state))
    assert world.run().reason == "too_many_orphans"
    assert (world.state().epoch, len(world.delivered())) == (2, 10)


@pytest.mark.parametrize("command", [Command("replay", ROUTE, 0), Command("redrive", ROUTE)], ids=["replay", "redrive"])
def test_command_on_a_restored_state_path_keeps_the_cap_of_the_sweep(followed, monkeypatch, command):
    """The state path was restored from a copy of before the first start of the route."""
    world = followed
    monkeypatch.setattr(CommandExecutor, "_count_letters", lambda *_: 1)  # the letters were restored with the target
    del world.environ["CDF_DELIVERY__MAX_REMOVED_SHARE"]
    shutil.rmtree(world.state_path.root / "routes")
    world.change("DELETE FROM {t} WHERE id < 5")
    halted = world.run(command=command)
    assert world.answer(command).state == "failed"
    assert (halted.action, halted.reason) == ("halt", "too_many_orphans")
    assert len(world.delivered()) == 10, "nothing was removed"


def test_sweep_of_too_many_entries_is_refused_until_it_is_allowed(followed):
    world = followed
    del world.environ["CDF_DELIVERY__MAX_REMOVED_SHARE"]
    assert "target  10 entries, of which at least 0 (0.0%) would be removed" in dry_run(world)
    world.change("DELETE FROM {t} WHERE id < 5")
    world.forget_log_before(world.version())
    assert "source  5 rows in version 2" in dry_run(world)
    assert "target  10 entries, of which at least 5 (50.0%) would be removed" in dry_run(world)
    assert world.state().epoch == 1, "a dry run writes nothing"

    decision, answer = resynced(world)
    assert (decision.action, decision.reason) == ("halt", "too_many_orphans")
    assert "would remove 5 of the target's 10 entries (50.0%), more than 10.0%" in decision.message
    assert "nothing was removed" in decision.message
    assert decision.remedy == (
        "If they may go, run: cdf-replicator resync orders_files --yes (the route continues with the deletion of orphans)"
    )
    assert (answer.state, len(world.delivered())) == ("failed", 10)
    assert "of which 5 (50.0%) would be removed: version 2 is loaded, and its sweep waits for --yes" in dry_run(world)
    world.insert("(20, 'meanwhile')")
    world.forget_log_before(world.version())  # the loaded version can no longer be read
    assert world.run().reason == "too_many_orphans", "a restart allows nothing"
    assert resynced(world, max_removed_share=0.4)[0].reason == "too_many_orphans"
    decision, answer = resynced(world, max_removed_share=0.5)
    assert (decision, answer.state) == (None, "done")
    assert world.delivered() == world.expected()
    assert world.state().epoch == 2
    assert [batch.batch_id for batch in world.board.snapshot().routes[0].batches] == [1], "nothing was loaded again"


def test_resync_of_a_corrected_source_after_a_refused_sweep_loads_again(followed):
    world, held = followed, followed.version()
    del world.environ["CDF_DELIVERY__MAX_REMOVED_SHARE"]
    world.change("DELETE FROM {t}")
    assert resynced(world)[0].reason == "too_many_orphans"
    world.sql(f"RESTORE {{t}} TO VERSION AS OF {held}")
    assert resynced(world)[0] is None
    assert world.delivered() == world.expected()
    assert (len(world.delivered()), world.state().epoch) == (10, 3)


def test_resync_overwrites_foreign_entries_of_the_sink(followed):
    world = followed
    forge(world, "1", guard_of(9, 5, upsert=True), {"id": 1, "name": "theirs"})
    forge(world, "2", 1, {"id": 2, "name": "theirs"})
    forge(world, "99", 1, {"id": 99, "name": "theirs"})
    forge(world, "98", guard_of(9, 5, upsert=True), {"id": 98, "name": "theirs"})
    entry(world, "3").unlink()
    assert resynced(world)[0] is None
    assert world.delivered() == world.expected()
    assert world.state().epoch == 10, "above what they wrote"
    world.change("UPDATE {t} SET name = 'b' WHERE id = 1")
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_entry_with_the_highest_epoch_is_reported(followed):
    world = followed
    forge(world, "1", 2**63 - 1, {"id": 1, "name": "theirs"})
    decision, _ = resynced(world)
    assert decision.reason == "foreign_guards"
    assert str(2**63 - 1) in decision.message
    assert decision.remedy == "Remove them, or the whole target. Run: cdf-replicator resync orders_files"
    entry(world, "1").unlink()
    assert resynced(world)[0] is None
    assert world.delivered() == world.expected()


def test_resync_repairs_elasticsearch_and_redis(world, elasticsearch, redis_server):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "cache,search",
        "CDF_SINKS__CACHE__TYPE": "redis",
        "CDF_SINKS__CACHE__URL": redis_server.url,
        "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
        "CDF_SINKS__SEARCH__HOSTS": elasticsearch.url,
    }
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')", "(4, 'd')"])
    for route in ("orders_cache", "orders_search"):
        assert world.run(route) is None

    with redis.Redis.from_url(redis_server.url) as client, httpx.Client(base_url=elasticsearch.url) as http:
        client.set("orders:1", '{"id": 1, "name": "theirs"}')
        client.set("orders:99", '{"id": 99, "name": "theirs"}')
        client.set("cdf:guard:{orders:2}", f"{guard_of(5, 0, upsert=True):019d}")
        client.delete("orders:3")
        http.put("/orders/_doc/1", json={"id": 1, "name": "theirs"}).raise_for_status()
        http.put("/orders/_doc/99", json={"id": 99, "name": "theirs"}).raise_for_status()
        high = {"version": guard_of(5, 0, upsert=True), "version_type": "external"}
        http.put("/orders/_doc/2", params=high, json={"id": 2, "name": "theirs"}).raise_for_status()
        http.delete("/orders/_doc/3").raise_for_status()
        world.change("UPDATE {t} SET name = 'bb' WHERE id = 2")

        for route in ("orders_cache", "orders_search"):
            assert world.run(route, command=Command("resync", route)) is None
            assert world.state(route).epoch == 6
        world.change("DELETE FROM {t} WHERE id = 4")
        for route in ("orders_cache", "orders_search"):
            assert world.run(route) is None

        assert {key.decode()[7:]: json.loads(client.get(key)) for key in client.scan_iter("orders:*")} == (
            world.expected()
        )
        http.post("/orders/_refresh")
        hits = http.get("/orders/_search", params={"size": 100}).json()["hits"]["hits"]
        assert {hit["_id"]: hit["_source"] for hit in hits} == world.expected()


def test_sink_without_orphan_deletion_is_resynced_only_into_an_emptied_target(world):
    world.environ["CDF_SINKS__FILES__TYPE"] = "folder"
    world.create(rows=[f"({number}, 'a')" for number in range(10)])
    assert world.run() is None
    world.change("DELETE FROM {t} WHERE id = 3")
    with pytest.raises(
        RouteHaltError, match="Sink files can't delete entries of keys that table orders no longer holds"
    ):
        dry_run(world)
    failure, answer = resynced(world)
    assert failure is None, "the route goes on as before"
    assert answer.state == "failed"
    assert "Sink files can't delete entries" in answer.message
    assert answer.message.endswith("claim included. Then run: cdf-replicator resync orders_files")
    assert (world.state().epoch, world.delivered()) == (1, world.expected())

    shutil.rmtree(world.files / "orders")
    assert dry_run(world).endswith("target  empty: nothing would be removed\nNothing was written.")
    assert resynced(world)[0] is None
    assert (world.state().epoch, world.delivered()) == (2, world.expected())


def test_older_state_path_halts_a_route_whose_sink_keeps_orphans(world):
    """The entries of keys that were deleted since would stay."""
    world.environ["CDF_SINKS__FILES__TYPE"] = "folder"
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run() is None
    shutil.rmtree(world.state_path.root / "routes")  # of a copy from before the first start
    world.change("DELETE FROM {t} WHERE id = 1")
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "not_resyncable")
    assert decision.remedy.startswith("Delete that target")
    shutil.rmtree(world.files / "orders")
    assert resynced(world)[0] is None
    assert world.delivered() == world.expected()


def test_refused_sweep_continues_under_a_later_lease(world, elasticsearch, monkeypatch):
    """The index is then reached through another alias."""
    spec, lease = StateStore.route_spec, iter(range(1, 9))
    monkeypatch.setattr(
        StateStore, "route_spec", lambda self, route, state: replace(spec(self, route, state), fence=held)
    )
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "search",
        "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
        "CDF_SINKS__SEARCH__HOSTS": elasticsearch.url,
        "CDF_ROUTES__ORDERS_SEARCH__INDEX": "later-lease",
    }
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.create(rows=[f"({number}, 'a')" for number in range(10)])
    held = next(lease)
    assert world.run("orders_search") is None
    world.change("DELETE FROM {t} WHERE id < 5")
    held = next(lease)
    command = Command("resync", "orders_search", max_removed_share=0)
    assert world.run("orders_search", command=command).reason == "too_many_orphans"
    held = next(lease)
    assert world.run("orders_search", command=Command("resync", "orders_search", max_removed_share=1)) is None
    assert documents(elasticsearch.url, "later-lease").keys() == world.expected().keys()
