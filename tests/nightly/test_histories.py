"""Test that every sink equals a partitioned table after every kind of operation, with the Spark plans of production."""

from __future__ import annotations

import pytest

from tests.oracle.conftest import life  # noqa: F401 - a fixture
from tests.oracle.every_operation import EVERY_OPERATION, SHAPES
from tests.oracle.history import SERVICE, History
from tests.oracle.operations import OPERATIONS

pytestmark = pytest.mark.timeout(1800)


def test_after_every_operation_every_sink_equals_a_partitioned_table(life):  # noqa: F811 - the fixture
    found = life(History(SHAPES["partitioned"], EVERY_OPERATION))

    assert found.differences == []
    assert set(found.operations) == {*OPERATIONS, *SERVICE}
