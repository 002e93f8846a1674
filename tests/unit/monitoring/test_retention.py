"""The retention of undelivered changes is measured, and a short headroom is a warning."""

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from cdf_replicator.monitoring.retention import FIRST_SECONDS, READ_SECONDS, RetentionMonitor, RetentionReader

HOUR = 3600.0
NOW = 1_000_000.0


@pytest.fixture
def world():
    """A table that keeps changes for ten hours, an hour between its commits; version 20 is the newest."""
    made = SimpleNamespace(now=NOW, left=[], warnings=[], vacuumed=float("inf"), reads=0)

    def first_since(moment):
        return next(version for version in range(22) if NOW - (20 - version) * HOUR >= moment)

    def kept():
        made.reads += 1
        return 10 * HOUR

    made.source = SimpleNamespace(
        location="file:/lake/orders",
        retention_seconds=kept,
        shortest_vacuum_retention=lambda commits: made.vacuumed,
        log=SimpleNamespace(first_since=first_since),
    )
    made.report = SimpleNamespace(headroom=lambda *left: made.left.append(left), warning=made.warnings.append)
    made.reader = RetentionReader()
    made.headroom = RetentionMonitor(made.report, 1, made.reader, lambda: made.now)
    return made


def look(world, delivered, hours=None):
    world.headroom.update(world.source, 20, delivered, None if hours is None else world.now - hours * HOUR)
    return world.left[-1]


def test_headroom_of_a_current_route_is_the_whole_retention(world):
    assert look(world, 20) == (10 * HOUR, 11)


def test_lag_reduces_headroom(world):
    assert look(world, 16, hours=3) == (7 * HOUR, 7)
    assert look(world, 3, hours=16) == (0, 0)


def test_headroom_is_zero_if_the_next_commit_is_missing(world):
    assert look(world, 3) == (0, 0)


def test_used_half_of_the_headroom_warns_once_until_it_recovers(world):
    for hours in (4.9, 5.1, 5.2):
        look(world, 15, hours)
    (warning,) = world.warnings
    assert warning.startswith(
        "the age of the oldest undelivered change is 5.1 hours; the source table may remove changes after 10.0"
    )
    look(world, 20)
    look(world, 14, hours=6)
    assert len(world.warnings) == 2


def test_trigger_slower_than_half_the_retention_warns_at_start(world):
    world.headroom = RetentionMonitor(world.report, 6 * HOUR, world.reader, lambda: world.now)
    look(world, 20)
    assert world.warnings[0].startswith("CDF_TRIGGER_SECONDS is 6.0 hours")


def test_table_is_read_again_and_short_vacuum_is_found(world):
    world.vacuumed = HOUR
    assert look(world, 20) == (10 * HOUR, 11)
    world.now += READ_SECONDS / 2
    assert look(world, 20) == (10 * HOUR, 11)
    assert world.reads == 1
    world.now += READ_SECONDS / 2
    assert look(world, 20)[0] == HOUR
    assert world.reads == 2


def test_routes_of_a_table_read_its_retention_once(world):
    other = RetentionMonitor(world.report, 1, world.reader, lambda: world.now)
    for _ in range(2):
        look(world, 20)
        other.update(world.source, 20, 20, None)
        world.now += READ_SECONDS
    assert world.reads == 2
    assert [seconds for seconds, _ in world.left] == [10 * HOUR] * 4


def test_each_table_has_a_retention_of_its_own(world):
    look(world, 20)
    world.source.location, world.source.retention_seconds = "file:/lake/others", lambda: HOUR
    other = RetentionMonitor(world.report, 1, world.reader, lambda: world.now)
    other.update(world.source, 20, 20, None)
    assert [seconds for seconds, _ in world.left] == [10 * HOUR, HOUR]


def test_headroom_is_unknown_until_a_read_succeeds(world):
    def fails():
        raise PySparkException("no answer")

    reads, world.source.retention_seconds = world.source.retention_seconds, fails
    other = RetentionMonitor(world.report, 1, world.reader, lambda: world.now)
    for monitor in (world.headroom, other):
        monitor.update(world.source, 20, 18, NOW - HOUR)
    assert (world.left, len(world.warnings)) == ([], 1)
    world.source.retention_seconds = reads
    world.now += FIRST_SECONDS
    assert look(world, 20) == (10 * HOUR, 10)
    assert len(world.warnings) == 1
