"""Two instances of one state path: the second waits, takes over within seconds, and a first that wakes up again does no harm."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.reading import documents, entries, folded
from tests.support.service import Service, Standby, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.servers import Elasticsearch, Redis
    from tests.process.conftest import Source

SINKS = ("audit", "search", "cache")
numbers = itertools.count(1)
TAKEN_OVER_SECONDS = 90
"""A Spark of its own included, on a machine that runs two."""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standby")


@pytest.fixture
def orders(folder: Path, new_source: Callable[..., Source]) -> Source:
    """A name of its own, so that no test finds what another one has left in the sinks."""
    return new_source(folder, f"orders{next(numbers)}", 1000)


@pytest.fixture
def pair(folder: Path, orders: Source, sinks: Callable[[Path], dict[str, object]]) -> Iterator[tuple[Service, Standby]]:
    """One that runs and has delivered, one that stands by."""
    given = environment(
        folder,
        **sinks(folder),
        TRIGGER_SECONDS=0.2,
        **{
            f"TABLES__{orders.path.name.upper()}__PATH": orders.path,
            f"TABLES__{orders.path.name.upper()}__KEYS": "id",
            f"TABLES__{orders.path.name.upper()}__SINKS": ",".join(SINKS),
            f"TABLES__{orders.path.name.upper()}__INCLUDE_PREIMAGES": True,
        },
    )
    with Service(given) as first, Standby(given) as second:
        first.started()
        delivered(first, orders, orders.version)
        second.started()
        yield first, second


@pytest.fixture
def same(folder: Path, orders: Source, redis_server: Redis, elasticsearch: Elasticsearch) -> Callable[[], None]:
    def check() -> None:
        name = orders.path.name
        assert entries(redis_server.url, f"{name}:") == orders.rows
        assert documents(elasticsearch.url, name) == orders.rows
        assert folded(orders.spark, folder / "audit" / name, ["id"]) == orders.rows

    return check


def delivered(service: Service, source: Source, version: int) -> None:
    for sink in SINKS:
        service.wait_delivered(f"{source.path.name}_{sink}", version, TAKEN_OVER_SECONDS)


def test_a_standby_says_whom_it_waits_for_and_takes_over_from_one_that_was_killed(
    pair: tuple[Service, Standby], orders: Source, same: Callable[[], None]
):
    first, second = pair
    assert "Standing by: the lease is held (host" in second.status()["service"]["summary"]
    assert f"pid {first.pid}" in second.status()["service"]["summary"]
    assert (second.get("/livez").status_code, second.get("/readyz").status_code) == (200, 200)
    assert command(first.given, "run").code == 75

    first.kill()
    version = orders.sql("UPDATE {} SET amount = amount + 1 WHERE id < 100")
    delivered(second, orders, version)
    same()
    assert second.end() == 0


def test_one_that_was_paused_past_its_lease_ends_when_it_wakes_up_and_has_changed_nothing(
    pair: tuple[Service, Standby], orders: Source, same: Callable[[], None]
):
    first, second = pair
    orders.sql("UPDATE {} SET amount = amount + 1")
    time.sleep(0.3)  # in the midst of it, as a rule
    first.pause()
    version = orders.sql("DELETE FROM {} WHERE id < 500")
    delivered(second, orders, version)
    same()

    os.killpg(first.pid, signal.SIGCONT)
    until(lambda: not first.running, 30, first.log.read_text)
    assert first._process.returncode == 75
    assert "the lease is lost" in first.log.read_text()
    version = orders.sql("INSERT INTO {} SELECT id + 5000, 'late', 0 FROM range(10)")
    delivered(second, orders, version)
    same()


def test_a_standby_that_is_told_to_stop_ends_well(pair: tuple[Service, Standby]):
    _, second = pair
    assert second.end() == 0
