"""The reaction of a route to errors of a joined table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.errors import PySparkException

from cdf_replicator.errors.exceptions import EnrichmentError
from cdf_replicator.route import Dimension, Route, Source
from cdf_replicator.transform.enrichment import DimensionTable
from connectors import RouteOptions

NO_SPARK: Any = None


@pytest.fixture
def carriers() -> DimensionTable:
    dimension = Dimension("carriers", "s3a://lake/carriers", None, {"carrier": "code"}, {"name": "carrier_name"})
    source = Source("orders", path="s3a://lake/orders")
    route = Route("orders_search", source, "search", ("id",), None, None, {}, RouteOptions(), enrich=(dimension,))
    return DimensionTable(NO_SPARK, dimension, route)


@pytest.mark.parametrize(
    ("text", "reason", "next_step"),
    [
        ("java.nio.file.AccessDeniedException: s3a://lake/carriers: (Service: S3, Status Code: 403)", "spark", "waits"),
        ("[DELTA_TRUNCATED_TRANSACTION_LOG] Unable to reconstruct state", "history_lost", "Repair or recreate it"),
        ("[DELTA_SCHEMA_CHANGED] The schema of your Delta table has changed", "schema_change", "No action needed"),
        ("org.apache.hadoop.fs.s3a.AWSStatus500Exception: 503", "storage", "An object store or a network file system"),
        ("[DELTA_TABLE_NOT_FOUND] Delta table doesn't exist.", "table_missing", "Create it, or correct its PATH"),
    ],
)
def test_route_waits_while_a_joined_table_cannot_be_read(
    carriers: DimensionTable, text: str, reason: str, next_step: str
) -> None:
    def read() -> NoReturn:
        raise PySparkException(text)

    with pytest.raises(EnrichmentError) as caught:
        carriers._read(read)
    decision = caught.value.decision
    assert (decision.action, decision.reason) == ("wait", reason)
    assert next_step in decision.remedy
    assert "Table carriers (s3a://lake/carriers), which route orders_search joins: " in decision.message


@pytest.mark.parametrize(
    ("location", "file", "has_file"),
    [
        ("s3a://lake/carriers", "s3a://lake/carriers/part-1.parquet", True),
        ("file:/lake/my carriers%20", "file:/lake/my%20carriers%2520/part-1.parquet", True),
        ("s3a://lake/carriers", "s3a://lake/carriers_2/part-1.parquet", False),
        ("s3a://lake/carriers", "s3a://lake/orders/_change_data/cdc-1.parquet", False),
    ],
)
def test_file_of_a_joined_table_is_found_in_an_error(
    carriers: DimensionTable, location: str, file: str, has_file: bool
) -> None:
    text = f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {file}. File does not exist."
    error = PySparkException(f"{text}\n+- Location: PreparedDeltaFileIndex [s3a://lake/carriers]")
    assert not carriers.has_file_of(error, "orders"), "the route has not opened the table"
    metadata = SimpleNamespace(table_id="carriers")
    carriers._table = SimpleNamespace(location=location, metadata=metadata)  # type: ignore[assignment]
    assert carriers.has_file_of(error, "orders") == has_file
    assert not carriers.has_file_of(error, "carriers"), "a table joined with itself"


def test_unsupported_joined_table_halts_with_the_next_step_of_its_error(carriers: DimensionTable) -> None:
    decision = carriers.classified(PySparkException("[DELTA_UNSUPPORTED_FEATURES_FOR_READ] a feature")).decision
    assert (decision.action, decision.reason) == ("halt", "unsupported_table")
    assert "upgrade cdf-replicator" in decision.remedy


def test_corrected_data_of_a_joined_table_needs_a_resume(carriers: DimensionTable) -> None:
    remedy = carriers._halt("code does not identify a row", "Correct its ON").decision.remedy
    assert remedy.startswith("Correct its ON (CDF_ROUTES__ORDERS_SEARCH__ENRICH__CARRIERS__...), then restart")
    assert remedy.endswith("Or correct that table, then run: cdf-replicator resume orders_search")
