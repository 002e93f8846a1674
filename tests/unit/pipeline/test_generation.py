"""The position of a generation: the state records that the offset of a query ends its commit; a replay needs a load."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import generation
from cdf_replicator.pipeline.generation import EndRecord
from cdf_replicator.runtime.command_executor import CommandExecutor
from cdf_replicator.state.checkpoint import Offset
from cdf_replicator.state.route_state import RouteState

STATE = RouteState("orders_search", {}, "table-1", phase="streaming", start_version=4)
SETTINGS = SimpleNamespace(delivery=SimpleNamespace(max_removed_share=0.1))
TRACKER = SimpleNamespace(has_read_all=True, offset=Offset("table-1", 8, 2))


class FailingOnce:
    def __init__(self):
        self.saved = []
        self._errors = [OSError("the state path does not answer")]

    def save(self, state):
        if self._errors:
            raise self._errors.pop()
        self.saved.append(state.completed_offset)


def test_end_of_a_commit_is_recorded_again_after_a_failed_write():
    store = FailingOnce()
    end = EndRecord(store, STATE)
    for _ in range(3):
        end.update(TRACKER, ends=True)
    assert store.saved == [str(TRACKER.offset)]


LOADING = replace(STATE, phase="bootstrapping")


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        (LOADING, False),
        (replace(LOADING, epoch=2), False),
        (replace(LOADING, snapshot_loaded=True), False),  # a first load has no sweep
        (replace(LOADING, epoch=2, snapshot_loaded=True), True),
    ],
)
def test_refused_command_names_the_resync_for_which_the_sweep_waits(monkeypatch, state, waits):
    monkeypatch.setattr("cdf_replicator.pipeline.start_position.resolve", lambda *_, **__: state)
    executor = CommandExecutor(SimpleNamespace(route=None, state_store=None, settings=SETTINGS), None, None)
    for command in (
        lambda: generation.replayed(None, state, 3, None, None, None),
        lambda: executor._streaming_state(None, None),
    ):
        with pytest.raises(RouteHaltError, match="The bootstrap is not finished") as refused:
            command()
        assert ("run: cdf-replicator resync orders_search --yes" in refused.value.decision.remedy) is waits
