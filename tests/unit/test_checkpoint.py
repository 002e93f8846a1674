"""What Spark's checkpoint says of a route. The texts are Spark's own."""

from __future__ import annotations

import pytest

from cdf_replicator.checkpoint import Offset, last_committed, last_planned, start_of_last_committed

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'
SOURCE = '{"sourceVersion":1,"reservoirId":"4c1b","reservoirVersion":%d,"index":%d,"isStartingVersion":false}'


@pytest.fixture
def checkpoint(tmp_path):
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()

    def batch(number, version, index, *, committed):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{METADATA}\n{SOURCE % (version, index)}")
        (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"crc\0\0\0")
        if committed:
            (tmp_path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
            (tmp_path / "commits" / f".{number}.crc").write_bytes(b"crc\0\0\0")

    return tmp_path, batch


def test_before_the_first_batch_there_is_nothing(checkpoint, tmp_path):
    assert last_committed(checkpoint[0]) is None
    assert last_planned(tmp_path / "nowhere") is None


def test_batches_are_numbers_not_texts(checkpoint):
    folder, batch = checkpoint
    for number in range(12):
        batch(number, 100 + number, -1, committed=True)
    assert last_committed(folder) == Offset("4c1b", 111, -1)
    assert start_of_last_committed(folder) == Offset("4c1b", 110, -1)


def test_a_planned_batch_is_not_yet_a_committed_one(checkpoint):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=True)
    batch(1, 6, 2, committed=False)
    assert last_committed(folder) == Offset("4c1b", 5, -1)
    assert last_planned(folder) == Offset("4c1b", 6, 2)
    assert start_of_last_committed(folder) is None, "it began where the stream did"


def test_only_planned_batches_are_no_committed_ones(checkpoint):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=False)
    assert last_committed(folder) is None
    assert last_planned(folder) == Offset("4c1b", 5, -1)


@pytest.mark.parametrize(("index", "touched", "complete"), [(-1, 6, 6), (-20, 6, 6), (-19, 6, 6), (0, 7, 6), (3, 7, 6)])
def test_of_a_version_nothing_part_or_all_may_be_read(index, touched, complete):
    offset = Offset.parse(SOURCE % (7, index))
    assert (offset.touched, offset.complete) == (touched, complete)


def test_a_source_without_an_offset_yet_is_no_position(checkpoint):
    folder, _ = checkpoint
    (folder / "offsets" / "0").write_text(f"v1\n{METADATA}\n-")
    (folder / "commits" / "0").write_text("v1\n{}")
    assert last_committed(folder) is None
