"""The state records that the offset of a query ends its commit."""

from __future__ import annotations

from types import SimpleNamespace

from cdf_replicator.pipeline.generation import EndRecord
from cdf_replicator.state.checkpoint import Offset
from cdf_replicator.state.route_state import RouteState

STATE = RouteState("orders_search", {}, "table-1", phase="streaming", start_version=4)
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
