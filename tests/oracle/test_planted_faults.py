"""The oracle finds the faults that are planted in the service."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.transform import change_frame
from connectors import change
from connectors.delta.audit import DeltaAuditSink
from tests.oracle.history import Act, History, Shape

pytestmark = pytest.mark.timeout(1800)

MOVES = History(Shape(from_version=0), (Act("append", 0, 0), Act("swap_keys", 0, 1), Act("rotate_keys", 3)))
VERIFIED = re.compile(r"^verify of \w+_(\w+): ")
SAME_KEY = History(
    Shape(from_version=0), (Act("append", 0, 0), Act("merge_same_key", 0, 0), Act("recreate_table", 1, 0))
)
"""The oracle has to compare before the table is replaced, which empties every sink but the audit table."""


def test_oracle_finds_a_service_that_ignores_preimages(life, monkeypatch):
    shaped = change_frame.change_frame
    monkeypatch.setattr(change_frame, "change_frame", lambda *a, **k: change_frame.without_preimages(shaped(*a, **k)))

    differences = life(MOVES).differences

    assert any("Elasticsearch against the snapshots' differences" in text for text in differences)
    assert any("Redis against deltalake's fold" in text for text in differences)
    assert any("PostgreSQL against Spark's SELECT" in text for text in differences)
    assert {route for text in differences for route in VERIFIED.findall(text)} == {"search", "cache", "db"}


def test_oracle_finds_deletes_that_beat_inserts_and_batches_appended_twice(life, monkeypatch):
    """Two faults at once: the first concerns the sinks with keys, the second the audit table."""
    latest, written = change_frame.latest_per_key, DeltaAuditSink.write

    def oldest_wins(frame):
        turned = F.when(F.col(change.CHANGE_TYPE).isin(*change.DELETES), 1).otherwise(0)
        return latest(frame.withColumn(change.GUARD, F.col(change.GUARD).bitwiseOR(F.lit(1)) - 1 + turned))

    def twice(self, frame, batch):
        written(self, frame, batch)
        return written(self, frame, replace(batch, number=batch.number + 1_000_000))

    monkeypatch.setattr(change_frame, "latest_per_key", oldest_wins)
    monkeypatch.setattr(DeltaAuditSink, "write", twice)

    differences = life(SAME_KEY).differences

    assert any(text.startswith("Elasticsearch against") and "found None" in text for text in differences)
    assert any(text.startswith("audit against") and "too many" in text for text in differences)
