"""Every sink holds what the table holds: a second shape of table, and a bounded number of random histories.

`make soak` runs more of them. A history that finds a difference becomes a named test here.
"""

from __future__ import annotations

import pytest

from tests.oracle.every_operation import EVERY_OPERATION, SHAPES
from tests.oracle.history import SERVICE, History, history_of
from tests.oracle.operations import OPERATIONS

SEEDS = ((334, 5), (933, 5))
"""Seeds and lengths of histories that found a hole in an earlier version (tests/README.md)."""

pytestmark = pytest.mark.timeout(1800)


def test_every_sink_equals_a_partitioned_table_after_every_kind_of_operation(life):
    found = life(History(SHAPES["partitioned"], EVERY_OPERATION))

    assert found.differences == []
    assert set(found.operations) == {*OPERATIONS, *SERVICE}


@pytest.mark.parametrize(("seed", "length"), SEEDS)
def test_every_sink_equals_the_table_after_a_random_history(life, seed, length):
    found = life(history_of(seed, length))

    assert found.differences == []
    assert found.compared > 0
