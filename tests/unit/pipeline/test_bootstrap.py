"""A bootstrap records each step before the next step: in the target first, then in the state path."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import bootstrap
from cdf_replicator.pipeline.bootstrap import Bootstrap
from cdf_replicator.route import Route, Source
from cdf_replicator.state.route_state import RouteState
from connectors import EntryCount, Resyncable, RouteOptions, guard_of

ROUTE = Route("orders_search", Source("orders", "/orders"), "search", ("id",), None, None, {}, RouteOptions())
STATE = RouteState("orders_search", {}, "table-1", pinned_version=7)


class Entries(Resyncable):
    """A sink that records the deletion of orphans."""

    def __init__(self, entries, events):
        self.entries, self.events = entries, events

    def count_entries(self, route, below_guard):
        return self.entries

    def delete_orphans(self, route, below_guard):
        self.events.append(("delete orphans", below_guard))
        return 1


class Target:
    """A target and a state path that record what is written to them, in order."""

    def __init__(self, entries=None, newer=0):
        self.events, self.newer = [], [newer, 0]
        self.route = ROUTE
        self.state_store = SimpleNamespace(save=self._save, route_spec=self._route_spec)
        self.sink = Entries(entries or EntryCount(10), self.events)
        report = SimpleNamespace(event=lambda _: None, warning=lambda _: None)
        letters = SimpleNamespace(close_letters_before_epoch=lambda epoch: self.events.append(("close letters", epoch)))
        self.writer = SimpleNamespace(report=report, rejections=letters)

    def _save(self, state):
        self.events.append(("save", state.phase, state.epoch, state.snapshot_loaded))

    def _route_spec(self, route, state):
        return ROUTE.spec(owner="owner", epoch=state.epoch)

    def spec(self, state):
        return "spec"

    def prepare_snapshot(self, state, source):
        self.events.append(("prepare", state.epoch))
        return state

    def prepare_loaded(self, state):
        self.events.append(("prepare loaded", state.epoch))
        return state

    def write_snapshot(self, state, source):
        self.events.append(("rows", state.epoch))
        return self.newer.pop(0)

    def save_watermark(self, spec, reached):
        self.events.append(("watermark", str(reached)))


def test_the_watermark_is_in_the_target_before_the_state_path_says_so():
    target = Target()
    ended = Bootstrap(None, target, 0.1).run(STATE)
    assert target.events == [
        ("prepare", 1),
        ("rows", 1),
        ("watermark", "0:0:7"),
        ("save", "bootstrapping", 1, True),
        ("watermark", "0:0:7"),
        ("save", "streaming", 1, True),
    ]
    assert (ended.phase, ended.start_version) == ("streaming", 8)


def test_a_loaded_snapshot_is_not_written_again():
    target = Target()
    Bootstrap(None, target, 0.1).run(replace(STATE, snapshot_loaded=True))
    assert target.events == [("prepare loaded", 1), ("watermark", "0:0:7"), ("save", "streaming", 1, True)]


def test_a_resync_deletes_orphans_after_the_load_and_before_the_phase():
    target = Target()
    Bootstrap(None, target, 0.1).run(replace(STATE, epoch=2, max_removed_share=0.5))
    assert [event[0] for event in target.events] == [
        *("prepare", "rows", "watermark", "save"),
        *("delete orphans", "close letters", "watermark", "save"),
    ]


def test_a_sweep_above_the_limit_halts_before_it_deletes():
    target = Target(EntryCount(10, 6, 0))
    with pytest.raises(RouteHaltError) as halted:
        Bootstrap(None, target, 0.5).run(replace(STATE, epoch=2))
    assert halted.value.decision.reason == "too_many_orphans"
    assert target.events[-1] == ("save", "bootstrapping", 2, True)


def test_entries_of_another_writer_are_loaded_over_in_an_epoch_above_theirs(monkeypatch):
    target = Target(EntryCount(10, 1, guard_of(5, 1, upsert=True)), newer=3)
    above = []

    def new_epoch(*_, **found):
        above.append(found["above"])
        return replace(STATE, epoch=found["above"] + 1, max_removed_share=found["share"])

    monkeypatch.setattr(bootstrap.start_position, "new_epoch", new_epoch)
    Bootstrap(None, target, 0.5).run(STATE)
    assert above == [5]
    assert target.events[2:6] == [
        ("save", "bootstrapping", 6, False),
        ("prepare", 6),
        ("rows", 6),
        ("watermark", "0:0:7"),
    ]
