"""The Delta replica, held to the contract of upsert sinks that take DataFrames."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connectors import RouteOptions, RouteSpec
from connectors.delta.replica import DeltaReplicaSink
from connectors.testing import FrameContract, FrameResyncContract
from tests.contract.every_type import VerifyEveryType
from tests.support import light_table


@pytest.fixture
def route():
    return RouteSpec(name="orders_copy", table="orders", keys=("id",), options=RouteOptions(), owner="us", epoch=1)


class TestReplica(FrameContract, FrameResyncContract, VerifyEveryType):
    soft_delete = False

    @pytest.fixture
    def sink(self, tmp_path):
        settings = {"type": "delta_replica", "path": str(tmp_path), "soft_delete": self.soft_delete}
        return DeltaReplicaSink(DeltaReplicaSink.Settings(**settings))

    @pytest.mark.nightly  # VerifyContract writes and deletes the same keys, and reads them all
    def test_odd_keys_stay_distinct(self, write, shown):
        super().test_odd_keys_stay_distinct(write, shown)

    @pytest.fixture
    def read(self, sink):
        held = {}

        def read(route, key):
            path = sink.target(route)
            version = max(Path(path, "_delta_log").glob("*.json")).name
            if (path, version) not in held:
                rows = light_table.read(path)
                held[path, version] = {row["_cdf_key"]: row for row in rows if not row.get("_cdf_deleted")}
            return held[path, version].get(key)

        return read

    @pytest.fixture
    def write_foreign(self, sink):
        def write(route, key):
            row = pa.table({"id": [key], "_cdf_key": [key]})
            write_deltalake(sink.target(route), row, mode="append", schema_mode="merge")

        return write


@pytest.mark.nightly
class TestReplicaThatKeepsDeletedRows(TestReplica):
    soft_delete = keeps_deleted = True
    # These tests do not depend on the layout and run once, in TestReplica.
    test_target_is_unclaimed_until_prepared = None
    test_batch_delivered_twice_is_written_once = None
    test_odd_keys_stay_distinct = None
    test_empty_target_holds_nothing = None
    test_view_has_rows_of_every_type_as_written = None
    test_view_of_an_absent_target_creates_nothing = None
