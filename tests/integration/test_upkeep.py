"""Upkeep beside the stream reports failures, and a stop interrupts a long operation."""

from __future__ import annotations

import threading
import time

from pyspark.sql import SparkSession

from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.pipeline.context import Interrupt
from cdf_replicator.pipeline.maintenance import MaintenanceRunner
from connectors import Maintained
from tests.contract.folder_sink import FolderSink

began = threading.Event()


class WantsUpkeep(FolderSink, Maintained):
    def next_maintenance_at(self, route):
        return 0.0


class BrokenSink(WantsUpkeep):
    def run_maintenance(self, route):
        raise RuntimeError("no room left\nat all")


class SlowSink(WantsUpkeep):
    def run_maintenance(self, route):
        began.set()
        spark = SparkSession.builder.getOrCreate()
        spark.range(10**15).selectExpr("sum(hash(id))").collect()
        return "never"


def upkeep_of(world, kind):
    route = world.settings.routes["orders_files"]
    sink = kind(kind.Settings(type="files", path=world.files))
    return MaintenanceRunner(
        world.spark, sink, route.spec(owner="us", epoch=1), RouteReporter(route, world.metrics, type(sink))
    )


def test_maintenance_failure_is_a_warning_and_not_repeated_at_once(world):
    upkeep = upkeep_of(world, BrokenSink)
    for _ in range(2):
        upkeep.finish(Interrupt(threading.Event()))
    events = [event.what for event in world.board.snapshot().events]
    assert events == ["upkeep failed, retrying later: no room left"]
    upkeep.cancel()


def test_running_maintenance_stops_with_the_route(world):
    upkeep = upkeep_of(world, SlowSink)
    upkeep.start_if_due()
    assert began.wait(30)
    started = time.monotonic()
    upkeep.cancel()
    assert time.monotonic() - started < 20
    assert not world.board.snapshot().events
