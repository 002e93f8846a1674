"""A route starts at the version of ``--starting-version``, ``replay`` or ``resync``."""

from __future__ import annotations

import errno
import re
import shutil

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import streaming_query
from cdf_replicator.queries import plans
from cdf_replicator.queries.execution import describe_error
from cdf_replicator.queries.query import PlanReplay
from cdf_replicator.runtime import command_handler
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Command
from tests.support.waiting import until


@pytest.fixture
def world(world):
    commit(world)
    return world


def commit(world):
    world.create(rows=["(1, 'a')"])  # version 1
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")


@pytest.fixture
def delivered(prepared):
    """The route has loaded version 3."""
    return prepared(commit_and_deliver)


def commit_and_deliver(world):
    commit(world)
    assert world.run() is None


def test_a_starting_version_means_changes_from_there_on_and_no_snapshot(world):
    assert world.run(start_version=2) is None
    assert world.delivered().keys() == {"2", "3"}
    assert world.state().generation == 0


def test_the_same_value_after_a_restart_resumes(world):
    assert world.run(start_version=2) is None
    world.insert("(4, 'd')")
    assert world.run(start_version=2) is None
    assert world.state().generation == 0
    assert world.last_batch().received == {"insert": 1}
    assert world.run() is None, "nor does its absence start anything"
    assert world.state().generation == 0


@pytest.mark.usefixtures("delivered")
@pytest.mark.parametrize("command", [Command("resync", "orders_files"), Command("replay", "orders_files", 1)])
def test_starting_version_that_a_command_replaced_has_no_effect_after_a_restart(world, command):
    world.trouble("locked")
    assert world.run(start_version=1).action == "halt"
    world.trouble(None)
    assert world.run(start_version=1, command=command) is None
    assert world.answer(command).state == "done"
    before = world.state()
    world.insert("(4, 'd')")
    assert world.run(start_version=1) is None
    assert (world.state().generation, world.last_batch().received) == (before.generation, {"insert": 1})


@pytest.mark.usefixtures("delivered")
def test_another_value_starts_the_next_generation(world):
    assert world.run(start_version=1) is None
    assert (world.state().generation, world.state().epoch) == (1, 1)
    assert world.run(start_version=2) is None
    assert world.state().generation == 2
    assert world.last_batch().received == {"insert": 2}
    assert world.delivered() == world.expected()


def test_fixed_arguments_of_a_container_never_stop_a_restart(world):
    assert world.run(start_version=1) is None
    world.insert("(4, 'd')")
    assert world.run(start_version=1) is None
    world.insert("(5, 'e')")
    world.forget_log_before(world.version())
    assert world.run(start_version=1) is None
    assert world.delivered() == world.expected()


@pytest.mark.usefixtures("delivered")
def test_replay_that_leaves_deletes_of_an_unfinished_replay_out_is_refused(world):
    """The unfinished replay may have written a deleted key again, and the next would not deliver its delete."""
    world.change("DELETE FROM {t} WHERE id = 2")  # version 4
    world.insert("(5, 'e')")
    assert world.run() is None
    world.trouble("0")
    assert world.run(start_version=1).reason == "bug"
    world.trouble(None)
    later, again = (Command("replay", "orders_files", version) for version in (5, 1))
    assert world.run(command=later) is None
    answer = world.answer(later)
    assert answer.state == "failed"
    assert "The replay from version 1 is not finished: it has reached version 0 of 5" in answer.message
    assert "would leave out versions 1 to 4" in answer.message
    assert answer.message.endswith("run: cdf-replicator resync orders_files")
    assert (world.state().generation, world.delivered()) == (1, world.expected()), "the unfinished replay continued"
    assert world.run(command=again) is None
    assert world.answer(again).state == "done"


def test_version_out_of_range_is_refused_with_the_range(world):
    decision = world.run(start_version=9)
    assert (decision.action, decision.reason) == ("halt", "start_out_of_range")
    assert "versions 0 to 3 are available" in decision.message
    assert world.state() is None
    assert world.run() is None
    assert world.run(start_version=9).reason == "start_out_of_range"
    assert world.state().generation == 0, "nothing was begun"


def test_setting_of_a_table_is_the_start_of_its_routes(world):
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "3"
    assert world.run() is None
    assert world.delivered().keys() == {"3"}


def test_a_starting_timestamp_is_resolved_once(world):
    world.environ["CDF_TABLES__ORDERS__STARTING_TIMESTAMP"] = "2020-01-01"
    assert world.run() is None
    assert world.state().start_version == 0
    assert world.delivered() == world.expected()


@pytest.mark.usefixtures("delivered")
def test_replay_delivers_again_and_continues(world):
    for file in (world.files / "orders").glob("*.json"):
        file.unlink()
    world.change("DELETE FROM {t} WHERE id = 2")
    command = Command("replay", "orders_files", 1)
    assert world.run(command=command) is None
    assert world.delivered() == world.expected()
    assert (world.answer(command).state, world.answer(command).ratio) == ("done", 1.0)
    assert (world.state().generation, world.state().epoch, world.state().requested_start_version) == (1, 1, None)
    world.insert("(4, 'd')")
    assert world.run() is None
    assert world.delivered() == world.expected()


@pytest.mark.usefixtures("delivered")
def test_a_replay_does_not_bring_a_deleted_key_back(world):
    world.change("DELETE FROM {t} WHERE id = 2")
    assert world.run() is None
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    assert world.run(command=Command("replay", "orders_files", 0)) is None
    assert world.delivered() == world.expected()


@pytest.mark.usefixtures("delivered")
def test_every_command_is_answered_despite_later_commands(world):
    commands = [
        Command("replay", "orders_files", 2),
        Command("replay", "orders_files", 1),
        Command("discard", "orders_files"),
    ]
    assert world.run(command=commands) is None
    superseded, replayed, discarded = (world.answer(command) for command in commands)
    assert (superseded.state, superseded.message) == ("failed", "a later replay took its place")
    assert (replayed.state, replayed.ratio) == ("done", 1.0), "the discard that came after it took nothing from it"
    assert (discarded.state, "no open dead letter" in discarded.message) == ("failed", True)


@pytest.mark.usefixtures("delivered")
@pytest.mark.parametrize("version", [9, 4])
def test_impossible_replay_is_refused_and_the_route_continues(world, version):
    command = Command("replay", "orders_files", version)
    world.insert("(5, 'e')")
    world.insert("(6, 'f')")
    command = Command("replay", "orders_files", {9: 9, 4: 5}[version])
    assert world.run(command=command) is None
    answer = world.answer(command)
    assert answer.state == "failed"
    assert {9: "versions 0 to 5 are available", 4: "Versions 4 to 4 may not be delivered yet"}[
        version
    ] in answer.message
    assert world.state().generation == 0
    assert world.delivered() == world.expected()


def test_refused_replay_names_the_versions_of_the_feed_and_the_resync(prepared):
    world = prepared(enable_the_feed_and_deliver)  # the feed is on from version 2 on, and the newest version is 3
    query = PlanReplay(routes=("orders_files",), starting_version=9)
    with pytest.raises(RouteHaltError) as planned:
        list(plans.replay(world.spark, query, world.settings))
    dry = " ".join(describe_error(planned.value, "orders_files"))
    for message in (refusal(world, 9), refusal(world, 9, 10), dry):
        assert "Version 9 of table orders" in message
        assert "changes of versions 2 to 3 are available. Use a version of that range. " in message
        assert message.endswith("To start from the current snapshot, run: cdf-replicator resync orders_files")
    early = refusal(world, 0)
    assert early.startswith("Versions 0 to 3 of table orders can't be read: [DELTA_MISSING_CHANGE_DATA]")
    assert (
        "was not recorded for version [0]. Nothing was changed. The change feed was off in a part of the range" in early
    )


def enable_the_feed_and_deliver(world):
    world.create(rows=["(1, 'a')"], delta__enableChangeDataFeed="false")
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    world.insert("(2, 'b')")
    assert world.run() is None


def refusal(world, *versions):
    command = Command("replay", "orders_files", *versions)
    assert world.run(command=command) is None
    assert world.answer(command).state == "failed"
    return world.answer(command).message


def test_replay_before_the_end_of_the_bootstrap_is_refused(world):
    world.trouble("1")
    world.run()
    world.trouble(None)
    command = Command("replay", "orders_files", 2)
    assert world.run(command=command) is None
    assert world.answer(command).state == "failed"
    assert world.delivered() == world.expected(), "the bootstrap went on"


@pytest.mark.usefixtures("delivered")
def test_resync_deletes_rows_that_the_table_no_longer_holds(world):
    world.change("DELETE FROM {t} WHERE id = 1")
    world.insert("(4, 'd')")
    world.forget_log_before(world.version())
    command = Command("resync", "orders_files")
    assert world.run(command=command) is None
    assert world.delivered() == world.expected()
    assert (world.state().epoch, world.state().generation, world.answer(command).state) == (2, 1, "done")


@pytest.mark.usefixtures("delivered")
def test_command_is_answered_while_the_table_is_missing(world):
    (world.folder / "orders").rename(world.folder / "elsewhere")
    world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    command = Command("resync", "orders_files")
    assert world.run(command=command).reason == "table_missing"
    assert world.answer(command).state == "failed"


def test_redis_follows_a_replay(world, redis_server):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "cache",
        "CDF_SINKS__CACHE__TYPE": "redis",
        "CDF_SINKS__CACHE__URL": redis_server.url,
    }
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    assert world.run("orders_cache") is None
    world.change("UPDATE {t} SET id = 20 WHERE id = 2")
    world.change("DELETE FROM {t} WHERE id = 1")
    assert world.run("orders_cache") is None
    assert entries(redis_server) == world.expected()
    assert world.run("orders_cache", command=Command("replay", "orders_cache", 0)) is None
    assert entries(redis_server) == world.expected()
    assert world.run("orders_cache", command=Command("resync", "orders_cache")) is None
    assert entries(redis_server) == world.expected()


def entries(server):
    import json

    import redis

    client = redis.Redis.from_url(server.url)
    try:
        keys = [key for key in client.scan_iter("orders:*") if client.type(key) == b"string"]
        return {key.decode().removeprefix("orders:"): json.loads(client.get(key)) for key in keys}
    finally:
        client.close()


def test_failed_replay_is_no_longer_reported_as_running(world, live):
    (runner,) = live("orders_files")
    until(lambda: world.delivered() == world.expected())
    replay = Command("replay", "orders_files", 0)
    command_queue.enqueue(world.state_path.requests, replay)
    command_queue.accept(world.state_path.requests, replay)
    world.trouble("hang")
    runner.submit(replay)
    until(lambda: world.board.snapshot().routes[0].replay is not None)
    world.trouble("0")
    until(lambda: world.answer(replay).state == "failed")
    until(lambda: world.board.snapshot().routes[0].state == "halted")
    assert world.board.snapshot().routes[0].replay is None
    assert world.sample("cdf_replay_progress_ratio") == 0


def test_bounded_replay_across_a_rename_is_refused_with_the_alternative(world):
    world.into_lines()
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")  # version 4
    world.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    world.insert("(4, 'd')")
    assert world.run("orders_lines") is None
    command = Command("replay", "orders_lines", 2, 6)
    assert world.run("orders_lines", command=command) is None
    assert world.answer(command).state == "failed"
    assert "and the versions from it on, one after the other" in world.answer(command).message


def test_replay_of_unreadable_versions_leaves_the_route_unchanged(world, live, monkeypatch):
    """Seen before anything is switched; where a file goes only then, the route goes back to where it was."""
    world.change("UPDATE {t} SET name = 'bb' WHERE id = 2")
    world.insert("(4, 'd')")
    assert world.run() is None
    state, newest = world.state(), world.version()
    world.vacuum()
    command = Command("replay", "orders_files", 2)
    assert world.run(command=command) is None
    assert world.answer(command).state == "failed"
    assert f"Versions 2 to {world.version()} of table orders can't be read: [FAILED" in world.answer(command).message
    assert world.state() == state

    monkeypatch.setattr("cdf_replicator.pipeline.generation.check_readable", lambda *_: None)
    (runner,) = live("orders_files")
    late = Command("replay", "orders_files", 2)
    world.state_path.requests.mkdir(exist_ok=True)
    runner.submit(late)
    until(lambda: (found := world.answer(late)) is not None and found.state == "failed")
    assert "FAILED_READ_FILE" in world.answer(late).message
    assert "The replay is given up, and the route continues after version" in world.answer(late).message
    assert "resync orders_files" in world.answer(late).message
    world.insert("(5, 'e')")
    until(lambda: world.delivered() == world.expected())
    assert runner.failure is None
    again = Command("replay", "orders_files", newest)
    runner.submit(again)
    until(lambda: (found := world.answer(again)) is not None and found.state == "done")


@pytest.mark.usefixtures("delivered")
def test_replay_from_before_the_table_was_replaced_is_given_up(world, live):
    world.sql(
        "CREATE OR REPLACE TABLE {t} USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true) "
        "AS SELECT 5L AS id, 'e' AS name"
    )
    assert world.run(command=Command("resync", "orders_files")) is None
    (runner,) = live("orders_files")
    replay = Command("replay", "orders_files", 0)
    world.state_path.requests.mkdir(exist_ok=True)
    runner.submit(replay)
    until(lambda: (found := world.answer(replay)) is not None and found.state == "failed")
    assert "DIFFERENT_DELTA_TABLE" in world.answer(replay).message
    assert "The replay is given up, and the route continues after version 4" in world.answer(replay).message
    world.insert("(6, 'f')")
    until(lambda: runner.failure is not None or world.delivered() == world.expected())
    assert runner.failure is None


@pytest.mark.usefixtures("delivered")
def test_starting_version_that_skips_changes_is_refused_with_their_range(world):
    state = world.state()
    world.change("DELETE FROM {t} WHERE id = 1")
    world.insert("(4, 'd')")
    decision = world.run(start_version=5)
    assert (decision.action, decision.reason) == ("halt", "bad_request")
    assert "Versions 4 to 4 may not be delivered yet" in decision.message
    assert world.state() == state
    shutil.rmtree(world.files / "orders")
    assert world.run(start_version=5) is None, "there is nothing left to leave out"
    assert reported_gaps(world) == ["from version 5 on, in epoch 2"]
    assert world.delivered().keys() == {"4"}
    world.change("UPDATE {t} SET name = 'bb' WHERE id = 2")
    assert world.run(start_version=5) is None
    assert (world.delivered().keys(), world.state().generation) == ({"2", "4"}, 1)


@pytest.mark.usefixtures("delivered")
def test_replay_into_a_missing_target_is_a_new_epoch(world):
    shutil.rmtree(world.files / "orders")
    command = Command("replay", "orders_files", 3)
    assert world.run(command=command) is None
    assert reported_gaps(world) == ["from version 3 on, in epoch 2"]
    assert world.answer(command).state == "done"
    assert "will be missing" in world.answer(command).message
    assert world.delivered().keys() == {"3"}


def reported_gaps(world):
    events = [event.what for event in world.board.snapshot().events]
    matches = [
        re.search("with the changes (.*): keys that have not changed since then will be missing", e) for e in events
    ]
    return [found[1] for found in matches if found]


@pytest.mark.usefixtures("delivered")
def test_refused_writes_of_progress_end_neither_the_stream_nor_the_answer(world, live, monkeypatch):
    tried, written, write = [], [], command_handler.write_status

    def refused_at_first(folder, command_id, status):
        tried.append(status)
        if len(tried) <= 4 or [each.state for each in tried].count("done") in (1, 2):
            raise OSError(errno.EROFS, "Read-only file system")
        write(folder, command_id, status)
        written.append(status)

    monkeypatch.setattr(command_handler, "write_status", refused_at_first)
    monkeypatch.setattr(streaming_query, "SLEEPING_POLL_SECONDS", 1.0)
    (runner,) = live("orders_files")
    command = Command("replay", "orders_files", 0)
    world.submit(runner, command)
    until(lambda: world.answer(command).state == "done", 60)
    assert len(written) == len(set(written)), "progress is written when it has changed"
    assert sum(world.board.snapshot().routes[0].totals.restarts.values()) == 1, "that of the command"
