"""The counter of refused rows starts at 0, since an alert on an increase would miss the first row otherwise."""

from __future__ import annotations

import pytest

import connectors
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.monitoring.totals import OTHER
from cdf_replicator.settings import load

SINKS = {
    "delta_audit": {"PATH": "/lake/audit"},
    "elasticsearch": {"HOSTS": "http://localhost:9200"},
    "redis": {"URL": "redis://localhost:6379/0"},
}
OF_KEYS = {"null_key", "duplicate_key"}
CODES = {
    "delta_audit": set(),
    "elasticsearch": OF_KEYS
    | {"document_parsing", "strict_dynamic_mapping", "illegal_argument", "invalid", "too_large"},
    "redis": OF_KEYS | {"wrong_type", "too_large"},
}


@pytest.mark.parametrize("kind", SINKS)
def test_every_code_of_a_sink_is_a_series_before_its_first_row(kind, tmp_path):
    given = {f"CDF_SINKS__SINK__{name}": value for name, value in {"TYPE": kind, **SINKS[kind]}.items()}
    tables = {"PATH": "/lake/orders", "KEYS": "id", "SINKS": "sink"}
    settings = load(
        {"CDF_STATE_PATH": str(tmp_path), **given, **{f"CDF_TABLES__ORDERS__{k}": v for k, v in tables.items()}}
    )
    board = StatusStore()
    metrics = Metrics(board)
    board.add_sink("sink", kind, "")
    RouteReporter(settings.routes["orders_sink"], metrics, connectors.load(kind))
    (family,) = (family for family in metrics.registry.collect() if family.name == "cdf_changes_rejected")
    series = {sample.labels["reason"]: sample.value for sample in family.samples}
    assert series == dict.fromkeys(CODES[kind] | {OTHER}, 0)
