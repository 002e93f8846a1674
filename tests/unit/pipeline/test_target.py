"""A target is prepared before the state path says so, and once per schema of a run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdf_replicator.pipeline.target import RouteTarget
from cdf_replicator.route import Route, Source
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from connectors import RouteOptions, Watermark

ROUTE = Route("orders_search", Source("orders", "/orders"), "search", ("id",), None, None, {}, RouteOptions())
STATE = RouteState("orders_search", {}, "table-1", phase="streaming", start_version=4)


@pytest.fixture
def target(tmp_path, monkeypatch):
    """A target whose row schema is the table's, with the list of what is written."""
    events = []
    store = StateStore.open(LocalPath(tmp_path))
    monkeypatch.setattr(store, "save", lambda state: events.append(("save", state.target_prepared)))
    sink = SimpleNamespace(prepare=lambda row, _: events.append(("prepare", row)) or ["a warning"])
    report = SimpleNamespace(warning=lambda what: events.append(("warning", what)))
    monkeypatch.setattr(RouteTarget, "_row_schema", lambda _, table: table)
    target = RouteTarget(SimpleNamespace(route=ROUTE, sink=sink, report=report), store)
    return SimpleNamespace(target=target, events=events)


def test_the_target_exists_before_the_state_path_says_so(target):
    state = target.target.prepare(STATE, "columns")
    assert target.events == [("prepare", "columns"), ("warning", "a warning"), ("save", True)]
    assert state == replace(STATE, target_prepared=True)


def test_a_target_is_prepared_once_per_schema_of_a_run(target):
    state = target.target.prepare(STATE, "columns")
    target.events.clear()
    assert target.target.prepare(state, "columns") is state
    assert target.events == []
    assert target.target.prepare(state, "more columns") is state
    assert target.events == [("prepare", "more columns"), ("warning", "a warning")]


@pytest.mark.parametrize(
    ("state", "watermark", "may_exist"),
    [
        (STATE, None, False),
        (replace(STATE, query_started=True), Watermark(0, 0, 3), False),
        (replace(STATE, query_started=True, replay_end_version=4), Watermark(0, 0, 3), True),
        (replace(STATE, replay_end_version=3), None, False),
    ],
)
def test_a_micro_batch_may_exist_up_to_the_end_of_a_replay(target, state, watermark, may_exist):
    batch = target.target.batch(state, 5)
    assert (batch.generation, batch.number, batch.table_id) == (0, 5, "table-1")
    assert (batch.route.watermark, batch.may_exist) == (watermark, may_exist)
