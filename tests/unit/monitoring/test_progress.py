"""The watch polls the query rarely, and only the source once all is delivered."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdf_replicator.monitoring import progress
from cdf_replicator.monitoring.progress import BatchCount, ProgressTracker, StreamPosition
from cdf_replicator.monitoring.retention import RetentionMonitor, RetentionReader
from cdf_replicator.state.checkpoint import Offset

DAY = 86_400.0
IDLE = {"isDataAvailable": False, "isTriggerActive": False}


class Query:
    """``end``: the version that was read as a whole, None in a trigger that found nothing."""

    def __init__(self):
        self.polls, self.end, self.number, self.timestamp, self.status = 0, 3, 3, "10:00", IDLE
        self.rate, self.has_begun, self.recentProgress = 1.0, True, []

    @property
    def lastProgress(self):  # noqa: N802 - Spark's name
        self.polls += 1
        if not self.has_begun:
            return None
        offset = f'{{"reservoirId": "t", "reservoirVersion": {self.end}, "index": 0}}' if self.end else "null"
        source = SimpleNamespace(endOffset=offset)
        reported = {"batchId": self.number, "timestamp": self.timestamp, "sources": [source]}
        took = {"queryPlanning": 250 * self.number, "addBatch": 9} if self.end else {"triggerExecution": 1}
        made = SimpleNamespace(
            **reported, durationMs=took, inputRowsPerSecond=self.rate, processedRowsPerSecond=self.rate
        )
        self.recentProgress = [*self.recentProgress, made][-100:]
        return made


@pytest.fixture
def world():
    reported, planned, rates = [], [], []
    report = SimpleNamespace(
        rates=lambda *found: rates.append(found),
        versions=lambda *found: reported.append(found[:2]),
        planning=planned.append,
    )
    source = SimpleNamespace(latest=3)
    source.log = SimpleNamespace(committed_at=lambda _: 0.0, latest_version=lambda: source.latest)
    headroom = SimpleNamespace(update=lambda *_: None)
    state = SimpleNamespace(start_version=0, phase="streaming")
    query, batches = Query(), BatchCount(1)
    watch = ProgressTracker(query, StreamPosition(source, state, None, None), report, batches, headroom)
    return SimpleNamespace(
        watch=watch, query=query, source=source, batches=batches, reported=reported, planned=planned, rates=rates
    )


def test_lag_keeps_its_age_and_headroom_is_zero_after_log_cleanup(world):
    """The alerts compare the headroom with the lag, so that a lag of 0 would end them when history is lost."""
    dates, oldest, headroom = {4: 400.0, 5: 500.0, 6: 600.0}, [], []
    world.source.log.committed_at = dates.get
    world.source.log.available = lambda: (min(dates), 6)
    world.watch.report.versions = lambda *found: oldest.append(found[2])
    world.watch.headroom = SimpleNamespace(update=lambda *found: headroom.append(found[3]))
    world.watch.delivered_version = 3
    for world.source.latest in (3, 5, 6):
        world.watch.poll_source()
        dates.pop(4, None) if world.source.latest == 5 else None
    assert (oldest, headroom) == ([None, 400.0, 400.0], [None, 400.0, None])
    restarted = replace(world.watch)
    restarted.delivered_version = 3
    restarted.poll_source()
    assert (oldest[-1], headroom[-1]) == (500.0, None), "the oldest commit that is left"


def test_snapshot_of_the_newest_version_leaves_the_whole_headroom(world):
    """VACUUM keeps the files of the newest version, whatever its age, and those of an older version from its replacement on."""
    now, oldest, left, warnings = 30 * DAY, [], [], []
    world.watch.position.state.phase, world.watch.position.state.pinned_version = "bootstrapping", 3
    world.source.location, world.source.retention_seconds = "file:/lake/orders", lambda: 7 * DAY
    world.source.log.first_since = lambda _: 2
    world.source.log.committed_at = {3: now - 8 * DAY, 4: now - DAY, 5: now}.get
    report = world.watch.report
    report.versions, report.headroom = lambda *found: oldest.append(found[2]), lambda *found: left.append(found)
    report.warning = warnings.append
    world.watch.headroom = RetentionMonitor(report, 1, RetentionReader(), lambda: now)
    for world.source.latest in (3, 5):
        world.watch.poll_source()
    assert left == [(7 * DAY, 2), (6 * DAY, 2)]
    assert (oldest, warnings) == ([None, now - DAY], [])


def test_query_that_has_delivered_everything_is_not_polled(world):
    for _ in range(3):
        world.watch.poll()
    assert (world.query.polls, world.watch.delivered_version) == (1, 3)


def test_unstarted_query_differs_from_an_idle_query(world):
    world.query.has_begun = False
    world.watch.offset = Offset("t", 3, 0)
    world.watch.poll()
    assert world.reported[-1] == (3, 2)
    world.query.has_begun = True
    world.watch.poll()
    assert world.reported[-1] == (3, 3)


def test_new_commit_is_reported_at_once_and_polled_until_delivered(world):
    world.watch.poll()
    world.source.latest = 4
    world.watch.poll()
    assert world.reported[-1] == (4, 3)
    world.watch.poll()
    world.query.end, world.query.number = 4, 4
    world.watch.poll()
    assert world.reported[-1] == (4, 4)
    polls = world.query.polls
    world.watch.poll()
    assert world.query.polls == polls


def test_batch_with_the_number_of_an_idle_trigger_is_reported(world):
    world.watch.poll()
    world.query.end, world.query.number, world.query.timestamp = None, 4, "10:10"
    world.source.latest = 4
    world.watch.poll()
    assert world.reported[-1] == (4, 3)
    world.query.end, world.query.timestamp = 4, "10:11"
    world.watch.poll()
    assert world.reported[-1] == (4, 4)


def test_batch_started_since_the_last_poll_causes_a_poll(world):
    world.watch.poll()
    world.batches.started = 2
    world.watch.poll()
    assert world.query.polls == 2


def test_rates_of_a_query_without_new_data_become_zero(world, monkeypatch):
    world.watch.poll()
    world.watch.poll()
    assert world.rates == [(1.0, 1.0)]
    monkeypatch.setattr(progress.time, "monotonic", lambda: progress.math.inf)
    for _ in range(2):
        world.watch.poll()
    assert world.rates == [(1.0, 1.0), (0.0, 0.0)]
    assert world.query.polls == 1, "Spark reports no progress for a query that sleeps"


def test_query_without_more_data_has_read_all_until_a_commit(world):
    assert not world.watch.has_read_all
    world.watch.poll()
    assert world.watch.has_read_all
    world.source.latest = 4
    world.watch.poll()
    assert not world.watch.has_read_all


def test_query_with_a_later_batch_has_not_read_all(world):
    world.watch.poll()
    world.batches.started = 2
    assert not world.watch.has_read_all


def test_planning_of_each_micro_batch_is_reported_once(world):
    world.query.end, world.query.number = None, 0
    world.watch.poll()
    assert world.planned == [], "a trigger without data"
    for number in (0, 1, 2):  # Spark ends three micro-batches between two polls
        world.query.end, world.query.number, world.query.timestamp = 4, number, f"10:0{number}"
        _ = world.query.lastProgress
    world.source.latest = 5
    world.watch.poll()
    world.watch.poll()
    assert world.planned == [0.0, 0.25, 0.5]
