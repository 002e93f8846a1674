"""Test the queries of routes that have nothing to read: they sleep, and the next commit wakes them."""

from __future__ import annotations

import random
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cdf_replicator.source import continuity, table_watch
from cdf_replicator.source.table import SourceTable
from cdf_replicator.source.table_watch import IdleQuery, TableWatch
from cdf_replicator.spark import trigger_clock
from cdf_replicator.spark.session import clear_delta_cache
from cdf_replicator.spark.trigger_clock import TriggerClocks
from tests.support.waiting import until

FOREVER = 600.0


@pytest.fixture
def clocks(monkeypatch):
    """Return the clocks that are made; a query that is not woken sleeps longer than the test."""
    monkeypatch.setattr(table_watch, "LONGEST_SLEEP_SECONDS", FOREVER)
    made = []
    install = table_watch.TriggerClocks.install

    def recorded(self, query):
        made.append(install(self, query))
        return made[-1]

    monkeypatch.setattr(table_watch.TriggerClocks, "install", recorded)
    return made


@pytest.fixture
def asleep(world, live, clocks):
    """Start a route, and return its clock when its query sleeps."""
    world.create(rows=["(1, 'a')"])
    live("orders_files")
    until(lambda: clocks and clocks[0].sleeps)
    return clocks[0]


def test_idle_query_sleeps_and_a_commit_wakes_it(world, asleep):
    world.insert("(2, 'b')")
    until(lambda: world.delivered().keys() == {"1", "2"})
    until(lambda: asleep.sleeps)


def test_commits_at_any_moment_wake_the_query(world, asleep):
    draw = random.Random(24)
    for number in range(2, 22):
        time.sleep(draw.choice([0, 0.05, 0.2, 0.5, 0.7, 1.0]))
        world.insert(f"({number}, 'a')")
        if draw.random() < 0.5:
            until(lambda number=number: str(number) in world.delivered())
    until(lambda: len(world.delivered()) == 21)


def test_commit_without_rows_leaves_the_query_asleep_again(world, asleep):
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')")
    until(lambda: world.sample("cdf_delivered_version") == 1)
    until(lambda: asleep.sleeps)


def test_recreated_table_halts_a_route_whose_query_sleeps(world, live, clocks):
    """The new table has as many commits as the former one, so that a trigger finds nothing new."""
    world.create(rows=["(1, 'a')"])
    (runner,) = live("orders_files")
    until(lambda: clocks and clocks[0].sleeps)
    time.sleep(0.5)  # the watch has seen the newest commit
    recreate(world, "(5, 'a')")
    until(lambda: runner.failure, 60)
    assert (runner.failure.action, runner.failure.reason) == ("halt", "table_replaced")


def test_table_recreated_unseen_halts_the_route_at_its_next_commit(world, live, clocks, monkeypatch):
    """No trigger and no poll sees the location without a table."""
    monkeypatch.setattr(table_watch.TableWatch, "_watch", lambda *_: None)
    world.create(rows=["(1, 'a')"])
    (runner,) = live("orders_files")
    until(lambda: clocks and clocks[0].sleeps)
    world.insert("(2, 'b')")
    clocks[0].wake()
    until(lambda: world.delivered().keys() == {"1", "2"} and clocks[0].sleeps)
    recreate(world, "(5, 'a')")
    world.insert("(6, 'b')")
    world.insert("(7, 'c')")
    clocks[0].wake()
    until(lambda: runner.failure, 60)
    assert (runner.failure.action, runner.failure.reason) == ("halt", "table_replaced")
    assert world.delivered().keys() == {"1", "2"}


@pytest.mark.parametrize("commits", [0, 1])
def test_restored_table_halts_a_route_whose_query_sleeps(world, live, clocks, monkeypatch, commits):
    """The commit after the copy has the number of the last commit that the route has read."""
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.4)
    world.create(rows=["(1, 'a')"])
    copy = world.folder / "copy"
    shutil.copytree(world.table, copy)
    world.insert("(2, 'b')")
    (runner,) = live("orders_files")
    until(lambda: clocks and clocks[0].sleeps)
    time.sleep(0.5)  # the watch has seen the newest commit
    shutil.rmtree(world.table)
    copy.rename(world.table)
    clear_delta_cache(world.spark)
    for number in range(commits):
        world.insert(f"({10 + number}, 'other')")
    until(lambda: runner.failure, 60)
    assert (runner.failure.action, runner.failure.reason) == ("halt", "history_lost")
    assert world.delivered().keys() == {"1", "2"}


def test_touched_commit_does_not_halt_a_route_whose_query_sleeps(world, live, clocks, monkeypatch):
    monkeypatch.setattr(continuity, "WRITER_CLOCK_SECONDS", 0.4)
    world.create(rows=["(1, 'a')"])
    (runner,) = live("orders_files")
    until(lambda: clocks and clocks[0].sleeps)
    time.sleep(0.5)  # the watch has seen the newest commit
    (Path(world.table) / "_delta_log" / f"{1:020d}.json").touch()
    time.sleep(1.0)  # the route has checked its table
    world.insert("(2, 'b')")
    until(lambda: world.delivered().keys() == {"1", "2"})
    assert runner.failure is None


def test_tables_of_two_devices_are_watched_by_two_threads(world, tmp_path):
    """A request to a network file system without an answer must not delay the tables on other devices."""
    with TemporaryDirectory(dir="/dev/shm") as other:
        folders = [str(tmp_path / "near"), other + "/far"]
        assert len({Path(folder).parent.stat().st_dev for folder in folders}) == 2
        stop, (route, *_) = threading.Event(), world.settings.routes.values()
        watch = TableWatch(world.spark, 1.0, stop)
        for folder in folders:
            world.spark.range(1).write.format("delta").save(folder)
            watch.join(IdleQuery(watch, SourceTable(world.spark, replace(route.source, path=folder)), None))
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("watch-local-tables")}
        stop.set()
    assert len(names) == 2


def recreate(world, row):
    shutil.rmtree(world.table)
    clear_delta_cache(world.spark)
    world.create(rows=[row])


def test_query_of_another_spark_keeps_its_clock(world, live, clocks, monkeypatch):
    monkeypatch.setattr("cdf_replicator.spark.trigger_clock._field", lambda holder, name: None)
    world.create(rows=["(1, 'a')"])
    live("orders_files")
    until(lambda: clocks == [None])
    world.insert("(2, 'b')")
    until(lambda: world.delivered().keys() == {"1", "2"})


def test_clocks_of_two_classes_are_woken_by_one_thread(world):
    """Two routes that start at once may compile a class each. py4j calls a method by the name of the class."""
    trigger = {"processingTime": "50 milliseconds"}
    rates = [world.spark.readStream.format("rate").load() for _ in range(2)]
    queries = [rate.writeStream.format("noop").trigger(**trigger).start() for rate in rates]
    try:
        until(lambda: all(query.lastProgress for query in queries))
        clocks = [TriggerClocks(world.spark).install(query) for query in queries]
        for clock in clocks:
            clock.sleep(FOREVER)
        until(lambda: idle(queries))
        asleep = batches(queries)
        for clock in clocks:
            clock.wake()
        until(lambda: all(now > last for now, last in zip(batches(queries), asleep, strict=True)))
    finally:
        for query in queries:
            query.stop()


def batches(queries):
    return [query.lastProgress.batchId for query in queries]


def idle(queries):
    """Return whether no query has a batch within three seconds; the source has a new row every second."""
    before = batches(queries)
    time.sleep(3.0)
    return batches(queries) == before


def test_wait_ends_in_time_after_the_clock_of_the_machine_went_back(world, monkeypatch):
    shifted = 'System.currentTimeMillis() - Long.getLong("test.clock.back", 0L).longValue()'
    source = trigger_clock._SOURCE.replace("System.currentTimeMillis()", shifted)
    source = source.replace("while (left", 'System.setProperty("test.clock.waits", "yes"); while (left')
    monkeypatch.setattr(trigger_clock, "_SOURCE", source)
    clock = trigger_clock._compiled(world.spark).newInstance()
    system = world.spark._jvm.java.lang.System
    wait = threading.Thread(target=lambda: clock.waitTillTime(round(time.time() * 1000) + 1000), daemon=True)
    wait.start()
    try:
        until(lambda: system.getProperty("test.clock.waits"))
        system.setProperty("test.clock.back", "600000")
        wait.join(20)
        assert not wait.is_alive()
    finally:
        system.clearProperty("test.clock.back")
        system.clearProperty("test.clock.waits")
        clock.wake()


def test_watch_of_a_table_survives_a_failed_wake(world, asleep, monkeypatch):
    poll, wake, failed = table_watch._Table.poll, table_watch._Table.wake, []

    def fails(*_):
        failed.append("poll")
        raise RuntimeError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(table_watch._Table, "poll", fails)
        broken.setattr(table_watch._Table, "wake", fails)
        until(lambda: len(failed) > 3)
    assert (table_watch._Table.poll, table_watch._Table.wake) == (poll, wake)
    world.insert("(2, 'b')")
    until(lambda: world.delivered().keys() == {"1", "2"})
