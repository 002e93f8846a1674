"""Test that every sink equals the table after every kind of operation, on a table with every feature, and on a partitioned table.

The partitioned table lives every operation in tests/nightly/test_histories.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracle.acts import ACTS
from tests.oracle.every_operation import EVERY_OPERATION, EVERY_PARTITION_WRITE, PARTITION_WRITES, SHAPES
from tests.oracle.history import EVENTS, RARE, SERVICE, WRITES, History, history_of
from tests.oracle.operations import OPERATIONS

pytestmark = pytest.mark.timeout(1800)


def test_every_sink_equals_the_table_after_every_kind_of_operation(life):
    found = life(History(SHAPES["every feature"], EVERY_OPERATION))

    assert found.differences == []
    assert set(found.operations) == {*OPERATIONS, *SERVICE}
    assert found.counted > 0


def test_random_histories_use_every_operation():
    assert {*WRITES, *RARE, *EVENTS} == set(OPERATIONS)
    assert set(SERVICE) == set(ACTS)


def test_a_seed_gives_the_same_history_again():
    assert history_of(11) == history_of(11)
    assert history_of(11) != history_of(12)


def test_every_sink_equals_a_partitioned_table_after_every_partition_write(life):
    shape = replace(SHAPES["partitioned"], from_version=0, max_files=40)
    found = life(History(shape, EVERY_PARTITION_WRITE))

    assert found.differences == []
    assert set(found.operations) >= {*PARTITION_WRITES}
