"""SIGKILL at the worst moments, then a restart: no difference in any sink, each change in the audit once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from tests.support.reading import documents, entries
from tests.support.service import Ended, Service, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Elasticsearch, Redis
    from tests.support.source import Source

ROWS = 20_000
ROUTES = ("mass_audit", "mass_search", "mass_cache")
CHANGES = ["id", "name", "amount", "change_type", "commit_version"]


@pytest.fixture
def mass(tmp_path: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(tmp_path, "mass", ROWS)


@pytest.fixture
def service(
    tmp_path: Path,
    mass: Source,
    sinks: Callable[[Path], dict[str, object]],
    elasticsearch: Elasticsearch,
    redis_server: Redis,
) -> Iterator[Service]:
    """Not started yet. Small requests, so that there is much time between the first and the last of a batch."""
    url = f"{elasticsearch.url}/mass?ignore_unavailable=true"
    httpx.delete(url, trust_env=False, timeout=60).raise_for_status()
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    given = environment(
        tmp_path,
        **sinks(tmp_path),
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


@pytest.fixture
def ends_equal(
    service: Service,
    mass: Source,
    tmp_path: Path,
    redis_server: Redis,
    elasticsearch: Elasticsearch,
    here: Callable[..., Ended],
) -> Callable[[], None]:
    def run() -> None:
        """Deliver what the killed process has not delivered, and compare; the audit table has each change once."""
        ended = here(service.given, "run", "--once")

        assert ended.code == 0, ended.log
        expected = mass.rows
        assert entries(redis_server.url, "mass:") == expected
        assert documents(elasticsearch.url, "mass") == expected
        assert mass.folded(tmp_path / "audit" / "mass") == expected
        assert differing_changes(mass, tmp_path / "audit" / "mass") == 0

    return run


def in_elasticsearch(server: Elasticsearch, query: dict[str, object]) -> int:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        client.post("/mass/_refresh")
        answer = client.post("/mass/_count", json={"query": query})
    return int(answer.json()["count"]) if answer.is_success else 0


def last_committed(route: Path) -> int:
    """The version at which the newest micro-batch ends that Spark has committed."""
    (checkpoint,) = (route / "checkpoints").iterdir()
    batch = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    offset = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
    return offset["reservoirVersion"] - (offset["index"] < 0)


def test_restart_after_a_kill_in_the_first_load_leaves_equal_sinks(
    service: Service, mass: Source, elasticsearch: Elasticsearch, ends_equal: Callable[[], None]
):
    service.started()
    until(lambda: in_elasticsearch(elasticsearch, {"match_all": {}}) > 0, describe=service.log.read_text)
    service.kill()
    assert 0 < in_elasticsearch(elasticsearch, {"match_all": {}}) < ROWS

    mass.sql("INSERT INTO {} SELECT id + 3000000, 'last', 0 FROM range(10)")
    ends_equal()


@pytest.mark.nightly  # test_chaos kills in a micro-batch of fewer rows
def test_restart_after_a_kill_in_a_micro_batch_leaves_equal_sinks(
    service: Service, mass: Source, tmp_path: Path, elasticsearch: Elasticsearch, ends_equal: Callable[[], None]
):
    """Every row is changed twice, a thousand keys move and a thousand rows go, in three commits."""
    service.started()
    for route in ROUTES:
        service.wait_delivered(route, mass.version)
    mass.sql("UPDATE {} SET amount = amount + 1, id = IF(id < 1000, id + 1000000, id)")
    mass.sql("DELETE FROM {} WHERE id >= 19000 AND id < 1000000")
    last = mass.sql("UPDATE {} SET amount = -1")
    arrived = {"term": {"amount": -1}}
    until(lambda: in_elasticsearch(elasticsearch, arrived) > 0, describe=service.log.read_text)
    service.kill()
    assert 0 < in_elasticsearch(elasticsearch, arrived) < len(mass.rows)
    assert last_committed(tmp_path / "state" / "routes" / "mass_search") < last

    ends_equal()


def differing_changes(mass: Source, audit: Path) -> int:
    """Changes that the feed and the audit do not hold the same number of times; the snapshot's rows aside."""
    kept = mass.spark.read.format("delta").load(str(audit)).where("change_type <> 'snapshot'").select(CHANGES)
    feed = mass.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    made = feed.load(str(mass.path)).selectExpr(
        "id", "name", "amount", "_change_type AS change_type", "_commit_version AS commit_version"
    )
    return made.exceptAll(kept).count() + kept.exceptAll(made).count()
