"""The command ``verify`` shows what was compared, what was left out, and every kind of difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdf_replicator.commands.verify import _write, as_json, summary
from cdf_replicator.verification.result import Comparison, Difference, Verification

EQUAL = Verification("orders_search", "index orders", 41, 42, 37, 2, ("label",), 2.0, Comparison(1_000_000, 1_000_000))
KINDS = {"missing": 2, "extra": 1, "different": 3, "foreign": 0}


def test_summary_of_an_equal_target_names_what_was_left_out():
    assert summary(EQUAL) == [
        "orders_search: version 41 against index orders: 2 s, 500,000 rows/s",
        "  1,000,000 rows in the table, 1,000,000 entries in the target",
        "  37 keys changed up to version 42 and were left out",
        "  2 keys have an open dead letter, and the target must not hold them",
        "  columns left out, since they depend on joined tables or on the order of rows: label",
        "  no difference",
    ]


def test_summary_counts_differences_by_kind_and_column():
    found = replace(EQUAL.comparison, kinds=KINDS, columns={"name": 2, "price": 1})
    result = replace(EQUAL, changed=0, dead_letters=0, left_out=(), comparison=found)
    assert summary(result)[2] == "  missing 2 · extra 1 · different 3 · foreign 0 (name 2, price 1)"
    assert not found.equal


def test_json_holds_every_field_on_one_level():
    difference = Difference("different", "7", 35, "price", "12.50", "12.40")
    result = replace(EQUAL, comparison=replace(EQUAL.comparison, kinds=KINDS, differences=(difference,)))
    assert as_json(result)["version"] == 41
    assert as_json(result)["kinds"] == KINDS
    assert as_json(result)["differences"][0]["target"] == "12.40"


def test_control_characters_of_values_are_escaped(capsys):
    difference = Difference("different", "7\x1b[2J", 35, "name", "\x1b[1;1H", None)
    _write(replace(EQUAL, comparison=replace(EQUAL.comparison, kinds=KINDS, differences=(difference,))), "table")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"7\x1b[2J" in shown


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"repairable": True}, "verify orders_search --repair"),
        ({}, "resync orders_search"),
    ],
)
def test_summary_of_differences_names_the_command_that_corrects_them(given, named):
    found = replace(EQUAL, comparison=replace(EQUAL.comparison, kinds=KINDS), **given)
    assert summary(found)[-1] == f"  to correct: cdf-replicator {named}"


REPLAY = "cdf-replicator replay orders_audit --starting-version {} --ending-version 41 (it appends missing changes)"
RESYNC = "cdf-replicator resync orders_audit (it appends a new snapshot)"
DELETE = "delete the extra, different and foreign rows of the target (no command of the service does)"


@pytest.mark.parametrize(
    ("versions", "kinds", "identities", "steps"),
    [
        ((7, None), {"missing": 1}, ("7:insert:1",), [REPLAY.format(7)]),
        ((7, 7), {"missing": 1}, ("8:insert:1",), [REPLAY.format(8)]),
        ((7, 7), {"missing": 1}, ("7:snapshot:1",), [RESYNC]),
        ((7, 7), {"missing": 2}, ("7:snapshot:1", "8:insert:1"), [REPLAY.format(8), RESYNC]),
        ((7, 7), {"missing": 2}, ("8:insert:1",), [REPLAY.format(8), RESYNC]),
        ((7, None), {"missing": 2}, ("8:insert:1",), [REPLAY.format(7)]),
        ((7, None), {"extra": 1, "missing": 0}, ("7:insert:1",), [DELETE]),
        ((7, 7), {"different": 1}, ("7:snapshot:1",), [DELETE, RESYNC]),
    ],
)
def test_summary_of_an_audit_names_what_brings_its_rows(versions, kinds, identities, steps):
    """A comparison after a resync leaves out the changes before it."""
    found = Comparison(9, 8, kinds=kinds, identities=identities)
    result = replace(EQUAL, route="orders_audit", comparison=found, repairable=False)
    first, snapshot = versions
    (last,) = summary(replace(result, first_version=first, snapshot_version=snapshot))[-1:]
    assert last == f"  to correct: {', then run: '.join(steps)}"
