"""Tests of RedisSink on a real server: the contract in both layouts and with a key template, then behaviour specific to Redis."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors import Claim, EntryCount, PermanentError, RetryableError, RouteSpec, Watermark, guard_of
from connectors.redis import RedisOptions, RedisSettings, RedisSink
from connectors.redis.protocol import bulk
from connectors.testing import (
    SCHEMA,
    BadRowContract,
    FenceContract,
    ResyncContract,
    SinkContract,
    VerifyContract,
    change_frame,
    deletion,
    render_chunk,
    upsert,
)
from deploy.local.servers import Redis
from tests.contract.every_type import VerifyEveryType
from tests.contract.redis_entries import JsonEntries, inner
from tests.support.session import replaced
from tests.support.waiting import until

DAY = 86_400


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def route():
    return RouteSpec(name="orders_cache", table="orders", keys=("id",), options=RedisOptions(), owner="us", epoch=1)


@pytest.fixture
def sink_of(redis_server, client):
    """Sinks with settings of the test's own, closed afterwards."""
    made = []

    def make(**settings):
        made.append(RedisSink(RedisSettings(**{"type": "redis", "url": redis_server.url, **settings})))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def deliver(spark, route):
    prepared = []

    def deliver(sink, *changes, schema=SCHEMA, route=route):
        if (sink, route) not in prepared:
            sink.prepare(schema, route)
            prepared.append((sink, route))
        chunk = render_chunk(spark, sink, route, schema, changes)
        sink.open(route)
        return sink.write(chunk)

    return deliver


class TestJsonLayout(JsonEntries, SinkContract, ResyncContract, BadRowContract, FenceContract, VerifyEveryType):
    @pytest.fixture
    def sink(self, sink_of):
        return sink_of()


class TestHashLayout(SinkContract, ResyncContract, BadRowContract, VerifyEveryType):
    @pytest.fixture
    def sink(self, sink_of):
        return sink_of(layout="hash")

    @pytest.fixture
    def read(self, client):
        return lambda route, key: client.hgetall(f"{route.table}:{inner(key)}") or None

    @pytest.fixture
    def write_foreign(self, client):
        return lambda route, key: client.hset(f"{route.table}:{inner(key)}", "id", key)

    @pytest.fixture
    def bad_change(self, client):
        client.set("orders:text", "not ours")
        return upsert("text", 7, "x")


class TestKeyTemplate(SinkContract, ResyncContract, VerifyContract):
    @pytest.fixture
    def sink(self, sink_of):
        return sink_of(ttl_seconds=1000)

    @pytest.fixture
    def route(self, route):
        options = RedisOptions(key_template="shop/[*]?/{id}/row")
        return RouteSpec("orders_cache", "orders", ("id",), options, "us", 1)

    @pytest.fixture
    def other_route(self):
        options = RedisOptions(key_template="shop/[*]?x/{id}")
        return RouteSpec("other", "orders", ("id",), options, "us", 1)

    @pytest.fixture
    def read(self, client, route):
        def read(of, key):
            text = client.get(f"shop/[*]?/{inner(key)}/row" if of == route else f"shop/[*]?x/{inner(key)}")
            return None if text is None else json.loads(text)

        return read

    @pytest.fixture
    def write_foreign(self, client):
        return lambda route, key: client.set(f"shop/[*]?/{inner(key)}/row", "no JSON")


# Form of the entries


def test_a_json_entry_is_the_row_as_plain_text(sink_of, deliver, client):
    deliver(sink_of(), upsert("1", 7, None))
    assert client.get("orders:1") == '{"id":"1","name":null}'
    assert client.get("cdf:guard:{orders:1}") == f"{guard_of(1, 7, upsert=True):019d}"


def test_hash_holds_text_omits_nulls_and_writes_nested_values_as_json(sink_of, deliver, client):
    schema = StructType(
        [
            *SCHEMA.fields,
            StructField("a.b", LongType()),
            StructField("paid", BooleanType()),
            StructField("price", DecimalType(20, 2)),
            StructField("rate", DoubleType()),
            StructField("day", DateType()),
            StructField("at", TimestampType()),
            StructField("tags", ArrayType(StringType())),
            StructField("prices", MapType(StringType(), DecimalType(20, 2))),
            StructField("größe", StringType()),
        ]
    )
    at = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    values = {
        "a.b": 2**60,
        "paid": True,
        "price": Decimal("12.30"),
        "rate": 0.5,
        "day": date(2024, 1, 2),
        "at": at,
        "tags": ["é", None],
        "prices": {"net": Decimal("1.10")},
        "größe": "groß\r\n",
    }
    sink = sink_of(layout="hash")
    deliver(sink, upsert("1", 1, "old"), schema=schema)
    deliver(sink, upsert("1", 2, None, **values), upsert("2", 2, "b"), schema=schema)
    assert client.hgetall("orders:1") == {
        "id": "1",
        "a.b": str(2**60),
        "paid": "true",
        "price": "12.30",
        "rate": "0.5",
        "day": "2024-01-02",
        "at": "2024-01-02T03:04:05.678901Z",
        "tags": '["é",null]',
        "prices": '{"net":"1.10"}',
        "größe": "groß\r\n",
    }
    assert client.hgetall("orders:2") == {"id": "2", "name": "b"}


def test_hash_of_nulls_alone_has_no_entry_and_refuses_older_rows(sink_of, deliver, client):
    sink, name = sink_of(layout="hash"), StructType([StructField("name", StringType())])
    deliver(sink, upsert("1", 1, "first"), schema=name)
    deliver(sink, upsert("1", 7, None), schema=name)
    assert list(deliver(sink, upsert("1", 6, "older"), schema=name).stale) == [0]
    assert not client.exists("orders:1")
    assert not deliver(sink, upsert("1", 7, None), schema=name).stale
    deliver(sink, upsert("1", 8, "newer"), schema=name)
    assert (client.hgetall("orders:1"), client.ttl("cdf:guard:{orders:1}")) == ({"name": "newer"}, -1)


def test_a_wide_hash_is_written_whole(sink_of, client, route):
    columns = {f"c{number}": str(number) for number in range(4000)}
    words = ["0" * 19, str(2 * len(columns)), *(word for pair in columns.items() for word in pair)]
    rows = {
        "redis_keys": [bulk("orders:1") + bulk("cdf:guard:{orders:1}")],
        "redis_arguments": ["".join(map(bulk, words))],
    }
    sink = sink_of(layout="hash")
    sink.prepare(SCHEMA, route)
    sink.open(route)
    sink.write(pa.RecordBatch.from_pydict({**rows, "redis_count": [len(words)]}))
    assert client.hgetall("orders:1") == columns


def test_template_takes_values_from_the_key_in_any_order(sink_of, deliver, client):
    options = RedisOptions(key_template="eu:{id}:of:{region}")
    route = RouteSpec("orders_cache", "orders", ("region", "id"), options, "us", 1)
    row = upsert("x", 1, "n")
    deliver(sink_of(), type(row)("de%3Aby:{7}%25", row.guard, row.change_type, row.row), route=route)
    own = ["cdf:claim:{eu:}", "cdf:guard:{eu:%7B7%7D%25:of:de%3Aby}"]
    assert sorted(client.keys()) == [*own, "eu:%7B7%7D%25:of:de%3Aby"]


def test_a_template_that_leaves_out_a_key_column_is_refused(sink_of):
    options = RedisOptions(key_template="eu:{id}")
    route = RouteSpec("orders_cache", "orders", ("region", "id"), options, "us", 1)
    with pytest.raises(PermanentError, match="region, id"):
        sink_of().target(route)


def test_a_value_and_its_guard_share_a_cluster_slot(sink_of, deliver, client):
    deliver(sink_of(), *(upsert(key, 1, "x") for key in ("", "a", "{a}", "}{", "{}")))
    for value in client.scan_iter("orders:*"):
        assert redis.crc.key_slot(value.encode()) == redis.crc.key_slot(f"cdf:guard:{{{value}}}".encode())
        assert client.exists(f"cdf:guard:{{{value}}}")


def test_the_target_is_a_prefix_and_the_same_with_tls(sink_of, route):
    assert sink_of(url="redis://me:pw@cache:6380/2").target(route) == "redis cache:6380/2 orders:"
    assert sink_of(url="rediss://me:pw@cache:6380/2").target(route) == "redis cache:6380/2 orders:"
    assert sink_of(url="unix:///run/redis.sock?db=1").target(route) == "redis /run/redis.sock/1 orders:"


# Life and death of entries


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_a_value_and_its_guard_expire_together(sink_of, deliver, client, layout):
    sink = sink_of(layout=layout, ttl_seconds=500)
    deliver(sink, upsert("1", 1, "a"))
    client.expire("orders:1", 10)
    deliver(sink, upsert("1", 2, "b"))
    assert 490 < client.ttl("orders:1") <= 500
    assert 490 < client.ttl("cdf:guard:{orders:1}") <= 500


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_only_tombstones_expire_without_a_ttl(sink_of, deliver, client, layout):
    sink = sink_of(layout=layout)
    deliver(sink, upsert("1", 1, "a"), upsert("2", 1, "a"))
    deliver(sink, deletion("2", 2), deletion("3", 2))
    assert [client.ttl(key) for key in ("orders:1", "cdf:guard:{orders:1}")] == [-1, -1]
    assert [DAY - 10 < client.ttl(f"cdf:guard:{{orders:{key}}}") <= DAY for key in "23"] == [True, True]
    deliver(sink, upsert("2", 3, "again"))
    assert [client.ttl(key) for key in ("orders:2", "cdf:guard:{orders:2}")] == [-1, -1]


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_guard_without_its_value_counts_as_absent(sink_of, deliver, client, layout):
    sink = sink_of(layout=layout)
    deliver(sink, upsert("1", 9, "evicted"))
    client.delete("orders:1")
    assert not deliver(sink, upsert("1", 5, "replayed")).stale
    assert client.exists("orders:1")
    assert list(deliver(sink, upsert("1", 4, "old")).stale) == [0]


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_value_without_its_guard_is_replaced(sink_of, deliver, client, layout):
    sink = sink_of(layout=layout)
    deliver(sink, upsert("1", 5, "a"))
    client.delete("cdf:guard:{orders:1}")
    result = deliver(sink, upsert("1", 6, "b"))
    assert not result.rejected
    assert not result.stale
    assert client.exists("cdf:guard:{orders:1}")


def test_a_resync_in_another_layout_rewrites_the_entries(sink_of, deliver, client):
    deliver(sink_of(), upsert("1", 9, "json"))
    assert not deliver(sink_of(layout="hash"), upsert("1", 9, "hash", epoch=2)).rejected
    assert client.hgetall("orders:1") == {"id": "1", "name": "hash"}
    assert not deliver(sink_of(), upsert("1", 9, "json", epoch=3)).rejected
    assert json.loads(client.get("orders:1"))["name"] == "json"


def test_foreign_value_under_a_key_is_neither_overwritten_nor_deleted(sink_of, deliver, client):
    client.rpush("orders:1", "theirs")
    sink = sink_of()
    result = deliver(sink, upsert("0", 5, "a"), upsert("1", 5, "a"))
    assert [(r.position, r.code) for r in result.rejected] == [(1, "wrong_type")]
    assert list(deliver(sink, deletion("1", 6)).noop) == [0]
    assert client.lrange("orders:1", 0, -1) == ["theirs"]
    client.delete("orders:1")
    assert not deliver(sink, upsert("1", 7, "b")).rejected
    assert json.loads(client.get("orders:1"))["name"] == "b"


def test_positions_of_several_calls_are_positions_of_the_chunk(sink_of, deliver, client):
    sink = sink_of()
    client.rpush("orders:1700", "theirs")
    deliver(sink, *(upsert(str(row), 9, "new") for row in range(0, 1500, 500)))
    changes = [upsert(str(row), 5, "old") if row % 600 else deletion(str(row), 5) for row in range(2000)]
    result = deliver(sink, *changes)
    assert sorted(result.stale) == [0, 500, 1000]
    assert sorted(result.noop) == [600, 1200, 1800]
    assert [rejected.position for rejected in result.rejected] == [1700]
    assert result.sent_bytes > 2000 * 100
    assert client.dbsize() == 2 * 2000 - 3 - 1 + 1, "the claim too"


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_too_large_row_is_rejected_and_other_rows_are_written(sink_of, deliver, client, layout):
    sink = sink_of(layout=layout, max_value_bytes=1_000_000)
    client.rpush("orders:theirs", "x")
    deliver(sink, upsert("newer", 9, "b"))
    names = {
        "a": "x",
        "huge": "y" * 1_200_000,
        "newer": "a",
        "large": "z" * 900_000,
        "theirs": "x",
        "huger": "y" * 2_000_000,
    }
    result = deliver(sink, *(upsert(key, 5, name) for key, name in names.items()), deletion("missing", 5))
    rejected = {(entry.position, entry.code) for entry in result.rejected}
    assert rejected == {(1, "too_large"), (4, "wrong_type"), (5, "too_large")}
    assert (list(result.stale), list(result.noop)) == ([2], [6])
    assert [key for key in names if client.exists(f"orders:{key}")] == ["a", "newer", "large", "theirs"]


def test_key_of_many_bytes_is_accepted(sink_of, deliver, client):
    deliver(sink_of(), upsert("k" * 5000, 1, "a"), upsert("k" * 5001, 1, "b"))
    assert client.exists("orders:" + "k" * 5000, "orders:" + "k" * 5001) == 2


def test_a_sweep_leaves_a_tombstone_against_leftover_writers(sink_of, deliver, client, route):
    sink = sink_of()
    deliver(sink, *(upsert(str(row), 9, "old") for row in range(1200)))
    assert sink.delete_orphans(route, guard_of(2, 5, upsert=False)) == 1200
    assert list(deliver(sink, upsert("1", 10, "leftover")).stale) == [0]
    assert not deliver(sink, upsert("1", 5, "new", epoch=2), deletion("2", 5, epoch=2)).stale
    assert client.get("orders:1")


def test_a_sweep_keeps_values_under_a_longer_prefix_with_a_claim(sink_of, deliver, client, route):
    sink, longer = sink_of(), RedisOptions(key_template="orders:eu:{id}")
    now = replace(route, options=RedisOptions(key_template="orders:{id}:v2"), epoch=2)
    deliver(sink, upsert("1", 9, "former"))
    deliver(sink, upsert("2", 9, "theirs"), route=replace(route, name="theirs", options=longer, owner="them"))
    deliver(sink, upsert("1", 9, "now", epoch=2), route=now)
    below = guard_of(2, 0, upsert=False)
    assert sink.count_entries(now, below) == EntryCount(total=2, orphans=1, highest=guard_of(2, 9, upsert=True))
    assert sink.delete_orphans(now, below) == 1
    assert sorted(client.scan_iter("orders:*")) == ["orders:1:v2", "orders:eu:2"]
    assert client.get("cdf:guard:{orders:eu:2}") == f"{guard_of(1, 9, upsert=True):019d}"


# Trouble


@pytest.fixture
def no_memory(client):
    """A function that leaves the server no memory for writes; it gets it back at the end."""
    yield lambda: client.config_set("maxmemory", "1mb")
    client.config_set("maxmemory", "0")


@pytest.mark.parametrize("layout", ["json", "hash"])
@pytest.mark.parametrize("ttl_seconds", [None, 500])
def test_out_of_memory_is_retried_while_deletes_still_succeed(sink_of, deliver, client, no_memory, layout, ttl_seconds):
    sink = sink_of(layout=layout, ttl_seconds=ttl_seconds)
    deliver(sink, upsert("1", 1, "a" * 5_000_000), upsert("2", 1, "a"), upsert("3", 1, "a"))
    no_memory()
    with pytest.raises(RetryableError) as caught:
        deliver(sink, upsert("2", 2, "b"), deletion("3", 2))
    assert caught.value.reason == "out_of_memory"
    assert client.exists("orders:2")
    assert not client.exists("orders:3")
    assert not deliver(sink, deletion("1", 2)).noop
    client.config_set("maxmemory", "0")
    assert list(deliver(sink, upsert("2", 2, "b"), deletion("3", 2)).stale) == [1]


def test_a_lost_script_is_loaded_again(sink_of, deliver, client, spark, route):
    sink = sink_of()
    deliver(sink, upsert("1", 1, "a"))
    chunk = render_chunk(spark, sink, route, SCHEMA, [upsert(str(row), 2, "b") for row in range(1000)])
    client.script_flush()
    assert not sink.write(chunk).stale
    assert client.dbsize() == 2000 + 1, "the claim too"


def test_crash_is_retryable_and_writes_succeed_after_the_restart(redis_server, sink_of, spark, route):
    sink = sink_of(timeout_seconds=2)
    sink.prepare(SCHEMA, route)
    sink.open(route)
    chunk = render_chunk(spark, sink, route, SCHEMA, [upsert("1", 1, "a")])
    sink.write(chunk)
    redis_server.kill()
    try:
        for attempt in (
            lambda: sink.write(chunk),
            sink.check,
            lambda: sink.read_claim(route),
            lambda: sink.open(route),
        ):
            with pytest.raises(RetryableError) as caught:
                attempt()
            assert caught.value.reason == "unreachable"
    finally:
        redis_server.restart()
    assert not sink.write(chunk).stale


def test_a_server_that_hangs_times_out(redis_server, sink_of, spark, route):
    sink_of().prepare(SCHEMA, route)
    sink = sink_of(timeout_seconds=2)
    sink.open(route)
    chunk = render_chunk(spark, sink, route, SCHEMA, [upsert("1", 1, "a")])
    redis_server.pause()
    try:
        with pytest.raises(RetryableError) as caught:
            sink.write(chunk)
    finally:
        redis_server.resume()
    assert caught.value.reason == "timeout"
    assert not sink.write(chunk).stale


def test_demoted_master_is_retried(sink_of, deliver, client):
    sink = sink_of()
    deliver(sink, upsert("1", 1, "a"))
    client.replicaof("127.0.0.1", "1")
    try:
        for attempt in (lambda: deliver(sink, upsert("1", 2, "b")), sink.check):
            with pytest.raises(RetryableError) as caught:
                attempt()
            assert caught.value.reason == "read_only"
    finally:
        client.replicaof("no", "one")
    assert not deliver(sink, upsert("1", 2, "b")).stale


def test_a_cluster_is_refused(sink_of):
    with Redis.start(config={"cluster-enabled": "yes"}) as cluster:
        with pytest.raises(PermanentError, match="cluster") as caught:
            sink_of(url=cluster.url).check()
        assert caught.value.hint


def test_server_with_eviction_causes_a_warning(sink_of, client, route):
    sink = sink_of()
    assert list(sink.prepare(SCHEMA, route)) == []
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", "1gb")
    try:
        assert "allkeys-lru" in sink.prepare(SCHEMA, route)[0]
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")


# Credentials


@pytest.fixture
def user(client):
    """Return an ACL user with exactly the rights that the error's hint names."""
    rights = ["+@read", "+@write", "-@dangerous", "+@scripting", "+@connection", "+info"]
    client.execute_command("ACL", "SETUSER", "replicator", "on", ">s3cr3t", "~orders:*", "~cdf:*", "-@all", *rights)
    yield "replicator", "s3cr3t"
    client.acl_deluser("replicator")


def test_acl_user_needs_only_the_rights_of_the_hint(sink_of, deliver, client, user, route):
    sink = sink_of(username=user[0], password=user[1])
    sink.check()
    sink.prepare(SCHEMA, route)
    assert sink.read_claim(route)
    deliver(sink, upsert("1", 1, "a"), deletion("2", 1))
    assert client.get("orders:1")
    assert sink.delete_orphans(route, guard_of(2, 0, upsert=False)) == 1


def test_missing_rights_are_permanent_and_named(sink_of, deliver, client, user, route):
    client.execute_command("ACL", "SETUSER", "replicator", "resetkeys", "~elsewhere:*")
    sink = sink_of(username=user[0], password=user[1])
    for attempt in (lambda: deliver(sink, upsert("1", 1, "a")), lambda: sink.prepare(SCHEMA, route)):
        with pytest.raises(PermanentError) as caught:
            attempt()
        assert "cdf:*" in caught.value.hint
    client.execute_command("ACL", "SETUSER", "replicator", "allkeys", "-mset")
    with pytest.raises(PermanentError):
        deliver(sink, upsert("1", 1, "a"))
    client.execute_command("ACL", "SETUSER", "replicator", "-eval")
    with pytest.raises(PermanentError):
        sink.check()


def test_a_wrong_password_is_permanent_and_never_shown(sink_of, redis_server, user):
    url = f"redis://{user[0]}:wr0ng@127.0.0.1:{redis_server.port}/0"
    sink = sink_of(url=url)
    with pytest.raises(PermanentError) as caught:
        sink.check()
    shown = f"{caught.value} {caught.value.hint} {caught.value.__cause__!r} {sink!r} {sink.settings!r} {sink.settings}"
    assert "wr0ng" not in shown
    assert str(redis_server.port) in shown


def test_sweep_deletes_foreign_entries_among_keys_of_the_route(sink_of, deliver, client, route):
    """Foreign entries are a value without a guard and a value under a foreign guard. A list is never an entry."""
    sink = sink_of()
    deliver(sink, upsert("ours", 3, "x", epoch=2), upsert("old", 3, "x"), upsert("gone", 3, "x", epoch=2))
    client.delete("orders:gone")
    client.set("orders:foreign", "theirs")
    client.set("orders:forged", "theirs")
    client.set("cdf:guard:{orders:forged}", "5")
    client.rpush("orders:queue", "theirs")
    client.set("orderly", "not of this route")
    below = guard_of(2, 0, upsert=False)
    assert sink.count_entries(route, below) == EntryCount(total=4, orphans=3, highest=guard_of(2, 3, upsert=True))
    assert sink.delete_orphans(route, below) == 3
    assert sorted(client.scan_iter("order*")) == ["orderly", "orders:ours", "orders:queue"]
    deliver(sink, upsert("forged", 1, "again", epoch=2))
    assert json.loads(client.get("orders:forged"))["name"] == "again"


def test_text_after_the_key_distinguishes_keys_of_a_template(sink_of, deliver, client, route):
    options = RedisOptions(key_template="cdf:{id}/row")
    route = RouteSpec("orders_cache", "orders", ("id",), options, "us", 1)
    sink = sink_of()
    sink.prepare(SCHEMA, route)
    deliver(sink, upsert("a", 3, "x"), route=route)
    client.set("cdf:config", "theirs")
    below = guard_of(2, 0, upsert=False)
    assert sink.count_entries(route, below) == EntryCount(total=1, orphans=1, highest=guard_of(1, 3, upsert=True))
    assert sink.delete_orphans(route, below) == 1
    assert client.get("cdf:config") == "theirs"
    assert sink.read_claim(route)


def test_foreign_guard_does_not_block_a_row(sink_of, deliver, client):
    client.set("cdf:guard:{orders:a}", "9")
    deliver(sink_of(), upsert("a", 3, "x"))
    assert json.loads(client.get("orders:a"))["name"] == "x"


@pytest.fixture
def opened(sink_of, route):
    sink = sink_of()
    sink.prepare(SCHEMA, route)
    sink.open(route)
    return sink


def test_next_write_detects_an_emptied_server(spark, opened, route, client):
    opened.write(render_chunk(spark, opened, route, SCHEMA, [upsert("1", 1, "a")]))
    client.flushall()
    with pytest.raises(PermanentError, match="it was emptied") as raised:
        opened.write(render_chunk(spark, opened, route, SCHEMA, [upsert("2", 2, "b")]))
    assert raised.value.hint == "Run: cdf-replicator resync {route}"
    assert client.keys() == []
    with pytest.raises(PermanentError, match="it was emptied"):
        opened.save_watermark(route, Watermark(0, 1, 2))


@pytest.mark.parametrize(
    ("held", "known"),
    [
        (Watermark(0, 4, 4), Watermark(0, 9, 9)),
        (Watermark(0, 1, 4), Watermark(0, 2, 4)),  # of one commit, which takes several micro-batches
        (Watermark(0, 9, 9), Watermark(1, 0, 3)),
        (Watermark(-1, 0, 4), Watermark(0, 1, 9)),  # of the code before: a version alone
        (None, Watermark(0, 0, 4)),
    ],
)
def test_every_write_and_the_claim_detect_a_restored_server(spark, opened, route, client, held, known):
    if held is not None:
        opened.save_watermark(route, held)
    copy = client.hgetall("cdf:claim:{orders:}")
    opened.save_watermark(route, known)
    later = replace(route, watermark=known)
    opened.open(later)
    opened.write(render_chunk(spark, opened, later, SCHEMA, [upsert("1", 10, "a")]))
    assert not opened.read_claim(later).restored
    client.hset("cdf:claim:{orders:}", mapping=copy)
    if held is None:
        client.hdel("cdf:claim:{orders:}", "mark")
    assert (opened.read_claim(later).watermark, opened.read_claim(later).restored) == (held, True)
    chunk = render_chunk(spark, opened, later, SCHEMA, [upsert("2", 11, "b")])
    for attempt in (
        lambda: opened.write(chunk),
        lambda: opened.save_watermark(later, replace(known, number=known.number + 1)),
        lambda: opened.delete_orphans(later, guard_of(2, 0, upsert=False)),
    ):
        with pytest.raises(RetryableError, match="restored from a copy") as raised:
            attempt()
        assert raised.value.reason == "lost"
    assert client.exists("orders:1", "orders:2") == 1, "nothing is written or swept"
    assert opened.read_claim(later).watermark == held


def test_watermark_of_earlier_version_is_read_and_replaced(opened, route, client):
    client.hset("cdf:claim:{orders:}", "mark", "4")
    later = replace(route, watermark=Watermark(3, 7, 4))
    assert opened.read_claim(later) == Claim("us", 1, watermark=Watermark(-1, 0, 4), route=route.name)
    opened.save_watermark(later, Watermark(3, 8, 5))
    assert client.hget("cdf:claim:{orders:}", "mark") == "3:8:5"


def test_target_taken_over_by_another_state_path_gets_no_write(spark, opened, route, client):
    opened.prepare(SCHEMA, replace(route, owner="another owner", epoch=2))
    with pytest.raises(PermanentError, match="has taken over"):
        opened.write(render_chunk(spark, opened, route, SCHEMA, [upsert("1", 1, "a")]))


def test_target_of_another_route_is_refused_until_a_later_epoch(spark, opened, sink_of, route):
    other, other_sink = replace(route, name="orders_copy"), sink_of(layout="hash")
    claim = other_sink.read_claim(other)
    assert claim.route == route.name
    assert claim.other(other) == f"route {route.name}"
    with pytest.raises(PermanentError, match="is filled by another route") as refused:
        other_sink.prepare(SCHEMA, other)
    assert "resync {route}" in refused.value.hint
    assert opened.read_claim(route) == claim
    other_sink.prepare(SCHEMA, replace(other, epoch=2))
    assert opened.read_claim(route).other(route) == "route orders_copy"
    with pytest.raises(PermanentError, match="has taken over"):
        opened.write(render_chunk(spark, opened, route, SCHEMA, [upsert("1", 1, "a")]))


def test_restarted_server_may_have_lost_acknowledged_writes(route):
    with Redis.start() as server, closing(RedisSink(RedisSettings(type="redis", url=server.url))) as sink:
        sink.prepare(SCHEMA, route)
        sink.read_claim(route)
        assert not sink.lost_acknowledged_writes()
        server.restart()
        assert sink.lost_acknowledged_writes()
        with pytest.raises(RetryableError, match="restarted, or failed over"):
            sink.save_watermark(route, Watermark(0, 1, 1))
        assert sink.read_claim(route).watermark is None
        assert not sink.lost_acknowledged_writes()
        sink.save_watermark(route, Watermark(0, 1, 1))


def test_failover_and_back_is_detected_within_one_server_process(route):
    with (
        Redis.start() as server,
        Redis.start() as other,
        closing(RedisSink(RedisSettings(type="redis", url=server.url))) as sink,
        redis.Redis.from_url(server.url) as client,
    ):
        sink.prepare(SCHEMA, route)
        sink.read_claim(route)
        run_id = client.info("server")["run_id"]
        failed_over_and_back(client, other)
        assert client.info("server")["run_id"] == run_id
        assert sink.lost_acknowledged_writes()


def test_missing_right_to_read_info_causes_a_warning(route):
    with Redis.start() as server, redis.Redis.from_url(server.url) as client:
        client.acl_setuser("plain", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-info"])
        settings = RedisSettings(type="redis", url=server.url, username="plain", password="any")
        with closing(RedisSink(settings)) as sink:
            assert "Grant +info" in sink.prepare(SCHEMA, route)[0]
            sink.read_claim(route)
            sink.save_watermark(route, Watermark(0, 1, 1))
            assert not sink.lost_acknowledged_writes()


def failed_over_and_back(client, other):
    """The other server takes over, as a replica that lags behind would, and the first one then follows it and is promoted."""
    client.replicaof("127.0.0.1", other.port)
    until(lambda: client.info("replication")["master_link_status"] == "up")
    client.replicaof("NO", "ONE")


def test_json_of_a_row_is_rendered_once(spark, sink_of, route):
    """Inside a branch of the expression Spark would make it twice, once for its length: a quarter more processor time."""
    frame = change_frame(spark, SCHEMA, [upsert("a", 1, "x"), deletion("b", 2)]).repartition(1)
    generated = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    with replaced(spark, {"spark.sql.adaptive.enabled": "false", **generated}):
        plan = frame.select(*sink_of().render(SCHEMA, route))._jdf.queryExecution()
        stages = plan.debug().codegenToSeq()
        code = "".join(stages.apply(number)._2() for number in range(stages.size()))
    assert code.count("StructsToJsonEvaluator)") == 1
