"""Test the metrics of a route: what is timed, and where each received change is counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError

import connectors
from cdf_replicator.monitoring import lag
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.monitoring.totals import PHASES
from cdf_replicator.runtime.status_sampler import status_sampled
from cdf_replicator.spark import jobs
from cdf_replicator.spark.memory import JvmBeans
from connectors import RetryableError
from tests.oracle.counts import unequal_sums
from tests.support.waiting import until

if TYPE_CHECKING:
    from cdf_replicator.monitoring.totals import Totals


def timed(world) -> tuple[int, float]:
    """Return the number and the sum of the latencies of the last run."""
    (family,) = (f for f in world.metrics.registry.collect() if f.name == "cdf_delivery_latency_seconds")
    found = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples}
    return int(found["count"]), found["sum"]


def phases(world) -> dict[str, float]:
    """Return the seconds of the only micro-batch of the last run by phase."""
    (family,) = (f for f in world.metrics.registry.collect() if f.name == "cdf_batch_duration_seconds")
    found = {(sample.name.rpartition("_")[2], sample.labels["phase"]): sample.value for sample in family.samples}
    names = {phase for _, phase in found}
    assert {phase: found["count", phase] for phase in names} == dict.fromkeys(("planning", *PHASES), 1)
    return {phase: found["sum", phase] for phase in names}


@pytest.mark.parametrize("sink", ["files", "audit"])
def test_only_commits_made_while_the_route_follows_are_timed(world, sink):
    if sink == "audit":
        world.into_delta("audit")
    route = f"orders_{sink}"
    world.create(rows=["(1, 'a')"])
    assert world.run(route) is None
    assert timed(world) == (0, 0), "a bootstrap"
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    assert world.run(route) is None
    count, seconds = timed(world)
    assert count == 2
    assert 0 < seconds < 120
    assert 0 < phases(world)["planning"] < 120
    assert world.run(route, start_version=1) is None
    assert world.last_batch().received
    assert timed(world) == (0, 0), "a replay"


def test_every_received_change_is_applied_superseded_stale_noop_or_rejected(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "name <> 'out'"
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')", "(4, 'd')", "(NULL, 'n')"])
    assert world.run() is None
    totals = counted(world)
    assert (totals.applied["snapshot"], totals.rejected["null_key"], totals.superseded) == (4, 1, 0)

    for change in (
        "UPDATE {t} SET name = 'a1' WHERE id = 1",
        "UPDATE {t} SET name = 'a2' WHERE id = 1",
        "UPDATE {t} SET id = 20 WHERE id = 2",
        "UPDATE {t} SET name = 'out' WHERE id = 3",
        "DELETE FROM {t} WHERE id = 4",
    ):
        world.change(change)
    world.insert("(4, 'again')", "(5, 'bad')", "(6, 'x')")
    world.change("DELETE FROM {t} WHERE id = 6 OR id IS NULL")
    assert world.run() is None
    totals = counted(world)
    assert nonzero(totals.received) == {"update_preimage": 4, "update_postimage": 3, "delete": 3, "insert": 3}
    assert nonzero(totals.applied) == {"update_preimage": 2, "update_postimage": 2, "insert": 1}
    assert totals.superseded == 5, "three images of key 1, the delete of key 4, the insert of key 6"
    assert totals.noop == 2, "the deletes of key 6, which the sink never had, and of the null key"
    assert nonzero(totals.rejected) == {"bad_name": 1}


@pytest.mark.usefixtures("loaded")
def test_changes_of_a_micro_batch_count_once_it_is_delivered(world):
    world.insert("(2, 'b')", "(3, 'c')")
    world.trouble("1")  # after the first row
    assert world.run() is not None
    assert nonzero(counted(world).received) == nonzero(counted(world).applied) == {}
    world.trouble(None)
    assert world.run() is None
    assert nonzero(counted(world).received) == nonzero(counted(world).applied) == {"insert": 2}


def test_retries_of_a_delta_sink_that_fails_are_counted(world, monkeypatch):
    def conflict(*_given):
        raise RetryableError("conflict", "another commit won", retry_after=0.1)

    world.into_delta("audit")
    world.create(rows=["(1, 'a')"])
    monkeypatch.setattr(connectors.load("delta_audit"), "write", conflict)
    decision = world.run("orders_audit")
    assert (decision.action, decision.reason, decision.message) == ("wait", "conflict", "conflict: another commit won")
    assert counted(world).retries["conflict"] > 0


def test_progress_of_a_load_is_the_share_of_its_finished_tasks(world, monkeypatch):
    monkeypatch.setattr(lag, "BACKGROUND_SECONDS", 0.02)
    world.create()
    world.overwrite(world.spark.range(40).selectExpr("id", "cast(id AS string) AS name"), files=4)
    seen = []
    monkeypatch.setattr(RouteReporter, "bootstrap", lambda self, ratio: seen.append(ratio))
    world.trouble("hang")
    runner = world.runner()
    runner.start()
    try:
        until(lambda: len(seen) > 5, 60)
        assert set(seen) == {0.0}, "no task has finished"
    finally:
        world.trouble(None)
        runner.join(60)
    assert runner.failure is None
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_share_of_a_load_excludes_former_and_untagged_jobs(spark):
    with jobs.tagged(spark, "load"):
        spark.range(8).collect()
    load = jobs.TaggedJobs(spark, "load")
    spark.range(8).collect()
    assert load.finished_share() == 0.0
    with jobs.tagged(spark, "load"):
        spark.range(8).collect()
    assert load.finished_share() == 1.0


def test_memory_of_the_jvm_is_sampled_beside_the_routes(spark):
    board, stopped = StatusStore(), threading.Event()
    with status_sampled(spark, board, stopped):
        until(lambda: board.snapshot().service.jvm_memory.heap_used > 0, 60)
    memory = board.snapshot().service.jvm_memory
    assert memory.heap_used <= memory.heap_max
    assert memory.collections > 0
    assert memory.collection_seconds > 0
    assert not stopped.is_set()


def test_failed_sample_ends_neither_the_charts_nor_the_memory(spark, monkeypatch):
    board, read, failed = StatusStore(), JvmBeans.read, []

    def fails_once(beans):
        if not failed:
            failed.append(beans)
            raise Py4JError("no answer")
        return read(beans)

    monkeypatch.setattr(JvmBeans, "read", fails_once)
    monkeypatch.setattr("cdf_replicator.runtime.status_sampler.STEP_SECONDS", 0.01)
    with status_sampled(spark, board, threading.Event()):
        until(lambda: board.snapshot().service.jvm_memory.heap_used > 0, 60)


def counted(world) -> Totals:
    """Return the counts of the last run, of which each received change is in one."""
    (route,) = world.board.snapshot().routes
    assert list(unequal_sums([route])) == []
    return route.totals


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
