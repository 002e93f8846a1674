"""Sample the routes for their history, and the memory and the context of Spark's JVM, so that nothing else waits for the JVM."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from cdf_replicator.monitoring.history import STEP_SECONDS
from cdf_replicator.spark.memory import JvmBeans
from cdf_replicator.spark.session import context_stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cdf_replicator.monitoring.status_store import StatusStore

log = structlog.get_logger(__name__)


@contextmanager
def status_sampled(spark: SparkSession, board: StatusStore, stopped: threading.Event) -> Iterator[None]:
    """Sample every ``STEP_SECONDS`` from a thread of its own; set ``stopped`` if Spark has stopped its context."""
    beans, over = JvmBeans(spark), threading.Event()

    def sample() -> None:
        while True:
            try:
                board.history.sample(board.snapshot())
                board.jvm_memory(beans.read())
                if context_stopped(spark):
                    stopped.set()
            except Exception as error:  # noqa: BLE001 - the next sample may succeed; without a JVM the main loop ends
                log.warning("no sample of the service", reason=str(error))
            if over.wait(STEP_SECONDS):
                return

    threading.Thread(target=sample, name="samples", daemon=True).start()
    try:
        yield
    finally:
        over.set()
