"""``validate`` checks the state path without writing to it."""

from __future__ import annotations

from cdf_replicator.commands.validate import _state_path
from cdf_replicator.settings import load


def found(place):
    environ = {
        "CDF_STATE_PATH": str(place),
        "CDF_TABLES__ORDERS__PATH": "/lake/orders",
        "CDF_TABLES__ORDERS__SINKS": "audit",
        "CDF_SINKS__AUDIT__TYPE": "delta_audit",
        "CDF_SINKS__AUDIT__PATH": "/lake/audit",
    }
    return list(_state_path(load(environ)))


def test_absent_state_path_stays_absent(tmp_path):
    assert found(tmp_path / "new" / "state") == []
    assert list(tmp_path.iterdir()) == []


def test_unwritable_parent_of_a_state_path_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (problem,) = found(tmp_path / "file" / "state")
    assert f"CDF_STATE_PATH={tmp_path / 'file' / 'state'} is not writable" in str(problem)
