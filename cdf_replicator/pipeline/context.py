"""Define the objects that all routes of a service share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from cdf_replicator.delivery.dead_letters import DeadLetters
    from cdf_replicator.monitoring.metrics import Metrics
    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The objects that all routes share.

    Args:
        once: Whether the routes end after they have delivered every commit.
        stop: Set by SIGTERM.
    """

    spark: SparkSession
    settings: Settings
    state_path: StateStore
    letters: DeadLetters
    metrics: Metrics
    board: StatusStore
    once: bool
    stop: threading.Event
