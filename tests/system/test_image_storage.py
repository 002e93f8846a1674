"""The image, which has only a part of Spark's jars and of Java, reads tables of an object store and of a catalog."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import redis

from deploy.local.jars.fetch import artifacts, fetch
from deploy.local.servers.s3 import BUCKET, S3
from deploy.local.servers.server import CACHE
from tests.support.reading import entries
from tests.support.service import SHORT_LIVED
from tests.support.tiers import nightly
from tests.system.containers import Container, Podman
from tests.system.lake import Lake
from tests.system.metastore import HiveMetastore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deploy.local.servers import Redis

pytestmark = pytest.mark.timeout(1200)  # the first test waits for the image to be built
JARS = CACHE / "downloads" / "s3"
CREATED = (
    "CREATE TABLE {} USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true) "
    "AS SELECT id, concat('name ', id) AS name FROM range(10)"
)


@pytest.fixture
def run_once(podman: Podman, redis_server: Redis) -> Callable[..., str]:
    """Deliver tables into Redis by the image's `run --once`; returns its log."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()

    def run(conf: Mapping[str, str], variables: Mapping[str, str], *options: str) -> str:
        given = {
            "CDF_SPARK__CONF": json.dumps({**SHORT_LIVED, **conf}),
            "CDF_TABLES__ORDERS__KEYS": "id",
            "CDF_TABLES__ORDERS__SINKS": "cache",
            "CDF_SINKS__CACHE__TYPE": "redis",
            "CDF_SINKS__CACHE__URL": redis_server.url,
            **variables,
        }
        return Container(podman, "cdf-image-storage", given, options).once("run", "--once").log

    return run


@pytest.mark.parametrize("runs", [1, nightly(2)])
def test_image_reads_tables_of_an_object_store_and_of_a_hive_metastore(
    run_once: Callable[..., str], redis_server: Redis, runs: int
):
    """State path and audit table are in the object store too."""
    fetch("s3", JARS)
    folder = f"s3a://{BUCKET}"
    variables = {
        "CDF_STATE_PATH": f"{folder}/state",
        "CDF_TABLES__ORDERS__PATH": f"{folder}/orders",
        "CDF_TABLES__ORDERS__SINKS": "cache,audit",
        "CDF_TABLES__ORDERS__STARTING_VERSION": "0",
        "CDF_TABLES__ITEMS__NAME": "sales.items",
        "CDF_TABLES__ITEMS__KEYS": "id",
        "CDF_TABLES__ITEMS__SINKS": "cache",
        "CDF_SINKS__AUDIT__TYPE": "delta_audit",
        "CDF_SINKS__AUDIT__PATH": f"{folder}/audit",
    }
    with S3.start() as store, HiveMetastore().started() as metastore:
        conf = {**store.spark_conf, **metastore.conf}
        jars = ",".join(str(JARS / artifact.file) for artifact in artifacts("s3"))
        with Lake({"spark.jars": jars, **conf}) as lake:
            lake.sql(CREATED.format(f"delta.`{folder}/orders`"))
            lake.sql(f"DELETE FROM delta.`{folder}/orders` WHERE id = 7")
            lake.sql("CREATE DATABASE sales")
            lake.sql(CREATED.format("sales.items"))
            warehouse = metastore.home / "warehouse"
            for private in (metastore.home, warehouse, warehouse / "sales.db"):
                private.chmod(0o755)  # the user of the image reads it
            for _ in range(runs):
                run_once(conf, variables, "--volume", f"{metastore.home}:{metastore.home}:ro")
            orders, items = (
                {str(row["id"]): row for row in lake.sql(f"SELECT * FROM {table}")}
                for table in (f"delta.`{folder}/orders`", "sales.items")
            )
            (audit,) = lake.sql(f"SELECT count(*) AS rows FROM delta.`{folder}/audit/orders`")
    assert (len(orders), len(items)) == (9, 10)
    assert entries(redis_server.url, "orders:") == orders
    assert entries(redis_server.url, "items:") == items
    assert audit["rows"] == 11
