"""Sample the memory of Spark's JVM beside the routes, so that a scrape never calls the JVM and never waits for it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError

from cdf_replicator.spark.memory import JvmBeans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.status_store import StatusStore

SAMPLE_SECONDS: Final = 10.0


@contextmanager
def memory_sampled(spark: SparkSession, board: StatusStore) -> Iterator[None]:
    """Report the memory of the JVM every ``SAMPLE_SECONDS`` from a thread of its own."""
    beans, over = JvmBeans(spark), threading.Event()

    def sample() -> None:
        while True:
            try:
                board.jvm_memory(beans.read())
            except (Py4JError, OSError):  # the JVM is gone: the main loop ends the service
                return
            if over.wait(SAMPLE_SECONDS):
                return

    threading.Thread(target=sample, name="memory", daemon=True).start()
    try:
        yield
    finally:
        over.set()
