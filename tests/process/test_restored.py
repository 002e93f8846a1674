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
    with world(spark, tmp_path_factory.mktemp("restored"), SEED, tables=("orders",)) as made:
        made.wait_caught_up()
        yield made


@pytest.fixture
def search(chaos: World) -> Callable[..., Any]:
    def request(method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, chaos.elasticsearch.url + path, json=body, timeout=60, trust_env=False)
        return answer.raise_for_status().json()

    return request


def mended(chaos: World, route: str, verb: str) -> None:
    """Wait for the halt of the route, run the command that it names, and compare."""
    chaos.service.wait_state(route, "halted")
    next_step = chaos.service.route(route)["last_error"]["next_step"]
    found = re.search(r"cdf-replicator ([\w -]*)", next_step)
    assert found, next_step
    assert found[1].startswith(f"{verb} {route}"), next_step
    ended = command(chaos.service.given, *shlex.split(found[1]), "--yes")
    assert ended.code == 0, ended.log
    chaos.wait_caught_up()
    assert chaos.differences() == []


def made_up(chaos: World) -> None:
    """Wait until the missing changes are delivered again without a command."""
    chaos.wait_caught_up()
    assert chaos.differences() == []


def test_redis_emptied_during_a_run_is_detected(chaos: World):
    chaos.change()
    chaos.wait_caught_up()
    with redis.Redis.from_url(chaos.redis.url) as client:
        client.flushall()
    chaos.change()
    mended(chaos, "orders_cache", "resync")


def test_redis_restored_from_a_copy_during_a_run_is_detected(chaos: World):
    chaos.change()
    chaos.wait_caught_up()
    with redis.Redis.from_url(chaos.redis.url) as client:
        copy = {key: client.dump(key) for key in client.scan_iter("*")}
        chaos.change()
        chaos.wait_caught_up()
        client.flushall()
        for key, held in copy.items():
            client.restore(key, 0, held)
    chaos.change()
    made_up(chaos)


def test_index_deleted_during_a_run_is_detected(chaos: World, search: Callable[..., Any]):
    search("DELETE", "/orders")
    chaos.change()
    mended(chaos, "orders_search", "resync")


def test_index_restored_while_the_service_is_stopped_is_detected(chaos: World, search: Callable[..., Any]):
    search("PUT", "/_snapshot/copies", {"type": "fs", "settings": {"location": "copies"}})
    chaos.change()
    chaos.wait_caught_up()
    search(
        "PUT", "/_snapshot/copies/before?wait_for_completion=true", {"indices": "orders", "include_global_state": False}
    )
    chaos.change()
    chaos.wait_caught_up()
    assert chaos.service.end() == 0
    search("DELETE", "/orders")
    search("POST", "/_snapshot/copies/before/_restore?wait_for_completion=true", {"indices": "orders"})
    chaos.begin()
    made_up(chaos)
