"""Tests of tables in a catalog: a separate Spark creates and writes them in a real Hive metastore."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.reading import entries
from tests.support.service import SPARK_CONF, Service, command, environment
from tests.system.lake import Lake
from tests.system.metastore import HiveMetastore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deploy.local.servers import Redis

CREATED = (
    "CREATE TABLE sales.{} USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true) AS SELECT {} FROM range(10)"
)


@pytest.fixture(scope="module")
def metastore() -> Iterator[HiveMetastore]:
    with HiveMetastore().started() as server:
        yield server


@pytest.fixture(scope="module")
def lake(metastore: HiveMetastore) -> Iterator[Lake]:
    with Lake(metastore.conf) as lake:
        lake.sql("CREATE DATABASE sales")
        lake.sql(CREATED.format("orders", "id, id % 2 AS region, id * 10 AS amount"))
        lake.sql(CREATED.format("regions", "id, concat('region ', id) AS name"))
        yield lake


@pytest.fixture
def given(tmp_path: Path, metastore: HiveMetastore, redis_server: Redis) -> dict[str, str]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return environment(
        tmp_path,
        SPARK__CONF=json.dumps({"spark.driver.memory": "1g", **SPARK_CONF, **metastore.conf}),
        TABLES__ORDERS__NAME="sales.orders",
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="cache",
        ROUTES__ORDERS_CACHE__ENRICH__R__NAME="sales.regions",
        ROUTES__ORDERS_CACHE__ENRICH__R__ON="region=id",
        ROUTES__ORDERS_CACHE__ENRICH__R__COLUMNS="name",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
    )


def rows(lake: Lake) -> dict[str, dict[str, Any]]:
    """Return the expected rows of the sink."""
    found = lake.sql("SELECT o.*, r.name FROM sales.orders o LEFT JOIN sales.regions r ON o.region = r.id")
    return {str(row["id"]): row for row in found}


def test_a_table_is_followed_by_its_name(given: dict[str, str], lake: Lake, redis_server: Redis):
    with Service(given) as service:
        service.started()
        service.wait_delivered("orders_cache", 0)
        lake.sql("UPDATE sales.orders SET amount = 1 WHERE id < 5")
        lake.sql("DELETE FROM sales.orders WHERE id = 7")
        service.wait_delivered("orders_cache", 2)
        assert service.end() == 0
    assert entries(redis_server.url, "orders:") == rows(lake)


@pytest.mark.nightly  # the route above finds its table in the same way
def test_changes_of_a_table_are_printed_by_its_name(given: dict[str, str], lake: Lake):
    lake.sql("DELETE FROM sales.orders WHERE id = 8")
    version = lake.sql("DESCRIBE HISTORY sales.orders LIMIT 1")[0]["version"]
    shown = command(given, "changes", "sales.orders", "--from", str(version), "--format", "json")
    assert [json.loads(line)["_change_type"] for line in shown.output.splitlines()] == ["delete"], shown.log


@pytest.mark.nightly  # tests/integration/test_bad_input.py reports a path without a table by the same text
def test_name_unknown_to_the_catalog_is_reported(given: dict[str, str]):
    ended = command(given | {"CDF_TABLES__ORDERS__NAME": "sales.none"}, "validate")
    assert ended.code == 1
    assert "table orders: sales.none: " in ended.log
    assert "Create it, or correct its PATH or NAME" in ended.log
