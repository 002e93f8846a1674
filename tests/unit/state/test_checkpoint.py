"""The position of a route is read from Spark's checkpoint. The texts are Spark's own."""

from __future__ import annotations

import os
import time
import zlib

import pytest

from cdf_replicator.state.checkpoint import (
    Offset,
    first_started_at,
    is_intact,
    last_batch,
    last_committed,
    last_offset,
    newest_batch,
    start_of_last_committed,
)
from cdf_replicator.state.storage_path import LocalPath

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'
SOURCE = '{"sourceVersion":1,"reservoirId":"4c1b","reservoirVersion":%d,"index":%d,"isStartingVersion":false}'


@pytest.fixture
def checkpoint(tmp_path):
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()

    def batch(number, version, index, *, committed):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{METADATA}\n{SOURCE % (version, index)}")
        (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"crc\0\0\0")
        (tmp_path / "metadata").write_text('{"id":"f9d5"}')
        if committed:
            (tmp_path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
            (tmp_path / "commits" / f".{number}.crc").write_bytes(b"crc\0\0\0")

    return tmp_path, batch


def test_checkpoint_is_empty_before_first_batch(checkpoint, tmp_path):
    assert last_committed(checkpoint[0]) is None
    assert last_offset(tmp_path / "nowhere") is None


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
    assert last_offset(folder) == Offset("4c1b", 6, 2)
    assert start_of_last_committed(folder) is None, "it began where the stream did"


def test_planned_batches_are_not_committed_batches(checkpoint):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=False)
    assert last_committed(folder) is None
    assert start_of_last_committed(folder) is None
    assert last_offset(folder) == Offset("4c1b", 5, -1)


@pytest.mark.parametrize(("index", "touched", "complete"), [(-1, 6, 6), (-20, 6, 6), (-19, 6, 6), (0, 7, 6), (3, 7, 6)])
def test_offset_shows_a_version_as_unread_partly_read_or_read(index, touched, complete):
    offset = Offset.parse(SOURCE % (7, index))
    assert (offset.started_version, offset.completed_version) == (touched, complete)


def test_a_source_without_an_offset_yet_is_no_position(checkpoint):
    folder, _ = checkpoint
    (folder / "offsets" / "0").write_text(f"v1\n{METADATA}\n-")
    (folder / "commits" / "0").write_text("v1\n{}")
    assert last_committed(folder) is None


def test_a_checkpoint_is_whole_from_its_metadata_on(checkpoint):
    folder, batch = checkpoint
    assert not is_intact(folder)
    (folder / "metadata").write_text('{"id":"f9d5"}')
    assert is_intact(folder)
    batch(0, 5, -1, committed=False)
    assert is_intact(folder)
    batch(0, 5, -1, committed=True)
    batch(1, 6, -1, committed=False)
    assert is_intact(folder)


def test_interrupted_first_write_is_not_a_checkpoint(checkpoint):
    folder, _ = checkpoint
    (folder / "metadata").write_text('{"id":"f9d5"}')
    (folder / "offsets" / ".0.52fa5a91.tmp").touch()
    assert not is_intact(folder), "Spark would refuse it"


@pytest.mark.parametrize("name", ["metadata", "offsets/1", "offsets/2", "commits/2"])
def test_a_file_that_is_cut_off_anywhere_is_seen(checkpoint, name):
    folder, batch = checkpoint
    for number in range(3):
        batch(number, 5 + number, -1, committed=True)
    file = folder / name
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert not is_intact(folder), whole[:length]
    file.write_bytes(whole)
    assert is_intact(folder)


def test_error_of_the_storage_is_not_a_damaged_file(checkpoint):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=True)
    file = folder / "offsets" / "0"
    file.unlink()
    file.symlink_to("0")
    for read in (is_intact, last_committed, last_offset):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            read(folder)


def test_error_of_a_listing_is_not_a_missing_file(checkpoint, unreadable):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=True)
    unreadable()
    for read in (is_intact, last_committed, last_offset):
        with pytest.raises(PermissionError):
            read(folder)


def test_unreadable_file_is_skipped(checkpoint):
    folder, batch = checkpoint
    for number in range(3):
        batch(number, 5 + number, -1, committed=True)
    (folder / "offsets" / "2").write_text("v1\n{")
    assert last_committed(folder) == Offset("4c1b", 6, -1)
    assert last_offset(folder) is None


def test_truncated_checksums_are_detected_if_hadoop_fails_on_them(checkpoint):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=True)
    content = (folder / "commits" / "0").read_bytes()
    sums = folder / "commits" / ".0.crc"
    sums.write_bytes(b"crc\0" + (512).to_bytes(4, "big") + zlib.crc32(content).to_bytes(4, "big"))
    whole = sums.read_bytes()
    assert is_intact(folder)
    for length in range(len(whole)):
        sums.write_bytes(whole[:length])
        assert is_intact(folder) == (length < 8), length


def test_numbers_of_the_last_committed_and_newest_planned_batch(checkpoint, tmp_path):
    folder, batch = checkpoint
    assert (last_batch(folder), newest_batch(folder), newest_batch(tmp_path / "nowhere")) == (None, -1, -1)
    batch(0, 5, -1, committed=True)
    assert (last_batch(folder), newest_batch(folder)) == ((0, Offset("4c1b", 5, -1)), 0)
    batch(1, 6, 2, committed=False)
    assert (last_batch(folder), newest_batch(folder)) == ((0, Offset("4c1b", 5, -1)), 1)


def test_the_first_committed_batch_has_no_start_in_the_checkpoint(checkpoint):
    folder, batch = checkpoint
    assert start_of_last_committed(folder) is None
    batch(0, 5, -1, committed=True)
    assert start_of_last_committed(folder) is None
    batch(1, 6, -1, committed=True)
    assert start_of_last_committed(folder) == Offset("4c1b", 5, -1)


def test_a_checkpoint_whose_commit_is_newer_than_its_plan_is_not_whole(checkpoint):
    folder, batch = checkpoint
    for number in range(3):
        batch(number, 5 + number, -1, committed=True)
    (folder / "offsets" / "2").unlink()
    assert not is_intact(folder)


def test_a_checkpoint_with_a_commit_and_no_plan_is_not_whole(checkpoint):
    folder, _ = checkpoint
    (folder / "metadata").write_text('{"id":"f9d5"}')
    (folder / "commits" / "0").write_text("v1\n{}")
    assert not is_intact(folder)


def test_checkpoint_needs_only_its_two_newest_plans_and_newest_commit(checkpoint):
    folder, batch = checkpoint
    for number in range(4):
        batch(number, 5 + number, -1, committed=True)
    for name in ("offsets/0", "offsets/1", "commits/0", "commits/1", "commits/2"):
        (folder / name).unlink()
    assert is_intact(folder)
    (folder / "offsets" / "2").unlink()
    assert not is_intact(folder)


def test_checkpoint_file_is_compared_with_the_checksums_of_its_parts(checkpoint):
    folder, batch = checkpoint
    batch(0, 5, -1, committed=True)
    content, step = (folder / "offsets" / "0").read_bytes(), 16
    parts = [content[at : at + step] for at in range(0, len(content), step)]
    head = b"crc\0" + step.to_bytes(4, "big")
    sums = [zlib.crc32(part).to_bytes(4, "big") for part in parts]
    assert len(sums) > 2
    file = folder / "offsets" / ".0.crc"
    file.write_bytes(head + b"".join(sums))
    assert is_intact(folder)
    for wrong in range(len(sums)):
        file.write_bytes(head + b"".join([*sums[:wrong], b"\0\0\0\0", *sums[wrong + 1 :]]))
        assert not is_intact(folder), wrong
    file.write_bytes(b"CRC\0" + head[4:] + b"\0\0\0\0")
    assert is_intact(folder), "Hadoop ignores a file that does not begin as one of checksums"


def test_checkpoint_keeps_the_time_of_its_first_start(checkpoint):
    folder, batch = checkpoint
    before = time.time()
    assert first_started_at(LocalPath(folder)) >= before, "none has started yet"
    batch(0, 7, 3, committed=True)
    os.utime(folder / "metadata", (1000.0, 1000.0))
    assert first_started_at(LocalPath(folder)) == 1000.0
