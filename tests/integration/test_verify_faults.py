"""A route that can't be compared gives the reason and the next step; nothing of it changes, and a later comparison works."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import httpx
import pytest
import redis

from cdf_replicator.commands import submit
from cdf_replicator.spark.session import clear_delta_cache
from cdf_replicator.state.command_queue import Command
from connectors.elasticsearch import view
from deploy.local.servers import Redis
from tests.integration.test_verify import sinks, verified

ROUTE = "orders_target"


@pytest.fixture
def searched(world, elasticsearch, redis_server):
    sinks(world, "elasticsearch", elasticsearch, redis_server)
    httpx.delete(f"{elasticsearch.url}/orders")
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run(ROUTE) is None
    return world


def refused(world, here, *words: str) -> str:
    """Run ``verify``; return its log."""
    before = world.state(ROUTE)
    ended = here(world.environ, "verify", ROUTE, *words)
    assert ended.code == 75, ended.log
    assert "Traceback" not in ended.log
    assert world.state(ROUTE) == before
    return ended.log


def test_version_that_vacuum_removed_is_reported_with_the_next_step(searched, here):
    searched.change("UPDATE {t} SET name = 'c'")
    assert searched.run(ROUTE) is None
    searched.vacuum()
    assert "VACUUM has removed files" in refused(searched, here, "--at", "1")
    assert here(searched.environ, "verify", ROUTE).code == 0


def test_recreated_table_is_reported(searched, here):
    shutil.rmtree(searched.table)
    clear_delta_cache(searched.spark)
    searched.create(rows=["(1, 'a')"])
    assert "resync" in refused(searched, here)


def test_point_in_time_that_expires_is_reported(searched, here, monkeypatch):
    opened = view.opened

    @contextmanager
    def expired(cluster, settings, index):
        with opened(cluster, settings, index) as found:
            view.close_pit(cluster, found.pit)
            yield found

    monkeypatch.setattr(view, "opened", expired)
    log = refused(searched, here)
    assert "No search context found" in log
    monkeypatch.undo()
    assert here(searched.environ, "verify", ROUTE).code == 0


def test_resync_that_begins_meanwhile_is_reported_and_nothing_is_repaired(searched, here, monkeypatch):
    resync, submitted, opened = Command("resync", ROUTE), [], view.opened

    @contextmanager
    def overtaken(cluster, settings, index):
        if searched.state(ROUTE).epoch == 1:
            assert searched.run(ROUTE, command=resync) is None
        with opened(cluster, settings, index) as found:
            yield found

    monkeypatch.setattr(view, "opened", overtaken)
    monkeypatch.setattr(submit, "execute", lambda *given, **_: submitted.append(given) or 1)
    ended = here(searched.environ, "verify", ROUTE, "--repair")
    assert (ended.code, "A replay or a resync of route orders_target began meanwhile" in ended.log) == (75, True), (
        ended.log
    )
    assert not submitted
    assert verified(searched).comparison.equal


def test_deleted_index_is_reported(searched, here, elasticsearch):
    httpx.delete(f"{elasticsearch.url}/orders").raise_for_status()
    assert "index 'orders' is gone" in refused(searched, here)


def test_sink_that_is_away_is_reported(world, elasticsearch, here):
    with Redis.start() as server:
        sinks(world, "redis", elasticsearch, server)
        world.create(rows=["(1, 'a')"])
        assert world.run(ROUTE) is None
    log = refused(world, here)
    assert "unreachable" in log


def test_route_before_its_first_load_is_refused(world, elasticsearch, redis_server, here):
    sinks(world, "elasticsearch", elasticsearch, redis_server)
    world.create(rows=["(1, 'a')"])
    assert "has not delivered its first snapshot" in refused(world, here)


def test_paused_route_is_compared_and_a_feed_that_was_off_is_reported(world, elasticsearch, redis_server, here):
    sinks(world, "redis", elasticsearch, redis_server)
    redis.Redis.from_url(redis_server.url).flushall()
    world.create(rows=["(1, 'a')"])
    assert world.run(ROUTE) is None
    world.state_path.set_paused(ROUTE)
    assert verified(world).comparison.equal
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    world.insert("(2, 'b')")
    assert f"cdf-replicator resync {ROUTE}" in refused(world, here)


def test_entry_that_may_have_expired_is_not_missing(world, elasticsearch, redis_server):
    sinks(world, "redis", elasticsearch, redis_server)
    world.environ["CDF_SINKS__TARGET__TTL_SECONDS"] = "3600"
    server = redis.Redis.from_url(redis_server.url)
    server.flushall()
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    assert world.run(ROUTE) is None
    server.delete("orders:1", "cdf:guard:{orders:1}")
    assert verified(world).comparison.equal
    server.set("orders:2", '{"id": 2, "name": "stale"}')
    assert verified(world).comparison.kinds == {"missing": 0, "extra": 0, "different": 1, "foreign": 0}
