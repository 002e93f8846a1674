"""``validate`` reports before a start, by one scan, what would halt a route or deliver wrong rows."""

from __future__ import annotations

import json

import pytest

from cdf_replicator.queries import validation
from cdf_replicator.source.table import SourceTable
from connectors import PermanentError


def test_keys_are_checked_in_one_scan_for_all_routes_of_a_table(world, monkeypatch):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "files,other,lines",
        "CDF_SINKS__OTHER__TYPE": "picky",
        "CDF_SINKS__OTHER__PATH": str(world.folder),
        "CDF_SINKS__LINES__TYPE": "lines",
        "CDF_SINKS__LINES__PATH": str(world.files),
        "CDF_SINKS__LINES__HEADERS": "a=b",
        "CDF_ROUTES__ORDERS_OTHER__FILTER": "name <> 'b'",
        "CDF_ROUTES__ORDERS_FILES__COMPUTED": json.dumps({"total": "price * 2", "whole": "cast(price as double)"}),
    }
    world.create("id bigint, name string, price decimal(15, 2)")
    world.insert(
        "(1, 'a', 1)", "(5, 'a', 1)", "(5, 'b', 1)", "(6, 'a', 1)", "(6, 'b', 1)", "(NULL, 'a', 1)", "(NULL, 'b', 1)"
    )
    scans, snapshot = [], SourceTable.snapshot
    monkeypatch.setattr(SourceTable, "snapshot", lambda self, version: scans.append(version) or snapshot(self, version))
    found = list(validation._table(world.spark, world.settings, *world.settings.routes.values()))
    assert len(scans) == 1
    findings = {(finding.where, finding.severity, finding.what) for finding in found}
    assert findings == {
        (
            "route orders_files",
            "warning",
            "COMPUTED total is decimal(17,2) and arrives as text: a JSON number is exact up to 15 digits.",
        ),
        ("route orders_files", "error", "Rows with a null in key column id: 2."),
        ("route orders_files", "warning", "Keys that several rows have (key columns id): 2 (5, 6)."),
        ("route orders_other", "error", "Rows with a null in key column id: 1."),
    }


@pytest.mark.parametrize(
    ("kept", "doubled", "severity", "follows"),
    [
        ("dead_letter", 6, "warning", "keeps each of their rows as a dead letter (duplicate_key), and the sink lacks"),
        ("dead_letter", 101, "error", "would halt: too many rows are refused"),
        ("halt", 6, "error", "would halt (duplicate_keys)"),
    ],
)
def test_duplicate_keys_are_an_error_if_they_would_halt_the_route(world, kept, doubled, severity, follows):
    world.environ["CDF_TABLES__ORDERS__ON_DUPLICATE_KEYS"] = kept
    world.create()
    world.sql(f"INSERT INTO {{t}} SELECT id DIV 2, 'a' FROM range({2 * doubled}) UNION ALL SELECT 900, 'b'")
    (found,) = validation._table(world.spark, world.settings, *world.settings.routes.values())
    assert found.severity == severity
    assert f"{doubled} (0, 1, " in found.what
    assert found.what.endswith(", …).")
    assert follows in found.next_step
    assert "CDF_TABLES__ORDERS__KEYS" in found.next_step


@pytest.mark.usefixtures("spark")
def test_unwritable_delta_sink_is_reported(world):
    audit = {"CDF_TABLES__ORDERS__SINKS": "audit", "CDF_SINKS__AUDIT__TYPE": "delta_audit"}
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.environ |= audit | {"CDF_SINKS__AUDIT__PATH": "/proc/nope/audit"}
    with pytest.raises(PermanentError, match="/proc/nope/audit can't be reached or written"):
        world.settings.sink("audit").check()
    world.environ["CDF_SINKS__AUDIT__PATH"] = str(world.folder / "new" / "audit")
    world.settings.sink("audit").check()
    assert not (world.folder / "new").exists(), "nothing is left behind"
