"""Tests of each single fault under a continuous writer: afterwards the service catches up by itself, and nothing differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import FAULTS, inject
from tests.chaos.world import world
from tests.chaos.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.world import World

SEED = 1
HELD_SECONDS = 4


@pytest.fixture(scope="module")
def chaos(spark, tmp_path_factory) -> Iterator[World]:
    with world(spark, tmp_path_factory.mktemp("chaos"), SEED) as made:
        made.wait_caught_up()
        yield made


@pytest.mark.parametrize("name", FAULTS)
def test_sinks_equal_the_table_after_the_fault(chaos: World, name: str):
    with Writer(chaos, list(FAULTS).index(name), pause_seconds=0.5) as writer:
        inject(chaos, name, HELD_SECONDS)
    assert writer.commits
    chaos.wait_caught_up()
    assert chaos.differences() == []
    log = chaos.service.log.read_text()
    assert "This is a bug" not in log
    assert "(CDF_LOG__LEVEL=debug shows where)" not in log
