"""Tests that every sink equals the table: a second shape of table, and a bounded number of random histories.

`make soak` runs more of them. A history that finds a difference becomes a named test here. The faults that come last in
EVERY_OPERATION run on the second shape in tests/nightly/test_histories.py.
"""

from __future__ import annotations

import pytest

from tests.oracle.every_operation import EVERY_WRITE, SHAPES
from tests.oracle.history import RARE, WRITES, History, history_of

SEEDS = ((334, 5), (933, 5), (31, 8))
"""Seeds and lengths. The first two histories found a hole in an earlier version (tests/README.md); PostgreSQL follows the last."""

pytestmark = pytest.mark.timeout(1800)


def test_every_sink_equals_a_partitioned_table_after_every_write(life):
    found = life(History(SHAPES["partitioned"], EVERY_WRITE))

    assert found.differences == []
    assert set(found.operations) >= {*WRITES, *RARE}


@pytest.mark.parametrize(("seed", "length"), SEEDS)
def test_every_sink_equals_the_table_after_a_random_history(life, seed, length):
    found = life(history_of(seed, length))

    assert found.differences == []
    assert found.compared > 0
