"""Test how a view reads values and guards of a server that other users write to as well."""

from __future__ import annotations

import pyarrow as pa
import pytest
import redis

from connectors.redis import view
from connectors.redis.keys import KeyNames
from connectors.redis.settings import RedisSettings
from connectors.redis.view import ValueView
from tests.support.waiting import until

NAMES = KeyNames((("rows:", 0),), whole=True)
GUARD = "1000000000000000007"


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield client


def entries(url: str, **settings) -> list[dict]:
    """Return the entries of a view, in the order of their identities."""
    batches = ValueView(RedisSettings(type="redis", url=url, **settings), NAMES).scan(0)
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["identity"])


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_view_has_each_value_once_with_its_own_guard(redis_server, client, layout):
    for number in range(5000):
        client.set(f"cdf:guard:{{rows:{number}}}", f"{number:019d}")
        if layout == "hash":
            client.hset(f"rows:{number}", "id", number)
        else:
            client.set(f"rows:{number}", f'{{"id":"{number}"}}')
    assert entries(redis_server.url, layout=layout) == sorted(
        ({"identity": f"rows:{n}", "guard": n, "body": f'{{"id":"{n}"}}'} for n in range(5000)),
        key=lambda row: row["identity"],
    )


@pytest.mark.parametrize("guard", ["9", "x" * 19, GUARD + "d", "9999999999999999999", b"\xff" * 19])
def test_text_that_is_no_guard_counts_as_absent(redis_server, client, guard):
    client.mset({"rows:1": "{}", "cdf:guard:{rows:1}": guard, "rows:2": "{}", "cdf:guard:{rows:2}": GUARD})
    assert [row["guard"] for row in entries(redis_server.url)] == [None, int(GUARD)]


def test_bytes_that_are_no_text_are_replaced(redis_server, client):
    client.mset({b"rows:\xff": b"\xfe", "rows:1": "a"})
    assert [(row["identity"], row["body"]) for row in entries(redis_server.url)] == [
        ("rows:1", "a"),
        ("rows:\\xff", "�"),
    ]


def test_url_that_decodes_replies_changes_nothing(redis_server, client):
    client.mset({b"rows:1": b"\xfe", "cdf:guard:{rows:1}": GUARD})
    assert entries(f"{redis_server.url}?decode_responses=true") == entries(redis_server.url)


def test_value_of_another_type_has_no_body(redis_server, client):
    client.rpush("rows:1", "a")
    assert entries(redis_server.url) == [{"identity": "rows:1", "guard": None, "body": None}]
    assert entries(redis_server.url, layout="hash") == [{"identity": "rows:1", "guard": None, "body": None}]


@pytest.mark.parametrize("layout", ["json", "hash"])
def test_value_that_is_gone_when_it_is_read_has_no_entry(redis_server, client, monkeypatch, layout):
    for number in range(40):
        client.set(f"cdf:guard:{{rows:{number}}}", GUARD, ex=3600)
        if layout == "hash":
            client.hset(f"rows:{number}", "id", number)
        else:
            client.set(f"rows:{number}", "{}", ex=3600)
    client.rpush("rows:list", "theirs")
    gone = range(1, 40)

    def expired(*arguments):
        for page in pages(*arguments):
            client.delete(*(f"rows:{number}" for number in gone), *(f"cdf:guard:{{rows:{number}}}" for number in gone))
            yield page

    pages = view.value_pages
    monkeypatch.setattr(view, "value_pages", expired)
    found = entries(redis_server.url, layout=layout, ttl_seconds=3600)
    assert [(row["identity"], row["guard"]) for row in found] == [("rows:0", int(GUARD)), ("rows:list", None)]


def test_batches_of_large_values_are_bounded(redis_server, client, monkeypatch):
    monkeypatch.setattr("connectors.view.PAGE_BYTES", 10_000)
    for number in range(300):
        client.set(f"rows:{number}", "x" * 1000)
    batches = list(ValueView(RedisSettings(type="redis", url=redis_server.url), NAMES).scan(0))
    assert sum(batch.num_rows for batch in batches) == 300
    assert max(batch.nbytes for batch in batches) <= (view.FIRST_PAGE + 1) * 1100
    assert pa.Table.from_batches(batches).column("body").unique().to_pylist() == ["x" * 1000]


def test_reader_that_stops_early_leaves_no_open_connection(redis_server, client):
    for number in range(5000):
        client.set(f"rows:{number}", "{}")
    before = {connection["id"] for connection in client.client_list()}  # of former tests, too
    scan = ValueView(RedisSettings(type="redis", url=redis_server.url), NAMES).scan(0)
    next(scan)
    scan.close()
    until(lambda: {connection["id"] for connection in client.client_list()} <= before, 10)
