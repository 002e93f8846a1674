"""Test that every sink equals the table: a partitioned table after every operation, and random histories that found a hole."""

from __future__ import annotations

import pytest

from tests.oracle.conftest import life  # noqa: F401 - a fixture
from tests.oracle.every_operation import EVERY_OPERATION, SHAPES
from tests.oracle.history import LENGTH, SERVICE, History, history_of
from tests.oracle.operations import OPERATIONS

SEEDS = (1795592217,)
"""Seeds of histories that found a hole in an earlier version (tests/README.md)."""

pytestmark = pytest.mark.timeout(1800)


def test_after_every_operation_every_sink_equals_a_partitioned_table(life):  # noqa: F811 - the fixture
    found = life(History(SHAPES["partitioned"], EVERY_OPERATION))

    assert found.differences == []
    assert set(found.operations) == {*OPERATIONS, *SERVICE}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sink_equals_the_table_after_a_longer_random_history(life, seed):  # noqa: F811 - the fixture
    found = life(history_of(seed, LENGTH))

    assert found.differences == []
    assert found.compared > 0
