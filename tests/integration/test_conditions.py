"""Check the error-condition table against real Delta: provoke each condition and check the route's action.

A condition that no route can reach is provoked in Delta itself and then classified.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.pipeline import batch_writer as batch_module
from cdf_replicator.state import checkpoint
from cdf_replicator.state.command_queue import Command
from connectors import Batch, RouteOptions, RouteSpec
from tests.support.session import replaced
from tests.support.tiers import nightly
from tests.support.waiting import until

ENFORCED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
MAPPED = {"delta__columnMapping__mode": "name"}


@pytest.fixture
def live(world):
    """Start the route as the service does, and stop it at the end of the test."""
    stop, runners = threading.Event(), []

    def start():
        world.environ["CDF_TRIGGER_SECONDS"] = "0.2"
        runners.append(world.runner(once=False, stop=stop))
        runners[-1].start()
        return runners[-1]

    yield start
    stop.set()
    for runner in runners:
        runner.wake()
        runner.join(30)
        assert not runner.is_alive()


def shown(world, decision, action, reason):
    """Verdict, board and next step say one thing."""
    assert decision is not None
    route = world.board.snapshot().routes[0]
    assert (decision.action, decision.reason) == (action, reason)
    assert route.state == ("stopped" if action == "wait" else "halted"), "an --once run does not wait"
    assert route.last_error.condition == reason
    assert route.last_error.next_step == decision.remedy
    return decision


def resync_repairs(world):
    command = Command("resync", "orders_files")
    assert world.run(command=command) is None
    assert world.delivered() == world.expected()


def commit_file(world, version):
    return Path(world.table, "_delta_log", f"{version:020d}.json")


def forget(world):
    """Clear Delta's cache, so that it reads the log again, like another process."""
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_changes_removed_by_vacuum_are_not_skipped(started):
    started.change("UPDATE {t} SET name = upper(name)")
    started.insert("(3, 'c')")
    started.replace("(3, 'cc')", "(4, 'd')")
    started.vacuum()
    decision = shown(started, started.run(), "halt", "history_lost")
    assert "FILE_NOT_EXIST" in decision.message
    assert decision.remedy.endswith("resync orders_files")
    assert started.board.snapshot().routes[0].last_error.count == 2, "tried once more, then halted"
    assert checkpoint.last_committed(started.state_path.checkpoint("orders_files", 0)) is None
    resync_repairs(started)


def test_log_with_a_gap_halts_the_route(started):
    started.insert("(3, 'c')")
    assert started.run() is None
    started.insert("(4, 'd')")
    started.insert("(5, 'e')")
    gap = commit_file(started, started.version() - 1)
    gap.unlink()
    gap.with_name(f".{gap.name}.crc").unlink(missing_ok=True)
    forget(started)
    decision = shown(started, started.run(), "halt", "history_lost")
    assert "DELTA_VERSIONS_NOT_CONTIGUOUS" in decision.message
    assert decision.remedy.endswith("resync orders_files")
    assert started.delivered().keys() == {"1", "2", "3"}
    assert started.board.snapshot().routes[0].last_error.count == 3


def test_commit_that_a_listing_missed_is_read_at_the_retry(started, monkeypatch):
    """A listing of NFS or of a local disk may return a commit and miss the commit before it."""
    started.insert("(3, 'c')")
    assert started.run() is None
    started.insert("(4, 'd')")
    started.insert("(5, 'e')")
    gap = commit_file(started, started.version() - 1)
    hidden = gap.rename(started.folder / "hidden")
    forget(started)
    failures = []

    def shown_again(_policy, _attempt):
        failures.append(started.board.snapshot().routes[0].last_error.condition)
        if hidden.exists():
            hidden.rename(gap)
        return 0.0

    monkeypatch.setattr(RetryPolicy, "backoff", shown_again)
    assert started.run() is None
    assert failures == ["history_lost"]
    assert started.delivered() == started.expected()


def test_start_at_a_version_without_change_feed_halts(world):
    world.create(rows=["(1, 'a')"], delta__enableChangeDataFeed="false")
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    world.insert("(2, 'b')")
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "1"
    decision = shown(world, world.run(), "halt", "change_feed_off")
    assert decision.message.endswith("as change data was not recorded for version [1].")
    assert "cdf-replicator enable TABLE" in decision.remedy
    assert "resync orders_files" in decision.remedy
    del world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"]
    resync_repairs(world)


def test_unknown_table_feature_halts_the_route(started):
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture", "changeDataFeed"]}
    commit_file(started, 2).write_text(json.dumps({"protocol": {**protocol, **features}}) + "\n")
    forget(started)
    decision = shown(started, started.run(), "halt", "unsupported_table")
    assert "fromTheFuture" in decision.message
    assert "upgrade cdf-replicator" in decision.remedy
    commit_file(started, 2).unlink()
    forget(started)
    assert started.run() is None, "nothing is lost"


def test_damaged_file_is_retried_then_reported(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"], delta__enableDeletionVectors="true")
    assert world.run() is None
    before = set(Path(world.table).glob("*.parquet"))
    world.insert("(3, 'c')")
    (data,) = set(Path(world.table).glob("*.parquet")) - before
    with damaged(data):
        decision = shown(world, world.run(), "halt", "read_failed")
        assert "FAILED_READ_FILE" in decision.message
        assert world.board.snapshot().routes[0].last_error.count == 5
    world.sql("INSERT INTO {t} SELECT id, 'many' FROM range(10, 40)")
    world.change("DELETE FROM {t} WHERE id % 3 = 0")
    with damaged(*Path(world.table).glob("deletion_vector*.bin")):
        with pytest.raises(Py4JJavaError) as caught:  # the route fails by the same error
            world.sql("SELECT * FROM {t}").collect()
        decision = classify_error(caught.value, route="orders_files")
        assert (decision.action, decision.reason) == ("retry_then_halt", "read_failed")
        assert "storage responds" in decision.remedy
    assert world.run() is None
    assert world.delivered() == world.expected()


class damaged:  # noqa: N801 - reads as a word
    """Damage files of the table until the block ends."""

    def __init__(self, *files):
        assert files
        self._files = {file: file.read_bytes() for file in files}

    def __enter__(self):
        for file, content in self._files.items():
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            file.write_bytes(bytes(255 - byte for byte in content))

    def __exit__(self, *_):
        for file, content in self._files.items():
            file.write_bytes(content)


def test_removed_table_is_retried_and_followed_after_it_returns(started, live):
    started.insert("(3, 'c')")
    runner = live()
    until(lambda: "3" in started.delivered())
    away = started.folder / "away"
    Path(started.table).rename(away)
    until(lambda: started.board.snapshot().routes[0].state == "retrying")
    route = started.board.snapshot().routes[0]
    assert route.last_error.condition == "table_missing"
    assert "the route waits for it" in route.last_error.next_step
    assert runner.failure is None
    away.rename(started.table)
    forget(started)
    started.insert("(4, 'd')")
    until(lambda: "4" in started.delivered())
    assert (started.state().epoch, started.state().generation) == (1, 0)


def test_table_replaced_during_a_run_halts_the_route(started, live):
    started.insert("(3, 'c')")
    runner = live()
    until(lambda: "3" in started.delivered())
    started.sql(
        "CREATE OR REPLACE TABLE {t} USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true) "
        "AS SELECT 9L AS id, 'new' AS name"
    )
    until(lambda: runner.failure is not None)
    shown(started, runner.failure, "halt", "table_replaced")
    assert runner.failure.remedy.endswith("resync orders_files")
    assert started.delivered().keys() == {"1", "2", "3"}


@pytest.mark.parametrize("damaged", ["v1\n{", nightly("v9\n{}")], ids=["torn", "of another version"])
def test_a_damaged_schema_log_is_rebuilt_by_a_resync(world, damaged):
    world.create(rows=["(1, 'a')"], **MAPPED)
    assert world.run() is None
    world.insert("(2, 'b')")
    assert world.run() is None
    folder = world.state_path.checkpoint("orders_files", 0) / "schema"
    for file in folder.rglob("[0-9]*"):
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(damaged)
    decision = shown(world, world.run(), "halt", "schema_change")
    assert "An error occurred while calling" not in decision.message
    assert decision.remedy.endswith("resync orders_files")
    resync_repairs(world)


def test_pinned_version_beyond_the_retention_is_pinned_again(world):
    """Where an operator has switched Delta's refusal on: a newer snapshot is loaded instead."""
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    world.trouble("1")
    assert world.run() is not None
    world.trouble(None)
    pinned = world.state().pinned_version
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours')")
    world.change("DELETE FROM {t} WHERE id = 1")
    with replaced(world.spark, {ENFORCED: "true"}):
        assert world.run() is None
    assert world.state().epoch == 2
    assert world.state().start_version - 1 > pinned
    assert world.delivered() == world.expected()
    events = [event.what for event in world.board.snapshot().events]
    assert any("can no longer be read" in what for what in events)


def test_second_instance_on_one_checkpoint_halts_the_route(started):
    started.insert("(3, 'c')")
    deliver = batch_module.BatchWriter.write

    def overtaken(self, frame, batch, **more):
        stale = deliver(self, frame, batch, **more)
        commits = started.state_path.checkpoint("orders_files", 0) / "commits"
        (commits / str(batch.number - 1)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        return stale

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module.BatchWriter, "write", overtaken)
        decision = shown(started, started.run(), "halt", "second_writer")
    assert "stop it, then run: cdf-replicator resume" in decision.remedy
    assert started.run() is None
    assert started.delivered() == started.expected()


def test_stop_during_a_batch_is_no_failure(started):
    """An unreachable sink keeps the batch open for longer than the service may take to stop."""
    started.environ |= {"CDF_DELIVERY__RETRY_SECONDS": "600", "CDF_SHUTDOWN_SECONDS": "0.5"}
    started.insert("(3, 'c')")
    started.trouble("away")
    stop = threading.Event()
    runner = started.runner(once=False, stop=stop)
    runner.start()
    until((started.files / "called").exists)
    stop.set()
    runner.wake()
    runner.join(60)
    assert not runner.is_alive()
    assert runner.failure is None
    route = started.board.snapshot().routes[0]
    assert (route.state, route.last_error) == ("stopped", None)
    families = started.metrics.registry.collect()
    batches = [s for family in families for s in family.samples if s.name == "cdf_batches_total"]
    counted = {sample.labels["outcome"]: sample.value for sample in batches}
    assert counted["failed"] == 0
    started.trouble(None)
    assert started.run() is None
    assert started.delivered() == started.expected()


@pytest.mark.parametrize("rival", ["the same batch", "another schema"])
def test_append_that_conflicts_with_another_writer_is_retried(world, rival):
    """The other writer commits during the append of the route. Delta refuses this append, and the retry reads the new version.

    The append takes longer than the budget, which counts the waits alone.
    """
    from connectors import load

    world.environ |= {"CDF_SINKS__AUDIT__TYPE": "delta_audit", "CDF_SINKS__AUDIT__PATH": str(world.folder / "audit")}
    settings = world.settings.sinks["audit"]
    sink = load("delta_audit")(settings)
    spec = RouteSpec("orders_audit", "orders", (), RouteOptions(), "owner", 1)
    batch = Batch(spec, 0, 1, "table-id")
    began, go = world.folder / "began", world.folder / "go"

    @F.udf("long")
    def held_up(value):
        began.touch()
        while not go.exists():
            time.sleep(0.05)
        return value

    def frame(number):
        return world.spark.range(1).select(
            F.lit(None).cast("string").alias("key"), F.lit(3).cast("long").alias("guard"),
            F.lit("insert").alias("change_type"), F.lit(1).cast("long").alias("commit_version"),
            F.current_timestamp().alias("commit_timestamp"), F.struct(number(F.col("id")).alias("id")).alias("row"),
        )  # fmt: skip

    sink.prepare(frame(F.abs).schema["row"].dataType, spec)
    reasons, results = [], []
    retrying = RetryPolicy(budget_seconds=0.05).retrying(lambda error: reasons.append(error.reason), waits_only=True)
    writer = threading.Thread(target=lambda: results.append(retrying(sink.write, frame(held_up), batch)))
    writer.start()
    until(began.exists)
    if rival == "the same batch":
        sink.write(frame(F.abs), batch)
    else:
        world.spark.sql(f"ALTER TABLE delta.`{world.audit}` ADD COLUMN more string")
    go.touch()
    writer.join(60)
    assert reasons == ["conflict"]
    assert results[0].skipped == (rival == "the same batch")
    assert len(world.audited("id")) == 1, "recorded once, by either writer"


def test_errors_of_delta_match_their_condition(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    spark, table = world.spark, world.table

    def both_starts():
        options = {"readChangeFeed": True, "startingVersion": 0, "startingTimestamp": "2020-01-01"}
        streamed(spark.readStream.format("delta").options(**options).load(table), world.folder / "both")

    def merge():
        twice = spark.createDataFrame([(1, "x"), (1, "y")], "id long, name string")
        twice.createOrReplaceTempView("twice")
        world.sql("MERGE INTO {t} t USING twice s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name")

    def half_named():
        spark.range(1).write.format("delta").option("txnVersion", 1).save(str(world.folder / "idle"))

    def stale():
        frame = world.source().stream(1, None)
        streamed(frame, world.folder / "stale")
        world.sql("ALTER TABLE {t} ADD COLUMN price int")
        world.insert("(3, 'c', 3)")
        streamed(frame, world.folder / "stale")

    cases = [
        (both_starts, "halt", "bad_option"),
        (half_named, "halt", "bad_option"),
        (lambda: spark.read.format("delta").option("versionAsOf", 99).load(table), "halt", "start_out_of_range"),
        (lambda: spark.read.format("delta").load(str(world.folder / "none")), "wait", "table_missing"),
        (lambda: spark.read.format("delta").load("s3a://lake/orders"), "halt", "file_system_missing"),
        (lambda: spark.read.format("delta").load("s4://lake/orders"), "halt", "file_system_missing"),
        (merge, "halt", "bug"),
        (stale, "restart", "stale_plan"),
    ]
    for provoke, action, reason in cases:
        with pytest.raises(Exception) as caught:
            provoke()
        decision = classify_error(caught.value, route="orders_files")
        assert (decision.action, decision.reason) == (action, reason), str(caught.value)[:300]


def streamed(frame, folder):
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True)
    writer.start().awaitTermination()


def test_query_with_a_running_predecessor_is_retried(world):
    world.create(rows=["(1, 'a')"])
    former = world.spark.readStream.format("rate").load().writeStream.format("noop").queryName("orders_files").start()
    try:
        decision = world.run()
    finally:
        former.stop()
    assert (decision.action, decision.reason) == ("wait", "stalled")
    assert world.run() is None
    assert world.delivered() == world.expected()


def test_a_change_of_an_unknown_type_halts_and_names_its_commit(started):
    started.change("UPDATE {t} SET name = 'c' WHERE id = 1")
    assert started.run() is None
    started.change("UPDATE {t} SET name = 'd' WHERE id = 2")
    _retype(Path(started.table), started.version(), "update_preimage", "update_pre")
    decision = started.run()
    shown(started, decision, "halt", "unknown_change")
    assert f"Commit {started.version()} of the table holds a change of type 'update_pre'" in decision.message
    assert "bug" not in f"{decision.message} {decision.remedy}"
    assert started.delivered()["2"]["name"] == "b", "nothing of the commit was delivered"


def _retype(table, version, old, new):
    """Write a commit's change files again with another type of change, as a foreign writer would."""
    commit = table / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in (action["cdc"] for action in actions if "cdc" in action):
        file = table / action["path"]
        rows = pq.ParquetFile(file).read()
        at = rows.column_names.index("_change_type")
        kinds = pc.replace_substring(rows.column("_change_type"), f"{old}", new)
        pq.write_table(rows.set_column(at, "_change_type", kinds), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        action["size"] = file.stat().st_size
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
