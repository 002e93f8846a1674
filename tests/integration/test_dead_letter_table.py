"""Tests of the table of dead letters: its reads by a micro-batch, and its repair after damage by a disk or a power cut."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812
from structlog.testing import capture_logs

from cdf_replicator.delivery import dead_letter_table
from cdf_replicator.delivery.dead_letter_table import DeadLetterTable
from cdf_replicator.errors.exceptions import RouteHaltError
from tests.support.tiers import nightly


@pytest.fixture
def started(prepared):
    return prepared(rejected)


def rejected(world):
    """Reject keys 3 and 4 in a micro-batch each; a later change supersedes the dead letter of 4."""
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run() is None
    for row in ("(3, 'bad')", "(4, 'bad')"):
        world.insert(row)
        assert world.run() is None
    world.change("UPDATE {t} SET name = 'good' WHERE id = 4")
    assert world.run() is None
    assert world.dead_letters("key", "state") == [("3", "open"), ("4", "superseded")]


def newest_commit(world):
    (file,) = sorted((world.state_path.dead_letters / "_delta_log").glob("*.json"))[-1:]
    return file


def torn(world, share):
    """As a power cut leaves it: without Hadoop's checksum, and not in Delta's memory."""
    file = newest_commit(world)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.with_suffix(".crc").unlink(missing_ok=True)
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def copies(world):
    return list(world.state_path.dead_letters.parent.glob("dead_letters.damaged-*"))


@pytest.mark.parametrize("share", [nightly(0), 0.5])
def test_torn_commit_is_moved_aside_and_no_dead_letter_is_lost(started, share):
    kept = started.dead_letters("id", "key", "state", "created_at", "closed_at")
    torn(started, share)
    started.insert("(5, 'bad')", "(6, 'f')")
    with capture_logs() as lines:
        assert started.run() is None
    assert started.delivered().keys() == {"1", "2", "4", "6"}
    assert [
        row for row in started.dead_letters("id", "key", "state", "created_at", "closed_at") if row[1] != "5"
    ] == kept
    assert started.board.snapshot().routes[0].dead_letters == 2
    (copy,) = copies(started)
    (warning,) = [line for line in lines if "dead-letter table" in line["event"]]
    assert warning["copies"] == [copy.name]


def test_recovered_table_keeps_a_dead_letter_that_was_opened_again(started):
    started.letters.close("orders_files", F.lit(True), "redriven")
    assert started.letters.open_lost("orders_files", epoch=2, since=0) == 0
    assert started.letters.open_lost("orders_files", epoch=1, since=time.time() + 60) == 0
    assert started.letters.open_lost("orders_files", epoch=2, since=time.time() - 60) == 1, "the redrive is of epoch 2"
    started.letters.close("orders_files", F.lit(True), "redriven")
    assert started.letters.open_lost("orders_files", epoch=1, since=0) == 1
    torn(started, 0.5)
    assert started.run() is None
    assert copies(started)
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "superseded")]


def test_reading_command_does_not_recover_a_torn_table(started):
    torn(started, 0.5)
    with pytest.raises(RouteHaltError, match="recovers it at its next start"):
        started.letters.read_open("orders_files")
    assert copies(started) == []


def test_damaged_data_file_is_reported_with_the_resync_command(started):
    folder = started.state_path.dead_letters / "route=orders_files"
    whole = {row["key"]: row["file"] for row in files_of_keys(started)}
    (folder / whole["3"]).write_bytes(b"PAR1")
    (folder / f".{whole['3']}.crc").unlink()
    with capture_logs() as lines:
        assert started.run() is None
    (warning,) = [line for line in lines if "dead-letter table" in line["event"]]
    assert warning["next_step"].endswith("run: cdf-replicator resync orders_files")
    assert [key for (key,) in started.dead_letters("key")] == ["4"]


def files_of_keys(world):
    files = [Path(unquote(uri)) for uri in DeltaTable(str(world.state_path.dead_letters)).file_uris()]
    keys = ((file.name, pq.ParquetFile(file).read(["key"])["key"].to_pylist()) for file in files)
    return [{"key": key, "file": name} for name, held in keys for key in held]


def test_route_without_dead_letters_does_not_read_the_table(started, monkeypatch):
    def never(_):
        raise AssertionError("it was read")

    started.change("DELETE FROM {t} WHERE id = 3")  # so that nothing is refused
    started.into_lines()
    monkeypatch.setattr(DeadLetterTable, "frame", never)
    monkeypatch.setattr(DeadLetterTable, "delta", never)
    torn(started, 0.5)
    assert started.run("orders_lines") is None
    assert copies(started) == [], "nor does it move what is torn"


def test_interrupted_recovery_is_completed(started):
    table = started.state_path.dead_letters
    table.rename(table.with_name("dead_letters.damaged-20260131T120000"))
    started.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert started.run() is None
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "superseded")]
    shutil.rmtree(copies(started)[0])
    assert started.run() is None
    assert started.board.snapshot().routes[0].dead_letters == 1


def test_later_micro_batches_do_not_read_the_table_of_open_letters(started, monkeypatch):
    looks = []
    frame = DeadLetterTable.frame
    monkeypatch.setattr(DeadLetterTable, "frame", lambda table: looks.append("frame") or frame(table))
    monkeypatch.setattr(DeadLetterTable, "delta", lambda table: looks.append("delta"))
    started.insert("(5, 'e')", "(6, 'bad')")
    assert started.run() is None
    assert looks == ["frame"], "at the start of the route; what is refused is appended unseen"
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "superseded"), ("6", "open")]


def test_files_of_many_dead_letters_are_compacted_and_no_letter_changes(started, monkeypatch):
    monkeypatch.setattr(dead_letter_table, "MOST_FILES", 3)
    monkeypatch.setattr(dead_letter_table, "VACUUM_SECONDS", 0)
    table, columns = started.state_path.dead_letters, ("id", "key", "row", "state", "created_at", "closed_at")
    kept = "delta.deletedFileRetentionDuration = 'interval 0 hours'"
    started.spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({kept})")
    before = started.dead_letters(*columns)
    started.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"  # an append for each commit
    for key in range(10, 15):
        started.insert(f"({key}, 'bad')")
    assert started.run() is None
    assert len(list((table / "route=orders_files").glob("*.parquet"))) <= 4
    assert len({row["file"] for row in files_of_keys(started)}) <= 4
    letters = started.dead_letters(*columns)
    assert [letter for letter in letters if letter in before] == before
    assert sorted(key for _, key, *_ in letters) == ["10", "11", "12", "13", "14", "3", "4"]
    started.insert("(20, 'bad')", "(21, 'bad')")
    started.change("UPDATE {t} SET name = 'good' WHERE id = 10")
    assert started.run() is None
    states = dict(started.dead_letters("key", "state"))
    assert (states["3"], states["4"], states["10"], states["20"]) == ("open", "superseded", "superseded", "open")


def test_failed_compaction_of_dead_letters_fails_no_micro_batch(started, monkeypatch):
    tried = []

    def denied(_, route):
        tried.append(route)
        raise PermissionError("delete denied")

    monkeypatch.setattr(dead_letter_table, "MOST_FILES", 1)
    monkeypatch.setattr(DeadLetterTable, "_compact", denied)
    started.insert("(10, 'bad')")
    assert started.run() is None
    assert tried == ["orders_files"]
    assert ("10", "open") in started.dead_letters("key", "state")
