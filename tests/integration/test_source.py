"""Read the metadata and the history of a source table."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.source import commit_log
from cdf_replicator.source.commit_log import Commit, CommitLog, Size
from cdf_replicator.source.table import SourceTable
from tests.support.vacuum import vacuum

NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def dated(world):
    """Versions 0 to 3, committed at noon and one minute apart."""
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    for version in range(4):
        at = NOON.timestamp() + 60 * version
        os.utime(Path(world.table, "_delta_log", f"{version:020d}.json"), (at, at))
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return world.source()


def test_a_young_table_offers_all_its_versions(dated):
    assert dated.log.available() == (0, 3)


def test_new_commits_are_seen(world):
    world.create()
    source = world.source()
    assert source.log.latest_version() == 0
    world.insert("(1, 'a')")
    world.insert("(2, 'b')")
    assert source.log.latest_version() == 2


@pytest.mark.parametrize("name", ["with space", "a,b}", f"{7:020d}.json, {8:020d}.json"])
def test_range_counts_commits_and_checkpoints_alone(spark, tmp_path, name):
    log = tmp_path / name / "_delta_log"
    (log / "_commits").mkdir(parents=True)
    commits = [f"{version:020d}.json" for version in (3, 4, 5)]
    checkpoints = [f"{4:020d}.checkpoint.parquet", f"{3:020d}.checkpoint.{1:010d}.{2:010d}.parquet"]
    others = [f"{9:020d}.crc", f"{9:020d}.json.tmp", f"{6:020d}.{9:020d}.compacted.json", "_last_checkpoint"]
    for file in [*commits, *checkpoints, *others]:
        (log / file).touch()
    found = CommitLog(spark, str(tmp_path / name))
    assert found.available() == (3, 5)
    assert found.listed_files == len([*commits, *checkpoints, *others, "_commits"])


@pytest.mark.parametrize("name", ["with space", "with%20escape", "ö#1"])
def test_new_commits_are_seen_under_any_name(spark, tmp_path, name):
    write_deltalake(tmp_path / "plain", pa.table({"id": [1]}))
    folder = (tmp_path / "plain").rename(tmp_path / name)
    log = CommitLog(spark, str(folder))
    first = folder / "_delta_log" / f"{0:020d}.json"
    shutil.copy(first, first.with_name(f"{1:020d}.json"))
    assert log.latest_version() == 1


def test_range_after_log_cleanup_begins_at_the_first_readable_version(world):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    world.forget_log_before(2)
    world.insert("(3, 'c')")
    source = world.source()
    assert source.log.available() == (2, 3)
    assert source.log.committed_at(1) is None
    assert {row["id"] for row in source.changes(*source.log.available()).collect()} == {2, 3}
    with pytest.raises(RouteHaltError, match=r"Version 1 of table orders \(.*\) .* versions 2 to 3 are available"):
        source.check_range(1)


@pytest.mark.parametrize("version", [-1, 4, 100])
def test_version_out_of_range_is_refused_with_the_range(dated, version):
    with pytest.raises(RouteHaltError, match=f"Version {version} .* versions 0 to 3 are available") as raised:
        dated.check_range(version)
    assert raised.value.decision.remedy


def test_refused_version_of_a_table_without_feed_names_that_cause(world):
    world.create(rows=["(1, 'a')"])
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    with pytest.raises(RouteHaltError, match=r"Version 9 .* is out of range: the change feed is off"):
        world.source().check_range(9)


def test_range_includes_its_ends(dated):
    dated.check_range(0)
    dated.check_range(3)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        ("2020-01-01", 0),
        ("2024-05-01T12:00:00Z", 0),
        ("2024-05-01 12:00:30", 1),
        ("2024-05-01T14:01:30+02:00", 2),
        ("2024-05-01T12:03:00Z", 3),
    ],
)
def test_a_timestamp_means_the_first_commit_at_or_after_it(dated, timestamp, version):
    assert dated.version_at(timestamp) == version


def test_a_timestamp_after_the_newest_commit_is_refused(dated):
    with pytest.raises(RouteHaltError, match=r"later than its newest commit \(version 3\)"):
        dated.version_at("2024-05-01T12:03:01Z")


def test_commit_time_is_the_time_of_its_file(dated):
    assert dated.log.committed_at(2) == NOON.timestamp() + 120
    assert dated.log.committed_at(9) is None


def test_history_older_than_a_week_is_readable_while_its_files_exist(dated):
    assert {row["id"] for row in dated.changes(2, 3).collect()} == {2, 3}
    assert {row["id"] for row in dated.snapshot(2).collect()} == {1, 2}


def test_table_is_found_by_its_name(world):
    world.spark.sql("CREATE TABLE named (id bigint) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    try:
        world.spark.sql("INSERT INTO named VALUES (7)")
        source = SourceTable(
            world.spark, replace(world.settings.routes["orders_files"].source, path=None, name="named")
        )
        assert source.log.available() == (0, 1)
        assert source.metadata.change_feed
        assert source.schema().fieldNames() == ["id"]
        assert [row["id"] for row in source.snapshot(1).collect()] == [7]
        assert [row["id"] for row in source.changes(1, 1).collect()] == [7]
        assert source.version_at("2020-01-01") == 0
        assert source.stream(1, None).isStreaming
    finally:
        world.spark.sql("DROP TABLE named")


def test_missing_table_is_retried(world):
    with pytest.raises(Exception) as raised:
        world.source()
    decision = classify_error(raised.value, route="orders_files")
    assert (decision.action, decision.reason) == ("wait", "table_missing")


def test_folder_without_a_delta_table_is_retried(world):
    world.spark.range(3).write.parquet(world.table)
    with pytest.raises(Exception) as raised:
        world.source()
    assert classify_error(raised.value, route="orders_files").reason == "table_missing"


def test_column_mapping_and_the_change_feed_are_detected(world):
    world.create(delta__columnMapping__mode="name")
    assert world.source().metadata.column_mapping
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    assert not world.source().metadata.change_feed


def test_retention_of_changes_is_the_shorter_of_both_retentions(world):
    days = {
        "delta__logRetentionDuration": "interval 40 days",
        "delta__deletedFileRetentionDuration": "interval 36 hours",
    }
    world.create(**days)
    assert world.source().retention_seconds() == 36 * 3600
    kept = (
        "'delta.deletedFileRetentionDuration' = 'interval 5 weeks', 'delta.logRetentionDuration' = 'interval 40 days'"
    )
    world.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({kept})")
    assert world.source().retention_seconds() == 35 * 86400
    kept = (
        "'delta.deletedFileRetentionDuration' = 'interval 39 days', 'delta.logRetentionDuration' = 'interval 39 days'"
    )
    world.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({kept}, 'delta.enableExpiredLogCleanup' = 'false')")
    assert world.source().retention_seconds() == 39 * 86400


def test_vacuum_with_a_shorter_retention_is_found_in_the_history(world):
    world.create(rows=["(1, 'a')"])
    assert world.source().shortest_vacuum_retention(100) == math.inf
    world.sql("VACUUM {t} RETAIN 200 HOURS")
    vacuum(world.spark, world.table)  # Spark records its retention
    assert world.source().shortest_vacuum_retention(100) == 0
    world.insert("(2, 'b')")
    assert world.source().shortest_vacuum_retention(1) == math.inf, "searches no further back than the limit"


def test_first_version_since_a_timestamp(dated):
    assert [dated.log.first_since(NOON.timestamp() + seconds) for seconds in (-1, 0, 1, 180, 181)] == [0, 0, 1, 3, 4]


def test_a_commit_has_the_size_of_the_files_that_its_feed_reads(world):
    world.create(rows=["(1, 'a')"])
    world.change("UPDATE {t} SET name = 'b'")
    world.insert("(2, 'c')")
    world.sql("OPTIMIZE {t}")
    log = world.source().log
    table = Path(world.table)
    added = {file.name: file.stat().st_size for file in table.glob("*.parquet")}
    changed = [file.stat().st_size for file in table.glob("_change_data/*.parquet")]

    inserted, updated, second, compacted = (log.commit_at(version).size for version in (1, 2, 3, 4))

    assert (inserted.files, second.files) == (1, 1)
    assert {inserted.bytes, second.bytes} <= {*added.values()}
    assert updated == Size(len(changed), sum(changed))
    assert compacted == Size(0, 0)


def test_a_long_commit_has_no_size(world, monkeypatch):
    world.create(rows=["(1, 'a')"])
    log = world.source().log
    short = log.commit_at(0)
    monkeypatch.setattr(commit_log, "_PARSED_BYTES", 10)

    long = log.commit_at(0)

    assert short.metadata is not None
    assert long == Commit(short.metadata, None)


def test_a_separator_of_unicode_in_a_statistic_is_part_of_a_value(world):
    world.create()
    world.sql("INSERT INTO {t} VALUES (1, 'a\\u0085b\\u2028c')")

    size = world.source().log.commit_at(1).size

    assert "\u0085" in Path(world.table, "_delta_log", f"{1:020d}.json").read_bytes().decode()
    assert (size.files, world.run()) == (1, None)


def test_an_absent_commit_has_neither_time_nor_actions(world):
    world.create()
    log = world.source().log

    assert (log.committed_at(9), log.commit_at(9), log.metadata_at(9)) == (None, None, None)
