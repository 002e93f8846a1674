"""Test of the main job: the whole history of a table, `run --once` with only environment variables, every sink equal to the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.reading import documents, entries, folded, table
from tests.support.service import SHORT_LIVED, command, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deploy.local.servers import Elasticsearch, Redis
    from tests.support.service import Ended

KEYS = ("region", "id")
JVM_LINES = 3
"""Limit of lines from the JVM. A healthy run has none; the JVM of a machine with few resources may warn."""

COLUMNS = """
    region STRING, id BIGINT, status STRING, amount DECIMAL(12,2), total DECIMAL(30,10), at TIMESTAMP, local TIMESTAMP_NTZ,
    day DATE, content BINARY, tags ARRAY<STRING>, place STRUCT<city: STRING, spot: STRUCT<lat: DOUBLE, lon: DOUBLE>>,
    counts MAP<STRING, BIGINT>, flag BOOLEAN, score DOUBLE, small TINYINT, note STRING
"""
ROW = """
    CASE id % 3 WHEN 0 THEN 'north:50%' WHEN 1 THEN 'süd' ELSE 'east' END AS region, id,
    IF(id % 4 = 0, 'closed', 'open') AS status, CAST(id * 1.25 - 7 AS DECIMAL(12,2)) AS amount,
    CAST(id + 12345678901234567890.0123456789BD AS DECIMAL(30,10)) AS total,
    timestamp_micros(1700000000000001 + id * 86400123457) AS at,
    TIMESTAMP_NTZ'2024-02-29 23:59:59.999999' AS local, date_add(DATE'1969-12-20', CAST(id AS INT)) AS day,
    IF(id % 5 = 0, NULL, unhex(hex(id * 977))) AS content, IF(id % 6 = 0, NULL, array('a', NULL, concat('ü', id))) AS tags,
    IF(id % 7 = 0, NULL, named_struct('city', concat('"q" \\\\ ', id), 'spot', named_struct('lat', id / 8, 'lon', -id / 16))) AS place,
    IF(id % 8 = 0, NULL, map('one', id, 'two', NULL)) AS counts, id % 2 = 0 AS flag,
    id * 1e15 + 0.5 AS score, CAST(id % 100 AS TINYINT) AS small, IF(id % 2 = 0, NULL, concat('line\\nbreak ', id)) AS note
"""


def first_life(spark: SparkSession, orders: str) -> None:
    """Inserts, updates, key changes, deletes and a MERGE with every clause."""
    spark.sql(f"CREATE TABLE {orders} ({COLUMNS}) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"INSERT INTO {orders} SELECT {ROW} FROM range(60)")
    spark.sql(f"UPDATE {orders} SET amount = amount + 0.01, at = at + INTERVAL 1 MICROSECOND WHERE id % 10 = 3")
    spark.sql(f"UPDATE {orders} SET id = id + 1000 WHERE id % 10 = 4")
    spark.sql(f"DELETE FROM {orders} WHERE id % 10 = 5")
    spark.sql(
        f"MERGE INTO {orders} t USING (SELECT {ROW} FROM range(40, 80)) s ON t.region = s.region AND t.id = s.id "
        "WHEN MATCHED AND s.id % 10 = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'merged', tags = s.tags "
        "WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE AND t.id < 10 THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE AND t.id < 20 THEN UPDATE SET status = 'closed'"
    )


def second_life(spark: SparkSession, orders: str) -> None:
    """Swapped keys, keys that come back, an overwrite that keeps, changes and drops keys, a row deleted and put back."""
    spark.sql(f"UPDATE {orders} SET id = CASE id WHEN 20 THEN 23 ELSE 20 END WHERE id IN (20, 23) AND region = 'east'")
    spark.sql(f"INSERT INTO {orders} SELECT {ROW} FROM range(5)")
    spark.sql(
        f"INSERT OVERWRITE {orders} SELECT * EXCEPT (note), IF(id % 2 = 0, 'rewritten', note) AS note FROM {orders} "
        f"WHERE id % 9 <> 0"
    )
    spark.sql(f"DELETE FROM {orders} WHERE id = 30")
    spark.sql(f"INSERT INTO {orders} SELECT {ROW} FROM range(30, 31)")
    spark.sql(f"UPDATE {orders} SET status = IF(status = 'open', 'closed', 'open') WHERE id % 5 = 2")


@pytest.fixture
def given(tmp_path: Path, elasticsearch: Elasticsearch, redis_server: Redis) -> dict[str, str]:
    """One table twice: from a snapshot on, and its whole history from version 0; and a route spelled out.

    With the plans of production, whichever the other tests have.
    """
    both = {
        "PATH": tmp_path / "source",
        "KEYS": ",".join(KEYS),
        "SINKS": "audit,search,cache",
        "INCLUDE_PREIMAGES": True,
    }
    return environment(
        tmp_path,
        SPARK__CONF=json.dumps({"spark.driver.memory": "1g", **SHORT_LIVED}),
        **{f"TABLES__{slug}__{name}": value for slug in ("ORDERS", "HISTORY") for name, value in both.items()},
        TABLES__HISTORY__STARTING_VERSION=0,
        ROUTES__HISTORY_SEARCH__INDEX="history-of-orders",
        ROUTES__HISTORY_CACHE__KEY_TEMPLATE="ledger:{region}:{id}",
        ROUTES__OPEN__TABLE="orders",
        ROUTES__OPEN__SINK="search",
        ROUTES__OPEN__INDEX="open-orders",
        ROUTES__OPEN__FILTER="status = 'open'",
        ROUTES__OPEN__COLUMNS="id,amount,status",
        ROUTES__OPEN__RENAME="amount=price",
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=tmp_path / "audit",
        SINKS__SEARCH__TYPE="elasticsearch",
        SINKS__SEARCH__HOSTS=elasticsearch.url,
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
    )


def test_every_sink_equals_the_table_after_each_run(
    spark: SparkSession,
    tmp_path: Path,
    given: dict[str, str],
    elasticsearch: Elasticsearch,
    redis_server: Redis,
    here: Callable[..., Ended],
):
    """The first run is a process. The second continues from its state, in the process of the test."""
    first_life(spark, f"delta.`{tmp_path / 'source'}`")
    ended = command(given, "run", "--once", within=240)
    assert ended.code == 0, ended.log
    of_jvm = [entry for entry in ended.entries if entry["log.logger"].startswith(("org.", "io.", "com."))]
    assert len(of_jvm) <= JVM_LINES, of_jvm
    equal_everywhere(spark, tmp_path, elasticsearch.url, redis_server.url)

    second_life(spark, f"delta.`{tmp_path / 'source'}`")
    again = here(given, "run", "--once")
    assert again.code == 0, again.log
    equal_everywhere(spark, tmp_path, elasticsearch.url, redis_server.url)

    assert "Traceback" not in ended.log + again.log


def equal_everywhere(spark: SparkSession, folder: Path, search: str, cache: str) -> None:
    source = folder / "source"
    expected = table(spark, source, KEYS)
    assert len(expected) > 40
    for index, prefix, audit in (("orders", "orders:", "orders"), ("history-of-orders", "ledger:", "history")):
        assert documents(search, index) == expected
        assert entries(cache, prefix) == expected
        assert folded(spark, folder / "audit" / audit, KEYS) == expected
    assert documents(search, "open-orders") == {
        key: {"id": row["id"], "price": row["amount"], "status": "open"}
        for key, row in table(spark, source, KEYS, "status = 'open'").items()
    }
