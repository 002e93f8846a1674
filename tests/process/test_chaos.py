"""One service is killed, stopped and cut off from its servers, and these lose data: afterwards every sink equals the table.

Each test begins with the service that the test before it has left, or with the first one. ``tests/nightly/test_faults.py`` has
each fault alone.
"""

from __future__ import annotations

import random
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import redis
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.state.command_queue import Command, enqueue, read_status
from cdf_replicator.state.storage_path import LocalPath
from tests.chaos.faults import ELASTICSEARCH_FAULTS, POSTGRES_FAULTS, REDIS_FAULTS, held
from tests.chaos.killed_at import POINTS, Doomed
from tests.chaos.world import REFUSED_KEY, SINKS, world
from tests.support.index_marks import record_as_a_day_old
from tests.support.service import command
from tests.support.tiers import nightly
from tests.support.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.local.servers import Elasticsearch
    from tests.chaos.world import World

SEED = 18
MOST_ROUNDS = 4
HELD_SECONDS = 3
BEHIND_PROXIES = ("search", "cache", "db")
REPAIR = "after the repair's write"
ELSEWHERE = ("after the offset log", "after the dead-letter write", "before the commit log")
"""Points that CI reaches otherwise: by the kill within chunks, and by ``lose_commit`` of the integration tests, with dead letters too."""


@pytest.fixture(scope="module")
def chaos(spark, tmp_path_factory, elasticsearch: Elasticsearch) -> Iterator[World]:
    folder, split = tmp_path_factory.mktemp("chaos"), {"TABLES__ORDERS__MAX_FILES_PER_TRIGGER": 1}
    with world(spark, folder, SEED, ("orders",), Doomed, elasticsearch, **split) as made:
        made.wait_caught_up()
        yield made


@pytest.fixture
def search(chaos: World) -> Callable[..., Any]:
    def request(method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, chaos.elasticsearch.url + path, json=body, timeout=60, trust_env=False)
        return answer.raise_for_status().json()

    return request


def change(chaos: World) -> str:
    """Insert rows in two files, which are two micro-batches, and change others; return the key of a row that two servers reject."""
    t, first = f"delta.`{chaos.path('orders')}`", (chaos.version("orders") + 1) * 1000
    refused = first + 1
    tags = f"IF(id = {refused}, map({REFUSED_KEY}, 1), map('t', 1))"
    chaos.spark.sql(f"INSERT INTO {t} SELECT id, 'new', id, {tags} FROM range({first}, {first + 400}, 1, 2)")
    chaos.spark.sql(
        f"MERGE INTO {t} t USING (SELECT id FROM {t} WHERE id % 10 IN (0, 7)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id % 10 = 7 THEN DELETE WHEN MATCHED THEN UPDATE SET amount = -1"
    )
    return str(refused)


def recovered(chaos: World) -> None:
    chaos.begin()
    equal(chaos)


def equal(chaos: World) -> None:
    """Wait until every change is delivered, and compare."""
    chaos.wait_caught_up()
    assert chaos.differences() == []


# SIGKILL of the driver at each point of a micro-batch that matters: the batch is delivered again


@pytest.mark.parametrize(
    "point", [nightly(point) if point in ELSEWHERE else point for point in POINTS if point != REPAIR]
)
def test_sinks_equal_the_table_after_a_kill_at_the_point(chaos: World, point: str):
    doomed = chaos.service
    assert isinstance(doomed, Doomed)
    before = chaos.version("orders")
    doomed.doom(point)
    refused = change(chaos)
    until(lambda: not doomed.running, PATIENCE_SECONDS, doomed.log.read_text)

    assert doomed.killed(point)
    assert opened(chaos), "a micro-batch without a commit"
    if point == "after the audit append":
        assert "audit" in opened(chaos)
        assert appended(chaos) > before
    if point == "after the dead-letter write":
        assert opened(chaos) & {"search", "db"}
        assert refused in chaos.letters("orders")
    recovered(chaos)


def test_sinks_equal_the_table_after_a_kill_within_chunks(chaos: World):
    """Each server has received a part of a request, and no client reads its response."""
    proxies = [getattr(chaos, side) for side in BEHIND_PROXIES]
    for proxy in proxies:
        proxy.mode, proxy.stalled = "stall", 0
    change(chaos)
    until(lambda: all(proxy.stalled for proxy in proxies), PATIENCE_SECONDS, chaos.service.log.read_text)
    chaos.service.kill()
    for proxy in proxies:
        proxy.mode = "pass"

    assert opened(chaos) >= set(BEHIND_PROXIES)
    recovered(chaos)


def test_repair_is_answered_after_a_kill_in_the_middle(chaos: World, search: Callable[..., Any]):
    """The command stays in the queue until its answer, and is executed again."""
    change(chaos)
    chaos.wait_caught_up()
    taken = chaos.spark.read.format("delta").load(str(chaos.path("orders"))).where("id % 10 = 5").take(2)
    dropped, stale = (row["id"] for row in taken)
    search("DELETE", f"/orders/_doc/{dropped}?refresh=true")
    search("POST", f"/orders/_update/{stale}?refresh=true", {"doc": {"amount": 5}})
    assert [text.split(", ")[0] for text in chaos.differences()] == ["orders in elasticsearch"] * 2
    doomed = chaos.service
    assert isinstance(doomed, Doomed)
    doomed.doom(REPAIR)
    requests = LocalPath(chaos.folder / "state" / "requests")
    repair = Command("repair", "orders_search", identities=(str(dropped), str(stale)))
    enqueue(requests, repair)
    until(lambda: doomed.killed(REPAIR), PATIENCE_SECONDS, doomed.log.read_text)

    chaos.begin()
    until(lambda: read_status(requests, repair.id).state != "running", PATIENCE_SECONDS, chaos.service.log.read_text)
    answer = read_status(requests, repair.id)
    assert (answer.state, answer.message.split(" as of ")[0]) == ("done", "2 entries written")
    equal(chaos)


def opened(chaos: World) -> set[str]:
    """Return the sinks whose newest micro-batch has an offset file and no commit file."""
    return {sink for sink in SINKS if batches(chaos, sink, "offsets") > batches(chaos, sink, "commits")}


def batches(chaos: World, sink: str, log: str) -> int:
    """Return the newest micro-batch of a route in the log of its newest checkpoint; -1 if there is none."""
    checkpoints = (chaos.folder / "state" / "routes" / f"orders_{sink}" / "checkpoints").iterdir()
    newest = max(checkpoints, key=lambda folder: int(folder.name))
    return max((int(file.name) for file in (newest / log).glob("[0-9]*")), default=-1)


def appended(chaos: World) -> int:
    """Return the newest version in the audit table."""
    audit = chaos.spark.read.format("delta").load(str(chaos.folder / "audit" / "orders"))
    return int(audit.select(F.max("commit_version")).collect()[0][0])


# A sink that was emptied halts its route, which names a command; one from a copy is filled without a command


def recovered_by_command(chaos: World, route: str, verb: str) -> None:
    """Wait for the halt of the route, run the command that it names, and compare."""
    chaos.service.wait_state(route, "halted")
    next_step = chaos.service.route(route)["last_error"]["next_step"]
    found = re.search(r"cdf-replicator ([\w -]*)", next_step)
    assert found, next_step
    assert found[1].startswith(f"{verb} {route}"), next_step
    ended = command(chaos.service.given, *shlex.split(found[1]), "--yes")
    assert ended.code == 0, ended.log
    equal(chaos)


def test_redis_emptied_during_a_run_is_detected(chaos: World):
    chaos.change()
    chaos.wait_caught_up()
    with redis.Redis.from_url(chaos.redis.url) as client:
        client.flushall()
    chaos.change()
    recovered_by_command(chaos, "orders_cache", "resync")


def test_redis_restored_from_a_copy_during_a_run_is_detected(chaos: World):
    chaos.change()
    chaos.wait_caught_up()
    with redis.Redis.from_url(chaos.redis.url) as client:
        copy = {key: client.dump(key) for key in client.scan_iter("*")}
        chaos.change()
        chaos.wait_caught_up()
        client.flushall()
        for key, value in copy.items():
            client.restore(key, 0, value)
    chaos.change()
    equal(chaos)


def test_index_deleted_during_a_run_is_detected(chaos: World, search: Callable[..., Any]):
    search("DELETE", "/orders")
    chaos.change()
    recovered_by_command(chaos, "orders_search", "resync")


def test_stopped_service_resumes_and_detects_a_restored_index(chaos: World, search: Callable[..., Any]):
    """It receives what was committed while it was stopped, and nothing twice but what the restored index lacks."""
    search("PUT", "/_snapshot/copies", {"type": "fs", "settings": {"location": "copies"}})
    chaos.change()
    chaos.wait_caught_up()
    record_as_a_day_old(chaos.elasticsearch.url, "orders")
    copy = "/_snapshot/copies/before"
    search("PUT", f"{copy}?wait_for_completion=true", {"indices": "orders", "include_global_state": False})
    chaos.change()
    chaos.wait_caught_up()
    with held(chaos, "terminated"):
        search("DELETE", "/orders")
        search("POST", f"{copy}/_restore?wait_for_completion=true", {"indices": "orders"})
        t, first = f"delta.`{chaos.path('orders')}`", (chaos.version("orders") + 1) * 1000
        chaos.spark.sql(f"INSERT INTO {t} SELECT id, 'while away', 0, NULL FROM range({first}, {first + 7})")
    equal(chaos)
    for sink in ("audit", "cache", "db"):
        assert received(chaos, f"orders_{sink}") == {"insert": 7}
    search("DELETE", copy)
    search("DELETE", "/_snapshot/copies")


def received(chaos: World, route: str) -> dict[str, float]:
    """Return the changes that a route has received since the start of its process, by change type."""
    samples = chaos.service.metrics()["cdf_changes_received_total"].items()
    found = [(dict(labels), value) for labels, value in samples]
    return {labels["change_type"]: value for labels, value in found if labels["route"] == route and value}


# Simultaneous faults of the servers and of the service's processes


def schedule(seed: int, rounds: int) -> list[tuple[str, ...]]:
    """Draw rounds of a fault of each server; a worker of Python is killed in the first, the JVM after them."""
    drawn = random.Random(seed)
    servers = (ELASTICSEARCH_FAULTS, REDIS_FAULTS, POSTGRES_FAULTS)
    first, *others = zip(*(drawn.sample(list(faults), MOST_ROUNDS)[:rounds] for faults in servers), strict=True)
    return [(*first, "worker killed"), *others, ("jvm killed",)]


@pytest.mark.parametrize("rounds", [2, nightly(MOST_ROUNDS)])
def test_sinks_equal_the_table_after_simultaneous_faults(chaos: World, rounds: int):
    """Each fault has an effect, or ``held`` fails: a write is retried, or another process runs."""
    for names in schedule(SEED, rounds):
        print(f"{' and '.join(names)}, seed {SEED}")
        chaos.change()
        with held(chaos, *names):
            chaos.change()
            time.sleep(HELD_SECONDS)
        chaos.wait_caught_up()
        assert chaos.differences() == [], names
    log = chaos.service.log.read_text()
    assert "This is a bug" not in log
    assert "(CDF_LOG__LEVEL=debug shows where)" not in log
