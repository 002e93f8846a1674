"""Tests of RedisSink on a cluster of real servers, and on a master that a sentinel names."""

import json
from contextlib import ExitStack, closing
from dataclasses import replace
from threading import Thread

import pytest
import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from connectors import PermanentError, RetryableError, RouteSpec, Watermark, guard_of
from connectors.redis import RedisOptions, RedisSettings, RedisSink
from connectors.redis.cluster import MARKED, slot_tags
from connectors.testing import (
    SCHEMA,
    BadRowContract,
    FenceContract,
    ResyncContract,
    SinkContract,
    VerifyContract,
    deletion,
    render_chunk,
    upsert,
)
from connectors.testing.verifying import read_entries
from tests.contract.redis_entries import JsonEntries
from tests.support.redis_groups import SLOTS, started_cluster, started_masters, started_with_sentinel
from tests.support.waiting import until

CLAIMS = SLOTS + 1


@pytest.fixture(scope="module")
def cluster():
    with started_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with redis.RedisCluster("127.0.0.1", cluster.servers[1].port, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def route():
    return RouteSpec(name="orders_cache", table="orders", keys=("id",), options=RedisOptions(), owner="us", epoch=1)


@pytest.fixture
def sink(cluster, client):
    with closing(RedisSink(RedisSettings(type="redis", url=cluster.url, timeout_seconds=60))) as sink:
        yield sink


@pytest.fixture
def chunk_of(spark, sink, route):
    return lambda *changes: render_chunk(spark, sink, route, SCHEMA, changes)


@pytest.fixture
def opened(sink, route):
    sink.read_claim(route)
    sink.prepare(SCHEMA, route)
    sink.open(route)
    return sink


class TestCluster(JsonEntries, SinkContract, ResyncContract, BadRowContract, FenceContract, VerifyContract):
    """The contract on three masters."""


def test_hashes_of_a_cluster_are_written_and_read_back(cluster, client, spark, route):
    settings = RedisSettings(type="redis", url=cluster.url, layout="hash")
    with closing(RedisSink(settings)) as sink:
        sink.prepare(SCHEMA, route)
        sink.open(route)
        sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert(str(row), 1, "x") for row in range(20)]))
        client.set("orders:text", "theirs")
        entries = read_entries(spark, sink, route, SCHEMA)
    assert entries["orders:7"] == (guard_of(1, 1, upsert=True), {"id": "7", "name": "x"})
    assert (len(entries), entries["orders:text"]) == (21, (None, None))


def test_delete_leaves_the_foreign_value_beside_rows_of_other_slots(opened, chunk_of, client):
    slots = {key: key_slot(f"orders:{key}".encode()) for key in range(40)}
    of_one_node = [key for key in slots if node(client, slots[key]) == node(client, slots[0])]
    theirs, *_, ours = sorted(of_one_node, key=slots.get)
    opened.write(chunk_of(upsert(str(ours), 1, "a")))
    client.rpush(f"orders:{theirs}", "theirs")
    result = opened.write(chunk_of(deletion(str(theirs), 2), upsert(str(ours), 2, "b")))
    assert (list(result.noop), list(result.rejected)) == ([0], [])
    assert client.lrange(f"orders:{theirs}", 0, -1) == ["theirs"]
    assert json.loads(client.get(f"orders:{ours}"))["name"] == "b"


def test_sweep_of_a_cluster_keeps_values_under_longer_claimed_prefixes(sink, spark, client, route):
    theirs = replace(route, name="theirs", options=RedisOptions(key_template="orders:eu:{id}"), owner="them")
    now = replace(route, options=RedisOptions(key_template="orders:{id}:v2"), epoch=2)
    for of in (route, theirs, now):
        sink.prepare(SCHEMA, of)
        sink.open(of)
        sink.write(
            render_chunk(spark, sink, of, SCHEMA, [upsert(str(row), 1, "x", epoch=of.epoch) for row in range(20)])
        )
    below = guard_of(2, 0, upsert=False)
    counted = sink.count_entries(now, below)
    assert (counted.total, counted.orphans) == (40, 20)
    assert sink.delete_orphans(now, below) == 20
    left = {f"orders:{row}:v2" for row in range(20)} | {f"orders:eu:{row}" for row in range(20)}
    assert set(client.scan_iter("orders:*", target_nodes="primaries")) == left


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_foreign_key_with_a_hash_tag_is_counted_shown_and_deleted(cluster, client, spark, route, layout):
    with closing(RedisSink(RedisSettings(type="redis", url=cluster.url, layout=layout))) as sink:
        sink.prepare(SCHEMA, route)
        sink.open(route)
        sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("1", 1, "x")]))
        set_foreign(client, "orders:{42}", layout)
        client.rpush("orders:{43}", "a list is kept")
        counted = sink.count_entries(route, guard_of(1, 0, upsert=False))
        assert (counted.total, counted.orphans) == (2, 1)
        entries = read_entries(spark, sink, route, SCHEMA)
        assert {key: guard for key, (guard, _) in entries.items()} == {
            "orders:1": guard_of(1, 1, upsert=True), "orders:{42}": None, "orders:{43}": None,
        }  # fmt: skip
        assert sink.delete_orphans(route, guard_of(1, 0, upsert=False)) == 1
    assert set(client.scan_iter("orders:*", target_nodes="primaries")) == {"orders:1", "orders:{43}"}
    assert not client.exists("cdf:guard:{orders:{42}}")


def set_foreign(client, key, layout):
    if layout == "hash":
        client.hset(key, "theirs", "1")
    else:
        client.set(key, "theirs")


def test_sweep_keeps_rows_between_foreign_keys_of_their_slot(opened, chunk_of, client, route):
    slot = key_slot(b"c1")
    ours = [str(key) for key in range(100_000) if key_slot(f"orders:{key}".encode()) == slot]
    theirs = [f"orders:{{c1}}:{number}" for number in range(len(ours) + len(ours) % 2)]
    opened.write(chunk_of(*(upsert(key, 1, "x") for key in ours)))
    names = [name for key in ours for name in (f"orders:{key}", f"cdf:guard:{{orders:{key}}}")]
    before = client.mget(names)
    for key in theirs:
        client.set(key, "theirs")
    assert opened.delete_orphans(route, guard_of(1, 0, upsert=False)) == len(theirs)
    assert client.mget(names) == before
    assert client.exists(*theirs) == 0


# Slots that move


def node(client, slot):
    return client.get_redis_connection(client.nodes_manager.slots_cache[slot][0])


def other(client, slot):
    return next(
        client.get_redis_connection(found)
        for found in client.get_primaries()
        if found != client.nodes_manager.slots_cache[slot][0]
    )


@pytest.fixture
def moved(cluster, client):
    """Return a function that moves the slot of a key; it is moved back at the end."""
    slots = []

    def move(key, *, finish=True):
        slot = key_slot(f"orders:{key}".encode())
        ends = node(client, slot), other(client, slot)
        slots.append((slot, *ends))
        cluster.migrate(slot, *ends, finish=finish)
        return slots[-1]

    yield move
    for slot, source, target in slots:
        client.nodes_manager.initialize()
        if node(client, slot) == source:
            cluster.migrate(slot, source, target)
        cluster.migrate(slot, target, source)


def test_call_follows_its_slot_to_another_node(opened, chunk_of, client, moved):
    opened.write(chunk_of(upsert("1", 1, "a"), upsert("2", 1, "a")))
    moved("1")
    assert not opened.write(chunk_of(upsert("1", 2, "b"), upsert("2", 2, "b"))).stale
    assert json.loads(client.get("orders:1"))["name"] == json.loads(client.get("orders:2"))["name"] == "b"


def test_slot_in_transit_takes_known_keys_and_new_keys_wait(opened, chunk_of, client, cluster, moved, route):
    opened.write(chunk_of(upsert("1", 1, "a")))
    slot = key_slot(b"orders:1")
    beside = next(str(key) for key in range(1, 200_000) if key != 1 and key_slot(f"orders:{key}".encode()) == slot)
    transit = moved("1", finish=False)
    assert not opened.write(chunk_of(upsert("1", 2, "b"))).stale
    with pytest.raises(RetryableError) as caught:
        opened.write(chunk_of(upsert(beside, 2, "b")))
    assert caught.value.reason == "unavailable"
    with pytest.raises(RetryableError, match="slots moved"):
        opened.count_entries(route, 0)
    cluster.migrate(*transit)
    assert not opened.write(chunk_of(upsert(beside, 2, "b"))).stale
    assert json.loads(client.get("orders:1"))["name"] == "b"
    assert client.exists(f"orders:{beside}")


def test_claim_in_a_slot_that_its_next_node_does_not_import_waits(sink, client, route):
    slot = key_slot(b"orders:")
    source, target = node(client, slot), other(client, slot)
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.execute_command("CLUSTER", "MYID"))
    try:
        for step in (lambda: sink.read_claim(route), lambda: sink.prepare(SCHEMA, route)):
            with pytest.raises(RetryableError) as caught:
                step()
            assert caught.value.reason == "unavailable"
    finally:
        source.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
    sink.prepare(SCHEMA, route)
    assert sink.read_claim(route).is_of(route)


def test_hash_in_a_slot_in_transit_waits(cluster, client, spark, route, moved):
    with closing(RedisSink(RedisSettings(type="redis", url=cluster.url, layout="hash"))) as sink:
        sink.prepare(SCHEMA, route)
        sink.open(route)
        sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("1", 1, "a")]))
        slot = key_slot(b"orders:1")
        ends = node(client, slot), other(client, slot)
        ids = [end.execute_command("CLUSTER", "MYID") for end in ends]
        ends[1].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        ends[0].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        newer = render_chunk(spark, sink, route, SCHEMA, [upsert("1", 2, "b")])
        with pytest.raises(RetryableError) as caught:
            sink.write(newer)
        assert caught.value.reason == "unavailable"
        moved("1")
        assert not sink.write(newer).stale
    assert client.hget("orders:1", "name") == "b"


def test_outcomes_name_their_rows_when_slots_have_moved(opened, chunk_of, client, moved):
    opened.write(chunk_of(*(upsert(str(key), 2, "a") for key in range(40))))
    client.delete("orders:7", "cdf:guard:{orders:7}")
    client.rpush("orders:7", "theirs")
    for key in (3, 7):
        moved(str(key))
    changes = [upsert(str(key), 1 if key in (3, 4) else 3, "b") for key in range(40)]
    result = opened.write(chunk_of(*changes, deletion("41", 3)))
    assert sorted(result.stale) == [3, 4]
    assert result.noop == [40]
    assert [entry.position for entry in result.rejected] == [7]
    assert json.loads(client.get("orders:8"))["name"] == "b"


def test_slots_that_migrate_during_delivery_lose_nothing(opened, chunk_of, client, cluster):
    chunks = [chunk_of(*(upsert(str(key), version, f"v{version}") for key in range(300))) for version in range(1, 9)]

    def migrate():
        for slot in sorted({key_slot(f"orders:{key}".encode()) for key in range(40)}):
            client.nodes_manager.initialize()
            cluster.migrate(slot, node(client, slot), other(client, slot))

    mover = Thread(target=migrate)
    mover.start()
    rounds = 0
    while rounds < len(chunks) or mover.is_alive():
        try:
            opened.write(chunks[min(rounds, len(chunks) - 1)])
            rounds += 1
        except RetryableError as error:
            assert error.reason == "unavailable"  # noqa: PT017
    mover.join()
    until(lambda: opened.lost_acknowledged_writes() is False)
    assert {json.loads(client.get(f"orders:{key}"))["name"] for key in range(300)} == {"v8"}
    assert sum(node.dbsize() for node in map(client.get_redis_connection, client.get_primaries())) == 600 + CLAIMS


# Nodes that fail


def test_failed_master_and_the_writes_its_replica_lacks_are_detected(opened, chunk_of, client, cluster, route):
    master, replica = cluster.servers[0], cluster.servers[3]
    with redis.Redis.from_url(master.url) as old, redis.Redis.from_url(replica.url) as new:
        opened.write(chunk_of(*(upsert(str(key), 1, "one") for key in range(60))))
        opened.save_watermark(route, Watermark(0, 1, 1))
        old.wait(1, 0)
        replica.pause()
        old.client_kill_filter(_type="replica")
        second = chunk_of(*(upsert(str(key), 2, "two") for key in range(60)))
        opened.write(second)
        assert not opened.lost_acknowledged_writes()
        opened.save_watermark(route, Watermark(0, 2, 2))
        known = replace(route, watermark=Watermark(0, 2, 2))
        assert opened.read_claim(known).watermark == Watermark(0, 2, 2)
        assert not opened.read_claim(known).restored
        master.kill()
        with pytest.raises(RetryableError) as caught:
            opened.write(second)
        assert caught.value.reason == "unreachable"
        replica.resume()
        until(lambda: new.ping() and new.execute_command("CLUSTER", "FAILOVER", "TAKEOVER"))
        try:
            until(lambda: lost(opened))
            with pytest.raises(RetryableError, match="new master") as caught:
                opened.save_watermark(known, Watermark(0, 3, 3))
            assert caught.value.reason == "lost"
            claim = opened.read_claim(known)
            assert (claim.watermark, claim.restored) == (Watermark(0, 1, 1), True)
            opened.prepare(SCHEMA, route)
            opened.write(second)
            assert not opened.lost_acknowledged_writes()
            opened.save_watermark(route, Watermark(0, 2, 2))
            client.nodes_manager.initialize()
            assert {json.loads(client.get(f"orders:{key}"))["name"] for key in range(60)} == {"two"}
        finally:
            master.restart()
            until(lambda: old.info("replication").get("master_link_status") == "up")
            old.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
            until(lambda: old.info("replication")["role"] == "master")


def claim_of(slot):
    return f"cdf:claim:{{{slot_tags()[slot]}}}orders:"


def test_claim_that_moved_does_not_hide_lost_writes(opened, client, cluster, route):
    """One master has the claims of a promoted replica that lacks the last micro-batch."""
    promoted = node(client, 0)
    lagging = {slot for slot in MARKED if node(client, slot) == promoted}
    for number in (1, 2):
        opened.save_watermark(route, Watermark(0, number, number))
    for slot in lagging:
        client.hset(claim_of(slot), "mark", "0:1:1")
    slot = max(MARKED - lagging)
    source = node(client, slot)
    cluster.migrate(slot, source, promoted)
    try:
        claim = opened.read_claim(replace(route, watermark=Watermark(0, 2, 2)))
    finally:
        cluster.migrate(slot, promoted, source)
    assert (claim.watermark, claim.restored) == (Watermark(0, 1, 1), True)


def test_new_master_of_a_few_slots_keeps_the_watermark(route):
    with (
        started_masters({}, replicas=1) as cluster,
        closing(RedisSink(RedisSettings(type="redis", url=cluster.url, timeout_seconds=60))) as sink,
    ):
        sink.read_claim(route)
        sink.prepare(SCHEMA, route)
        sink.save_watermark(route, Watermark(0, 1, 1))
        cluster.migrate(100, cluster.clients[0], cluster.clients[3])
        claim = sink.read_claim(replace(route, watermark=Watermark(0, 1, 1)))
        assert (claim.watermark, claim.restored) == (Watermark(0, 1, 1), False)
        sink.save_watermark(route, Watermark(0, 2, 2))
        known = replace(route, watermark=Watermark(0, 2, 2))
        assert not sink.read_claim(known).restored
        cluster.clients[3].hset(claim_of(100), "mark", "0:1:1")
        assert sink.read_claim(known).restored, "its own loss is detected after the next micro-batch"


def test_full_node_and_a_readable_cluster_that_is_down_are_retried(spark, route):
    config = {"cluster-allow-reads-when-down": "yes", "cluster-node-timeout": "1000"}
    with started_masters(config) as cluster, ExitStack() as sinks:
        settings = RedisSettings(type="redis", url=cluster.url, timeout_seconds=60)
        sink, second = (sinks.enter_context(closing(RedisSink(settings))) for _ in range(2))
        sink.prepare(SCHEMA, route)
        sink.open(route)
        cluster.clients[1].config_set("maxclients", 1)
        with pytest.raises(RetryableError) as caught:
            second.check()
        assert caught.value.reason == "overloaded"
        cluster.clients[1].config_set("maxclients", 1000)
        key = next(str(key) for key in range(SLOTS) if key_slot(f"orders:{key}".encode()) < SLOTS // 3)
        chunk = render_chunk(spark, sink, route, SCHEMA, [upsert(key, 1, "a")])
        sink.write(chunk)
        cluster.servers[2].kill()
        until(lambda: cluster.clients[0].execute_command("CLUSTER INFO")["cluster_state"] == "fail")
        with pytest.raises(RetryableError) as caught:
            sink.write(chunk)
        assert caught.value.reason == "unavailable"


def lost(sink):
    try:
        return sink.lost_acknowledged_writes()
    except RetryableError:  # the nodes do not agree yet
        return False


def test_emptied_master_is_an_absent_claim_and_refuses_writes(opened, chunk_of, client, route):
    node(client, 0).flushall()
    assert opened.read_claim(route) is None
    with pytest.raises(PermanentError, match="it was emptied"):
        opened.write(chunk_of(*(upsert(str(key), 1, "x") for key in range(30))))


def test_claim_of_another_holder_refuses_the_rows_of_its_slot(opened, chunk_of, client, route):
    rows = [upsert(str(key), 1, "x") for key in range(30)]
    slot = key_slot(b"orders:9")
    client.hset(claim_of(slot), "owner", "them:theirs")
    with pytest.raises(PermanentError):
        opened.write(chunk_of(*rows))
    assert not client.exists("orders:9")


def test_cluster_out_of_memory_still_deletes(opened, chunk_of, client):
    nodes = [client.get_redis_connection(found) for found in client.get_primaries()]
    opened.write(chunk_of(*(upsert(str(key), 1, "x") for key in range(30))))
    for found in nodes:
        found.config_set("maxmemory", 1)
    try:
        changes = [upsert(str(key), 2, "y") if key % 2 else deletion(str(key), 2) for key in range(30)]
        with pytest.raises(RetryableError) as caught:
            opened.write(chunk_of(*changes))
    finally:
        for found in nodes:
            found.config_set("maxmemory", 0)
    assert caught.value.reason == "out_of_memory"
    assert {key for key in range(30) if client.exists(f"orders:{key}")} == set(range(1, 30, 2))
    assert {json.loads(client.get(f"orders:{key}"))["name"] for key in range(1, 30, 2)} == {"x"}


# URLs


def test_cluster_and_single_server_urls_name_each_other(cluster, redis_server, sink):
    sink.check()
    assert sink.endpoint == ",".join(sorted(f"127.0.0.1:{server.port}" for server in cluster.servers[:3]))
    for url, begin in (
        (f"redis://127.0.0.1:{cluster.servers[0].port}", "redis+cluster://"),
        (redis_server.url.replace("redis:", "redis+cluster:"), "redis://"),
    ):
        with closing(RedisSink(RedisSettings(type="redis", url=url))) as wrong, pytest.raises(PermanentError) as caught:
            wrong.check()
        assert begin in caught.value.hint


# Sentinel


def test_promoted_replica_is_found_and_its_lost_writes_are_detected(spark, route):
    with (
        started_with_sentinel() as watched,
        closing(RedisSink(RedisSettings(type="redis", url=watched.url, timeout_seconds=30))) as sink,
        redis.Redis.from_url(watched.master.url) as old,
        # Sentinel closes the connections of a replica that it promotes.
        redis.Redis.from_url(watched.replica.url, decode_responses=True, retry=Retry(NoBackoff(), 3)) as new,
    ):
        sink.check()
        sink.read_claim(route)
        sink.prepare(SCHEMA, route)
        sink.open(route)
        chunk = render_chunk(spark, sink, route, SCHEMA, [upsert("1", 1, "a")])
        sink.write(chunk)
        sink.save_watermark(route, Watermark(0, 1, 1))
        assert not sink.lost_acknowledged_writes()
        old.wait(1, 0)
        watched.master.kill()
        with pytest.raises(RetryableError) as caught:
            sink.write(chunk)
        assert caught.value.reason == "unreachable"
        until(lambda: new.info("replication")["role"] == "master")
        until(lambda: lost(sink))
        assert sink.read_claim(route).watermark == Watermark(0, 1, 1)
        sink.open(route)
        assert not sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("1", 2, "b")])).stale
        assert json.loads(new.get("orders:1"))["name"] == "b"
        assert sink.endpoint == f"127.0.0.1:{watched.sentinel.port}/cache/0"


def test_sentinel_without_a_port_has_the_default_port():
    with started_with_sentinel() as watched:
        known = f"127.0.0.1:{watched.sentinel.port}"
        for hosts in (f"127.0.0.1,{known}", f"{known},127.0.0.1"):  # no sentinel listens on the default port
            url = watched.url.replace(known, hosts)
            with closing(RedisSink(RedisSettings(type="redis", url=url))) as sink:
                sink.check()
