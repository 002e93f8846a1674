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

MOVES = History(Shape(), (Act("append", 0, 0), Act("deliver"), Act("swap_keys", 0, 1), Act("rotate_keys", 3)))
VERIFIED = re.compile(r"^verify of \w+_(\w+): ")
SAME_KEY = History(Shape(), (Act("append", 0, 0), Act("deliver"), Act("merge_same_key", 0, 0)))


def test_oracle_finds_a_service_that_ignores_preimages(life, monkeypatch):
    shaped = change_frame.change_frame
    monkeypatch.setattr(change_frame, "change_frame", lambda *a, **k: change_frame.without_preimages(shaped(*a, **k)))

    differences = life(MOVES).differences

    assert any("Elasticsearch against the snapshots' differences" in text for text in differences)
    assert any("Redis against deltalake's fold" in text for text in differences)
    assert any("PostgreSQL against Spark's SELECT" in text for text in differences)
    assert {route for text in differences for route in VERIFIED.findall(text)} == {"search", "cache", "db"}


def test_oracle_finds_a_service_whose_deletes_beat_inserts_of_their_version(life, monkeypatch):
    latest = change_frame.latest_per_key

    def oldest_wins(frame):
        turned = F.when(F.col(change.CHANGE_TYPE).isin(*change.DELETES), 1).otherwise(0)
        return latest(frame.withColumn(change.GUARD, F.col(change.GUARD).bitwiseOR(F.lit(1)) - 1 + turned))

    monkeypatch.setattr(change_frame, "latest_per_key", oldest_wins)

    assert any("found None" in text for text in life(SAME_KEY).differences)


def test_oracle_finds_a_service_that_appends_a_batch_twice(life, monkeypatch):
    written = DeltaAuditSink.write

    def twice(self, frame, batch):
        written(self, frame, batch)
        return written(self, frame, replace(batch, number=batch.number + 1_000_000))

    monkeypatch.setattr(DeltaAuditSink, "write", twice)

    assert any("too many" in text for text in life(SAME_KEY).differences)
