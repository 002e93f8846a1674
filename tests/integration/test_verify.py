"""``verify`` finds planted damage exactly, in each sink whose entries can be read back, and nothing else."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable, write_deltalake

from cdf_replicator.commands.verify import as_json, summary
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.verification import verify
from connectors import guard_of
from tests.support.postgres import emptied
from tests.support.tiers import nightly

COLUMNS = (
    "id bigint, name string, amount decimal(12,2), exact decimal(30,10), ratio double, part float, at timestamp, "
    "local timestamp_ntz, day date, raw binary, flag boolean, tags map<string,int>, days map<date,string>, "
    "detail struct<a:int,b:array<struct<c:bigint,d:string>>>"
)
ROW = (
    "({0}, 'ü {0}', {0}.5, 12345678901234567890.0123456789, {0} / 3.0D, CAST({0} / 3 AS float), "
    "timestamp'2026-01-0{1} 12:00:00.123456', timestamp_ntz'2026-01-0{1} 12:00:00.000001', date'2026-01-0{1}', X'00FF{0}0', "
    "{0} % 2 = 0, map('t', {0}), map(date'2026-01-0{1}', 'x'), struct({0}, array(struct({0}L, 'd'), struct(null, null))))"
)
NULLS = "({0}, null, null, null, double('NaN'), null, null, null, null, null, null, null, null, null)"
ROWS = [ROW.format(number, 1 + number % 9) for number in range(10, 18)] + [NULLS.format(number) for number in (18, 19)]


def sinks(world, kind, elasticsearch, redis_server, postgres_server=None):
    world.environ = {name: text for name, text in world.environ.items() if "FILES" not in name}
    prefix = "CDF_SINKS__TARGET__"
    given = {
        "elasticsearch": {"HOSTS": elasticsearch.url},
        "redis": {"URL": redis_server.url},
        "redis hash": {"URL": redis_server.url, "LAYOUT": "hash"},
        "delta_replica": {"PATH": str(world.folder / "replica")},
        "postgres": {"URL": postgres_server and postgres_server.url},
    }[kind]
    world.environ |= {"CDF_TABLES__ORDERS__SINKS": "target", prefix + "TYPE": kind.split()[0]}
    world.environ |= {prefix + name: text for name, text in given.items()}


class Target:
    """Damages entries of one sink. ``documents`` of the three kinds have the same form: the row in its JSON form."""

    def __init__(self, world, kind, elasticsearch, redis_server, postgres_server=None):
        self.world, self.kind, self.url = world, kind, elasticsearch.url
        self.database = postgres_server and postgres_server.url
        self.redis = redis.Redis.from_url(redis_server.url)
        self.path = str(world.folder / "replica" / "orders")

    def identity(self, key):
        return f"orders:{key}" if self.kind.startswith("redis") else str(key)

    def drop(self, key):
        if self.kind == "elasticsearch":
            httpx.delete(f"{self.url}/orders/_doc/{key}").raise_for_status()
        elif self.kind == "delta_replica":
            DeltaTable(self.path).delete(f"id = {key}")
        elif self.kind == "postgres":
            self._in_database("DELETE FROM orders WHERE id = %s", key)
        else:
            self.redis.delete(f"orders:{key}")

    def put(self, key, guard, **changes):
        """Write an entry with changed columns, under any guard."""
        if self.kind == "elasticsearch":
            found = httpx.get(f"{self.url}/orders/_doc/{key}").json()
            body = found.get("_source", {"id": key}) | changes
            address = f"{self.url}/orders/_doc/{key}?version={guard}&version_type=external_gte"
            httpx.put(address, json=body).raise_for_status()
        elif self.kind == "delta_replica":
            replica = DeltaTable(self.path)
            values = {**changes, "_cdf_guard": guard}
            updated = replica.update({name: _literal(value) for name, value in values.items()}, predicate=f"id = {key}")
            if not updated["num_updated_rows"]:
                row = pa.Table.from_pylist([{"id": key, "_cdf_key": str(key), "_cdf_guard": guard, **changes}])
                write_deltalake(replica, row, mode="append", schema_mode="merge")
        elif self.kind == "postgres":
            self._in_database("INSERT INTO orders (id) VALUES (%s) ON CONFLICT DO NOTHING", key)
            for name, value in {**changes, "_cdf_guard": guard}.items():
                self._in_database(f"UPDATE orders SET {name} = %s WHERE id = %s", value, key)
        elif self.kind == "redis":
            body = json.loads(self.redis.get(f"orders:{key}") or json.dumps({"id": key}))
            self.redis.set(f"orders:{key}", json.dumps(body | changes))
            self.redis.set(f"cdf:guard:{{orders:{key}}}", f"{guard:019d}")
        else:
            for name, value in ({"id": key} | changes).items():
                if value is None:
                    self.redis.hdel(f"orders:{key}", name)
                else:
                    self.redis.hset(f"orders:{key}", name, str(value))
            self.redis.set(f"cdf:guard:{{orders:{key}}}", f"{guard:019d}")

    def _in_database(self, statement, *values):
        with psycopg.connect(self.database) as connection:
            connection.execute(statement, values)


def _literal(value):
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def verified(world, **more):
    settings = world.settings
    route = settings.routes["orders_target"]
    return verify(world.spark, route, settings.sink(route.sink), world.state_path, **more)


def rows_of_every_type(world):
    world.create(COLUMNS, rows=ROWS)


def refused_row(world):
    """Commit two rows; Elasticsearch refuses the second row for the long key of its map."""
    world.create("id bigint, tags map<string,int>", rows=["(1, map('a', 1))", "(2, map(repeat('k', 33000), 1))"])


@pytest.fixture(params=["elasticsearch", "redis", "postgres", nightly("redis hash"), nightly("delta_replica")])
def target(request, world, prepared, elasticsearch, redis_server, postgres_server):
    redis.Redis.from_url(redis_server.url).flushall()
    httpx.delete(f"{elasticsearch.url}/orders")
    emptied(postgres_server)
    prepared(rows_of_every_type)
    sinks(world, request.param, elasticsearch, redis_server, postgres_server)
    assert world.run("orders_target") is None
    return Target(world, request.param, elasticsearch, redis_server, postgres_server)


@pytest.mark.parametrize(
    "target",
    ["redis", *map(nightly, ("delta_replica", "elasticsearch", "redis hash", "postgres"))],
    indirect=True,
)
def test_equal_target_has_no_difference_at_any_version(world, target, here):
    world.change("UPDATE {t} SET name = 'later' WHERE id IN (11, 12)")
    world.change("DELETE FROM {t} WHERE id = 13")
    behind = verified(world)
    assert world.run("orders_target") is None
    caught_up, earlier = verified(world), verified(world, at=2)

    assert [(each.version, each.newest, each.changed) for each in (behind, caught_up, earlier)] == [
        (1, 3, 3),
        (3, 3, 0),
        (2, 3, 1),
    ]
    assert [each.comparison.rows for each in (behind, caught_up, earlier)] == [7, 9, 9]
    for each in (behind, caught_up, earlier):
        assert each.comparison.equal, summary(each)
    refused = here(world.environ, "verify", "orders", "--at", "9")
    assert (refused.code, "has delivered version 3, and not yet version 9" in refused.log) == (75, True)
    with pytest.raises(RouteHaltError, match="delivers no column nme"):
        verified(world, columns=["nme"])


def test_planted_damage_is_found_exactly(world, target):
    world.change("DELETE FROM {t} WHERE id = 19")
    assert world.run("orders_target") is None
    version = world.version()
    guard = guard_of(1, 1, upsert=True)
    target.drop(10)
    target.put(11, guard, name="stale")
    target.put(12, guard, amount=0.25)
    target.put(13, guard, flag=None)
    target.put(19, guard_of(1, version, upsert=True))  # a deleted row that came back
    target.put(14, guard_of(1, version + 5, upsert=True))
    target.put(15, guard + 1)  # the guard of a delete: another writer has changed what ``verify`` does not compare
    target.put(77, guard)
    found = verified(world)

    shown = {(each.identity, each.kind, each.column) for each in found.comparison.differences}
    assert shown == {
        (target.identity(10), "missing", None),
        (target.identity(11), "different", "name"),
        (target.identity(12), "different", "amount"),
        (target.identity(13), "different", "flag"),
        (target.identity(14), "foreign", None),
        (target.identity(15), "foreign", None),
        (target.identity(19), "extra", None),
        (target.identity(77), "extra", None),
    }
    assert found.comparison.kinds == {"missing": 1, "extra": 2, "different": 3, "foreign": 2}
    assert found.comparison.columns == {"amount": 1, "flag": 1, "name": 1}
    assert json.loads(json.dumps(as_json(found)))["kinds"]["extra"] == 2
    stale = next(each for each in found.comparison.differences if each.column == "name")
    assert (stale.version, stale.table, stale.target) == (1, "ü 11", "stale")


@pytest.mark.parametrize("target", ["redis"], indirect=True)
def test_command_compares_named_columns_and_prints_limited_differences(world, target, here):
    guard = guard_of(1, 1, upsert=True)
    target.drop(10)
    target.put(11, guard, name="stale")
    target.put(12, guard, amount=0.25)
    ended = here(world.environ, "verify", "orders_target", "--columns", "name", "--limit", "1", "--format", "json")
    printed = json.loads(ended.output)
    assert (ended.code, printed["columns"], len(printed["differences"])) == (1, {"name": 1}, 1)


def test_row_of_nulls_alone_has_no_hash(world, elasticsearch, redis_server):
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    world.create("id bigint, name string", rows=["(1, 'a')", "(2, null)", "(3, 'c')"])
    sinks(world, "redis hash", elasticsearch, redis_server)
    world.environ["CDF_ROUTES__ORDERS_TARGET__COLUMNS"] = "name"
    assert world.run("orders_target") is None
    world.change("UPDATE {t} SET name = null WHERE id = 3")
    assert world.run("orders_target") is None
    found = verified(world).comparison
    assert (found.equal, found.rows, found.entries) == (True, 1, 1)
    client.hset("orders:3", "name", "c")
    client.set("cdf:guard:{orders:3}", f"{guard_of(1, 1, upsert=True):019d}")
    assert verified(world).comparison.kinds["extra"] == 1


@pytest.mark.parametrize("kind", ["redis", "elasticsearch"])
def test_entries_from_before_a_widening_are_equal(world, kind, elasticsearch, redis_server):
    redis.Redis.from_url(redis_server.url).flushall()
    httpx.delete(f"{elasticsearch.url}/orders")
    given = {"delta__enableTypeWidening": "true", "delta__feature__timestampNtz": "supported"}
    world.create("id bigint, price decimal(10,2), day date", rows=["(1, 12.50, date'2026-01-02')"], **given)
    sinks(world, kind, elasticsearch, redis_server)
    assert world.run("orders_target") is None
    world.sql("ALTER TABLE {t} ALTER COLUMN price TYPE decimal(20,2)")
    world.sql("ALTER TABLE {t} ALTER COLUMN day TYPE timestamp_ntz")
    world.insert("(2, 99999999999999.75, timestamp_ntz'2026-01-02 12:00:00')")
    assert world.run("orders_target") is None
    found = verified(world)
    assert (found.comparison.equal, found.comparison.entries) == (True, 2), summary(found)


@pytest.mark.parametrize("target", ["elasticsearch", nightly("redis")], indirect=True)
def test_two_comparisons_at_once_find_the_same(world, target):
    target.drop(10)
    target.put(77, guard_of(1, 1, upsert=True))
    with ThreadPoolExecutor(2) as pool:
        both = [pending.result() for pending in [pool.submit(verified, world) for _ in range(2)]]
    assert [each.comparison.kinds for each in both] == [{"missing": 1, "extra": 1, "different": 0, "foreign": 0}] * 2


@pytest.mark.usefixtures("loaded")
def test_sink_that_can_not_be_read_back_is_refused(world):
    route = world.settings.routes["orders_files"]
    with pytest.raises(RouteHaltError, match="can't be verified"):
        verify(world.spark, route, world.settings.sink(route.sink), world.state_path)


def test_key_with_an_open_dead_letter_must_be_absent(world, prepared, elasticsearch, redis_server):
    prepared(refused_row)
    sinks(world, "elasticsearch", elasticsearch, redis_server)
    httpx.delete(f"{elasticsearch.url}/orders")
    assert world.run("orders_target") is None
    assert world.dead_letters("key", "code") == [("2", "document_parsing")]
    found = verified(world)

    assert (found.dead_letters, found.comparison.equal) == (1, True), summary(found)
    guard = guard_of(1, 1, upsert=True)
    document = f"{elasticsearch.url}/orders/_doc/2?version={guard}&version_type=external_gte"
    httpx.put(document, json={"id": 2}).raise_for_status()
    assert verified(world).comparison.kinds == {"missing": 0, "extra": 1, "different": 0, "foreign": 0}
