"""What a target that was restored, or has forgotten how far it was filled, means for a route's start."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdf_replicator import start
from cdf_replicator.settings import load
from cdf_replicator.state import RouteState, StatePath
from cdf_replicator.verdict import HaltError
from connectors import Claim

DELIVERED = 4


@pytest.fixture
def resolve(tmp_path):
    """Start a route that has delivered up to version 4, on a target that was restored to what it held at ``mark``."""
    settings = load(
        {
            "CDF_STATE_PATH": str(tmp_path),
            "CDF_TABLES__ORDERS__PATH": "/lake/orders",
            "CDF_TABLES__ORDERS__SINKS": "audit",
            "CDF_SINKS__AUDIT__TYPE": "delta_audit",
            "CDF_SINKS__AUDIT__PATH": "/lake/audit",
        }
    )
    route, state_path = settings.resolved["orders_audit"], StatePath.open(tmp_path)
    source = SimpleNamespace(metadata=SimpleNamespace(table_id="t"), log=SimpleNamespace(available=lambda: (0, 9)))
    state = RouteState(route.name, route.identity("there"), "t", phase="streaming", start_version=DELIVERED + 1)
    state_path.save(replace(state, prepared=True))

    def resolve(mark, replay_from=None):
        claim = Claim(state_path.owner, state.epoch, mark=mark, restored=True)
        sink = SimpleNamespace(target=lambda spec: "there", claim=lambda spec: claim, fences=True)
        return start.resolve(route, source, sink, state_path, replay_from=replay_from)

    return resolve


@pytest.mark.parametrize(("mark", "replay_from"), [(DELIVERED, None), (DELIVERED + 1, None), (2, 3), (2, 1)])
def test_a_restored_target_that_lacks_nothing_or_is_given_what_it_lacks_goes_on(resolve, mark, replay_from):
    assert resolve(mark, replay_from).start_version == DELIVERED + 1


@pytest.mark.parametrize(
    ("mark", "replay_from"), [(DELIVERED - 1, None), (0, None), (None, None), (2, 4), (None, 0), (-1, 0)]
)
def test_a_restored_target_that_would_lack_a_version_halts(resolve, mark, replay_from):
    with pytest.raises(HaltError) as halted:
        resolve(mark, replay_from)
    assert halted.value.verdict.reason == "target_restored"
