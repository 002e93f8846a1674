"""Test the comparison of frames, where a live target gives what no test of a whole ``verify`` can force."""

from __future__ import annotations

import pytest

from cdf_replicator.verification.comparison import compare

ROW = "struct<id: int, name: string>"
GUARDS = (1, 9)


@pytest.fixture
def frames(spark):
    """Return a function that makes the rows of a table and the entries of a target, each from (identity, name)."""

    def make(rows, entries):
        table = [(identity, (int(identity), name)) for identity, name in rows]
        target = [(identity, 5, (int(identity), name)) for identity, name in entries]
        return (
            spark.createDataFrame(table, f"identity string, row {ROW}"),
            spark.createDataFrame(target, f"identity string, guard bigint, row {ROW}"),
        )

    return make


def test_entry_that_was_read_twice_counts_once(frames):
    found = compare(
        *frames([("1", "a"), ("2", "b")], [("1", "a"), ("2", "b"), ("2", "b")]), GUARDS, ["name"], 10, reread=True
    )
    assert (found.rows, found.entries, found.equal) == (2, 2, True)


def test_difference_that_was_read_twice_counts_once(frames):
    rows, entries = (
        [("1", "a"), ("2", "b"), ("3", "c")],
        [("1", "a"), ("1", "a"), ("2", "x"), ("2", "x"), ("4", "d"), ("4", "d")],
    )
    found = compare(*frames(rows, entries), GUARDS, ["name"], 10, reread=True)
    assert (found.rows, found.entries) == (3, 3)
    assert {kind: number for kind, number in found.kinds.items() if number} == {
        "missing": 1,
        "extra": 1,
        "different": 1,
    }
    assert found.columns == {"name": 1}
    assert found.identities == ("2", "3", "4")


def test_further_copy_of_an_entry_is_extra(frames):
    found = compare(*frames([("1", "a"), ("2", "b")], [("1", "a"), ("2", "b"), ("2", "b")]), GUARDS, ["name"], 10)
    assert (found.rows, found.entries, found.equal, found.identities) == (2, 3, False, ("2",))
    assert {kind: number for kind, number in found.kinds.items() if number} == {"extra": 1}
