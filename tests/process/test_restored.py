"""A sink that was emptied: the route halts, says what to run, and that makes it right. One from a copy is filled by itself."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import redis

from tests.chaos.world import world
from tests.support.service import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.world import World

SEED = 3


@pytest.fixture(scope="module")
def chaos(spark, tmp_path_factory) -> Iterator[World]:
    with world(spark, tmp_path_factory.mktemp("restored"), SEED) as made:
        made.wait_caught_up()
        yield made


@pytest.fixture
def search(chaos: World) -> Callable[..., Any]:
    def ask(method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, chaos.elasticsearch.url + path, json=body, timeout=60, trust_env=False)
        return answer.raise_for_status().json()

    return ask


def change(chaos: World, number: int) -> None:
    """Some rows come, some change, some go."""
    t = f"delta.`{chaos.path('orders')}`"
    rows = f"SELECT id, 'new', id, map('t', 1) FROM range({number * 1000}, {number * 1000 + 50})"
    chaos.spark.sql(f"INSERT INTO {t} {rows}")
    chaos.spark.sql(f"UPDATE {t} SET amount = {number} WHERE id % 5 = 0")
    chaos.spark.sql(f"DELETE FROM {t} WHERE id % 7 = 0")


def mended(chaos: World, *routes: str, verb: str) -> None:
    """Each of these routes halts, and what it says to run is run; nothing differs then."""
    for route in routes:
        chaos.service.wait_state(route, "halted")
        told = chaos.service.route(route)["last_error"]["next_step"]
        found = re.search(r"cdf-replicator ([\w -]*)", told)
        assert found, told
        assert found[1].startswith(f"{verb} {route}"), told
        ended = command(chaos.service.given, *shlex.split(found[1]), "--yes")
        assert ended.code == 0, ended.log
    chaos.wait_caught_up()
    assert chaos.differences() == []


def made_up(chaos: World) -> None:
    """Nothing is run: what is missing is delivered again."""
    chaos.wait_caught_up()
    assert chaos.differences() == []


def test_redis_is_emptied_while_the_service_runs(chaos: World):
    change(chaos, 1)
    chaos.wait_caught_up()
    with redis.Redis.from_url(chaos.redis.url) as client:
        client.flushall()
    for name in ("orders", "items"):
        chaos.spark.sql(f"INSERT INTO delta.`{chaos.path(name)}` VALUES (900, 'after', 1, NULL)")
    mended(chaos, "orders_cache", "items_cache", verb="resync")


def test_redis_is_brought_back_from_a_copy_while_the_service_runs(chaos: World):
    change(chaos, 2)
    chaos.wait_caught_up()
    with redis.Redis.from_url(chaos.redis.url) as client:
        copy = {key: client.dump(key) for key in client.scan_iter("*")}
        change(chaos, 3)
        chaos.wait_caught_up()
        client.flushall()
        for key, held in copy.items():
            client.restore(key, 0, held)
    change(chaos, 4)
    made_up(chaos)


def test_an_index_is_deleted_while_the_service_runs(chaos: World, search: Callable[..., Any]):
    search("DELETE", "/orders")
    change(chaos, 5)
    mended(chaos, "orders_search", verb="resync")


def test_an_index_is_brought_back_from_a_snapshot_while_the_service_is_down(chaos: World, search: Callable[..., Any]):
    search("PUT", "/_snapshot/copies", {"type": "fs", "settings": {"location": "copies"}})
    change(chaos, 6)
    chaos.wait_caught_up()
    search(
        "PUT", "/_snapshot/copies/before?wait_for_completion=true", {"indices": "orders", "include_global_state": False}
    )
    change(chaos, 7)
    chaos.wait_caught_up()
    assert chaos.service.end() == 0
    search("DELETE", "/orders")
    search("POST", "/_snapshot/copies/before/_restore?wait_for_completion=true", {"indices": "orders"})
    chaos.begin()
    made_up(chaos)
