"""Sample the routes for their history and the memory of Spark's JVM, so that no request calls the JVM and waits for it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from cdf_replicator.monitoring.history import STEP_SECONDS
from cdf_replicator.spark.memory import JvmBeans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.status_store import StatusStore


@contextmanager
def status_sampled(spark: SparkSession, board: StatusStore) -> Iterator[None]:
    """Sample every ``STEP_SECONDS`` from a thread of its own."""
    beans, over = JvmBeans(spark), threading.Event()

    def sample() -> None:
        while True:
            board.history.sample(board.snapshot())
            try:
                board.jvm_memory(beans.read())
            except (Py4JError, OSError):  # the JVM is gone: the main loop ends the service
                return
            if over.wait(STEP_SECONDS):
                return

    threading.Thread(target=sample, name="samples", daemon=True).start()
    try:
        yield
    finally:
        over.set()
