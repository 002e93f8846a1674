"""SIGKILL at the worst moments, then a restart: no difference in any sink, each change in the audit once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.reading import documents, entries, folded
from tests.support.service import Service, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.servers import Elasticsearch, Redis
    from tests.process.conftest import Source

ROWS = 20_000
ROUTES = ("mass_audit", "mass_search", "mass_cache")
CHANGES = ["id", "name", "amount", "change_type", "commit_version"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kill")


@pytest.fixture(scope="module")
def mass(folder: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(folder, "mass", ROWS)


@pytest.fixture
def service(folder: Path, mass: Source, sinks: Callable[[Path], dict[str, object]]) -> Iterator[Service]:
    """Not started yet. Small requests, so that there is much time between the first and the last of a batch."""
    given = environment(
        folder,
        **sinks(folder),
        SINKS__SEARCH__CHUNK_ROWS=100,
        SINKS__CACHE__CHUNK_ROWS=100,
        TRIGGER_SECONDS=0.2,
        TABLES__MASS__PATH=mass.path,
        TABLES__MASS__KEYS="id",
        TABLES__MASS__SINKS="audit,search,cache",
        TABLES__MASS__INCLUDE_PREIMAGES=True,
    )
    with Service(given) as made:
        yield made


def in_elasticsearch(server: Elasticsearch, query: dict[str, object]) -> int:
    httpx.post(f"{server.url}/mass/_refresh", trust_env=False)
    answer = httpx.post(f"{server.url}/mass/_count", json={"query": query}, trust_env=False)
    return int(answer.json()["count"]) if answer.is_success else 0


def last_committed(route: Path) -> int:
    """The version at which the newest micro-batch ends that Spark has committed."""
    (checkpoint,) = (route / "checkpoints").iterdir()
    batch = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    offset = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
    return offset["reservoirVersion"] - (offset["index"] < 0)


def test_killed_in_the_midst_of_the_first_load(service: Service, elasticsearch: Elasticsearch):
    service.started()

    until(lambda: in_elasticsearch(elasticsearch, {"match_all": {}}) > 0, 240, service.log.read_text)
    service.kill()

    assert 0 < in_elasticsearch(elasticsearch, {"match_all": {}}) < ROWS


def test_killed_in_the_midst_of_a_batch(service: Service, mass: Source, folder: Path, elasticsearch: Elasticsearch):
    """Every row is changed twice, a thousand keys move and a thousand rows go, in three commits."""
    service.started()
    for route in ROUTES:
        service.wait_delivered(route, mass.version)

    mass.sql("UPDATE {} SET amount = amount + 1, id = IF(id < 1000, id + 1000000, id)")
    mass.sql("DELETE FROM {} WHERE id >= 19000 AND id < 1000000")
    last = mass.sql("UPDATE {} SET amount = -1")
    arrived = {"term": {"amount": -1}}
    until(lambda: in_elasticsearch(elasticsearch, arrived) > 0, 120, service.log.read_text)
    service.kill()

    assert 0 < in_elasticsearch(elasticsearch, arrived) < len(mass.rows)
    assert last_committed(folder / "state" / "routes" / "mass_search") < last


def test_killed_between_the_audit_append_and_the_commit_of_its_batch(service: Service, mass: Source, folder: Path):
    log = folder / "audit" / "mass" / "_delta_log"
    service.started()
    for route in ROUTES:
        service.wait_delivered(route, mass.version)
    versions = len(list(log.glob("*.json")))

    mass.sql("UPDATE {} SET amount = 0")
    until(lambda: len(list(log.glob("*.json"))) > versions, 120, service.log.read_text)
    service.kill()


def test_after_the_restart_nothing_differs_and_each_change_is_in_the_audit_once(
    service: Service, mass: Source, folder: Path, redis_server: Redis, elasticsearch: Elasticsearch
):
    mass.sql("INSERT INTO {} SELECT id + 3000000, 'last', 0 FROM range(10)")

    ended = command(service.given, "run", "--once")

    assert ended.code == 0, ended.log
    expected = mass.rows
    assert entries(redis_server.url, "mass:") == expected
    assert documents(elasticsearch.url, "mass") == expected
    assert folded(mass.spark, folder / "audit" / "mass", ["id"]) == expected
    assert differing_changes(mass, folder / "audit" / "mass") == 0


def differing_changes(mass: Source, audit: Path) -> int:
    """Changes that the feed and the audit do not hold the same number of times; the snapshot's rows aside."""
    kept = mass.spark.read.format("delta").load(str(audit)).where("change_type <> 'snapshot'").select(CHANGES)
    feed = mass.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    made = feed.load(str(mass.path)).selectExpr(
        "id", "name", "amount", "_change_type AS change_type", "_commit_version AS commit_version"
    )
    return made.exceptAll(kept).count() + kept.exceptAll(made).count()
