"""Source table, audit table, dead letters and the state path on an object store: kills and outages lose nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
import redis

from deploy.local.jars.fetch import artifacts, fetch
from deploy.local.servers.s3 import BUCKET, S3
from deploy.local.servers.server import CACHE
from tests.support.reading import entries
from tests.support.service import SPARK_CONF, Service, Standby, command, environment
from tests.support.waiting import until
from tests.system.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.local.servers import Redis

JARS = CACHE / "downloads" / "s3"
TOKEN = "0123456789abcdef0123456789abcdef"
ALONE = "this command starts Spark itself"
ORDERS, AUDIT = f"delta.`s3a://{BUCKET}/orders`", f"delta.`s3a://{BUCKET}/audit/orders`"
SILENT_SECONDS = 150
"""Limit of the takeover of a killed holder's lease. The successor can only detect the missing heartbeat."""
IMPATIENT = {
    "spark.hadoop.fs.s3a.attempts.maximum": "1",
    "spark.hadoop.fs.s3a.retry.limit": "1",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
}


@pytest.fixture(scope="module")
def store() -> Iterator[S3]:
    with S3.start() as server:
        yield server


@pytest.fixture(scope="module")
def conf(store: S3) -> dict[str, str]:
    fetch("s3", JARS)
    jars = ",".join(str(JARS / artifact.file) for artifact in artifacts("s3"))
    return {"spark.jars": jars, **store.spark_conf, **IMPATIENT}


@pytest.fixture(scope="module")
def lake(conf: dict[str, str]) -> Iterator[Lake]:
    with Lake(conf) as lake:
        lake.sql(
            f"CREATE TABLE {ORDERS} (id BIGINT, name STRING, amount BIGINT) USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )
        lake.sql(f"INSERT INTO {ORDERS} SELECT id, concat('name ', id), id * 10 FROM range(500)")
        yield lake


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, conf: dict[str, str], lake: Lake, redis_server: Redis
) -> Iterator[Service]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()  # what another state path has claimed
    given = environment(
        tmp_path_factory.mktemp("service"),
        STATE_PATH=f"s3a://{BUCKET}/state",
        TRIGGER_SECONDS=0.2,
        HTTP__TOKEN=TOKEN,
        SPARK__CONF=json.dumps({"spark.driver.memory": "1g", **SPARK_CONF, **conf}),
        TABLES__ORDERS__PATH=f"s3a://{BUCKET}/orders",
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit,cache",
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=f"s3a://{BUCKET}/audit",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
    )
    with Service(given).started() as service:
        yield service
        assert service.end() == 0
    newest = f"SELECT value FROM text.`s3a://{BUCKET}/state/leases` ORDER BY input_file_name() DESC LIMIT 1"
    assert lake.sql(newest) == [{"value": "null"}], "the holder has released its lease"


@pytest.fixture
def service(started: Service) -> Service:
    """Return the service that all tests use; a test that failed may have ended it."""
    if not started.running:
        started.restart()
    return started


@pytest.fixture
def change(lake: Lake) -> Callable[[str], int]:
    """Run a statement on the source; returns the version it made."""

    def run(statement: str) -> int:
        lake.sql(statement.format(ORDERS))
        return int(lake.sql(f"DESCRIBE HISTORY {ORDERS} LIMIT 1")[0]["version"])

    return run


@pytest.fixture
def same(lake: Lake, redis_server: Redis) -> Callable[[], None]:
    """Assert that the cache equals the source, and that the audit table has each change once."""

    def check() -> None:
        source = {str(row["id"]): row for row in lake.sql(f"SELECT * FROM {ORDERS}")}
        assert entries(redis_server.url, "orders:") == source
        kept = "change_type, commit_version, id, name, amount"
        first = lake.sql(f"SELECT min(commit_version) AS version FROM {AUDIT}")[0]["version"]
        feed = (
            "SELECT _change_type AS change_type, _commit_version AS commit_version, id, name, amount "
            f"FROM table_changes_by_path('s3a://{BUCKET}/orders', {first + 1}) WHERE _change_type <> 'update_preimage'"
        )
        held = f"SELECT {kept} FROM {AUDIT} WHERE change_type <> 'snapshot'"
        assert lake.sql(f"({feed}) EXCEPT ALL ({held})") == []
        assert lake.sql(f"({held}) EXCEPT ALL ({feed})") == []

    return check


def delivered(service: Service, version: int) -> None:
    for route in ("orders_audit", "orders_cache"):
        service.wait_delivered(route, version)


def test_standby_and_later_a_restarted_service_take_over(
    service: Service, change: Callable[[str], int], same: Callable[[], None]
):
    """The service is paused, ends when it resumes, and is started again after the standby was killed and its lease expired."""
    delivered(service, change("UPDATE {} SET amount = amount + 1 WHERE id < 100"))
    assert command(service.given, "run").code == 75
    second = Standby(service.given)
    with second.started():
        service.pause()
        delivered(second, change("UPDATE {} SET amount = amount + 4 WHERE id < 60"))
        same()
        os.killpg(service.pid, signal.SIGCONT)
        until(lambda: not service.running, 60, service.log.read_text)
        assert service._process.returncode == 75
        change("DELETE FROM {} WHERE id BETWEEN 100 AND 199")
        second.kill()
    version = change("INSERT INTO {} SELECT id + 1000, 'late', 0 FROM range(50)")
    service.start_seconds = SILENT_SECONDS
    service.restart()
    delivered(service, version)
    same()


def test_running_service_executes_the_request_of_another_command(
    service: Service, change: Callable[[str], int], same: Callable[[], None], redis_server: Redis
):
    version = change("UPDATE {} SET amount = amount + 2 WHERE id < 50")
    delivered(service, version)
    with redis.Redis.from_url(redis_server.url) as client:
        client.delete("orders:1", "orders:2")
    ended = command(service.given, "resync", "orders_cache", "--yes", "--max-removed-share", "1")
    assert ended.code == 0, ended.log
    delivered(service, version)
    same()
    queries = (("dead-letters", "list"), ("verify", "orders_cache"), ("resync", "orders_cache", "--dry-run"))
    for words in queries:
        answered = command(service.given, *words)
        assert (answered.code, ALONE in answered.log) == (0, False), (words, answered.log)


@pytest.mark.nightly  # tests/unit/commands/test_answered.py refuses the same token
def test_command_with_another_token_starts_spark_itself(service: Service):
    refused = command({**service.given, "CDF_HTTP__TOKEN": TOKEN[::-1]}, "dead-letters", "list")
    assert refused.code == 0, refused.log
    assert ALONE in refused.log
    assert "the running service refuses the token" in refused.log


def test_unreachable_store_is_retried(
    service: Service, store: S3, change: Callable[[str], int], same: Callable[[], None]
):
    delivered(service, change("UPDATE {} SET amount = amount + 5 WHERE id < 50"))
    store.stop()
    try:
        service.wait_state("orders_cache", "retrying")
        time.sleep(30)  # longer than the limit of the main loop, and than the retries of an unknown error
        assert service.get("/livez").status_code == 200
        assert service.get("/readyz").status_code == 503
        assert service.route("orders_cache")["state"] == "retrying"
        assert "CDF_STATE_PATH" in service.route("orders_cache")["last_error"]["next_step"]
    finally:
        store.restart()
    delivered(service, change("UPDATE {} SET amount = amount + 6 WHERE id < 50"))
    same()
