"""Every sink holds what the table holds, whatever the table went through: a bounded number of random histories.

`make soak` lives more of them. The history of one that finds a difference becomes a test by name here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator import feed
from connectors import change
from connectors.delta.audit import DeltaAuditSink
from tests.oracle.history import RARE, SERVICE, WRITES, Act, History, Shape, history_of
from tests.oracle.operations import OPERATIONS

SEEDS = (1, 2, 3)

pytestmark = pytest.mark.timeout(1800)

WRITING = tuple(
    step
    for number, kind in enumerate(WRITES)
    for step in ([Act("append", number, 0)] if number % 3 == 0 else []) + [Act(kind, number, number + 1)]
)
EMPTYING = tuple(kind for kind in RARE if kind in ("delete_all", "truncate"))
EMPTIED_AND_FILLED = (*(Act(kind) for kind in EMPTYING), Act("append", 1, 1), Act("append", 2, 2))
KEEPING = tuple(Act(kind, 3, 1) for kind in RARE if kind not in EMPTYING)
DELIVERED_AGAIN = (Act("insert", 2, 0), Act("lose_commit"), Act("replay", 1), Act("update", 1, 0), Act("merge", 2, 1))
EVERY_OPERATION = (Act("deliver"), *WRITING, *EMPTIED_AND_FILLED, *KEEPING, *DELIVERED_AGAIN)
SHAPES = {
    "partitioned": Shape(layout="region", generated=True, keys=("region", "id"), max_files=12, further="features"),
    "every feature": Shape(
        deletion_vectors=True,
        column_mapping=True,
        type_widening=True,
        in_commit_timestamps=True,
        row_tracking=True,
        from_version=0,
        max_files=8,
        further="replica",
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_random_history_every_sink_equals_the_table(life, seed):
    found = life(history_of(seed))

    assert found.differences == []
    assert found.compared > 0


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_after_every_kind_of_operation_every_sink_equals_the_table(life, shape):
    found = life(History(shape, EVERY_OPERATION))

    assert found.differences == []
    assert set(found.operations) == {*OPERATIONS, *SERVICE}


def test_random_histories_are_drawn_from_every_operation_there_is():
    assert {*WRITES, *RARE} == set(OPERATIONS)


def test_a_seed_gives_the_same_history_again():
    assert history_of(11) == history_of(11)
    assert history_of(11) != history_of(12)


# An oracle that finds nothing must be seen to find something.

MOVES = History(Shape(), (Act("append", 0, 0), Act("deliver"), Act("swap_keys", 0, 1), Act("rotate_keys", 3)))
SAME_KEY = History(Shape(), (Act("append", 0, 0), Act("deliver"), Act("merge_same_key", 0, 0)))


def test_a_service_that_ignored_preimages_would_be_found(life, monkeypatch):
    shaped = feed.change_frame
    monkeypatch.setattr(feed, "change_frame", lambda *a, **k: feed.without_preimages(shaped(*a, **k)))

    differences = life(MOVES).differences

    assert any("Elasticsearch against the snapshots' differences" in text for text in differences)
    assert any("Redis against deltalake's fold" in text for text in differences)


def test_a_service_that_let_a_delete_beat_the_insert_of_its_version_would_be_found(life, monkeypatch):
    latest = feed.latest_per_key

    def oldest_wins(frame):
        turned = F.when(F.col(change.CHANGE_TYPE).isin(*change.DELETES), 1).otherwise(0)
        return latest(frame.withColumn(change.GUARD, F.col(change.GUARD).bitwiseOR(F.lit(1)) - 1 + turned))

    monkeypatch.setattr(feed, "latest_per_key", oldest_wins)

    assert any("found None" in text for text in life(SAME_KEY).differences)


def test_a_service_that_appended_a_batch_twice_would_be_found(life, monkeypatch):
    written = DeltaAuditSink.write

    def twice(self, frame, batch):
        written(self, frame, batch)
        return written(self, frame, replace(batch, number=batch.number + 1_000_000))

    monkeypatch.setattr(DeltaAuditSink, "write", twice)

    assert any("too many" in text for text in life(SAME_KEY).differences)
