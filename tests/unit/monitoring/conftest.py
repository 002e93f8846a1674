"""Provide the metrics of a status store whose clock a test sets."""

from __future__ import annotations

import pytest

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore


@pytest.fixture
def board(clock):
    return StatusStore(clock)


@pytest.fixture
def metrics(board):
    return Metrics(board)
