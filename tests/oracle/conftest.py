from __future__ import annotations

import itertools

import pytest

from tests.oracle.oracle import live

_numbers = itertools.count()


@pytest.fixture
def search_server(elasticsearch):
    """The server of the documents."""
    return elasticsearch


@pytest.fixture
def life(spark, search_server, redis_server, postgres_server, tmp_path):
    """Live a history; a name of its own each time, since targets are claimed."""
    servers = search_server, redis_server, postgres_server
    yield lambda history: live(history, f"t{next(_numbers)}", tmp_path, spark, *servers)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # of tables that no later test reads
