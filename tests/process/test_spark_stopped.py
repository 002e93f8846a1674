"""The service ends if Spark stops its context in a JVM that lives, so that the process manager restarts it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.service import Service, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.source import Source

STOPPED_BY_SIGNAL = """
import signal, threading
from pyspark import SparkContext
from cdf_replicator.cli import main

def stop_context(*_):
    threading.Thread(target=SparkContext._active_spark_context._jsc.sc().stop).start()

signal.signal(signal.SIGUSR1, stop_context)
main()
"""
WITHIN_SECONDS = 40
"""Sample of the context, end of the routes and of the JVM."""


class ContextStops(Service):
    """A service whose JVM stops its Spark context at SIGUSR1, as after an error in a thread of Spark's own."""

    def _command(self) -> list[str]:
        return [sys.executable, "-c", STOPPED_BY_SIGNAL, "run"]


@pytest.mark.parametrize("idle", [True, False])
def test_service_ends_with_an_error_if_spark_stops_its_context(
    tmp_path: Path, new_source: Callable[..., Source], idle: bool
):
    source = new_source(tmp_path, "orders")
    given = environment(
        tmp_path,
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=tmp_path / "audit",
        TABLES__ORDERS__PATH=source.path,
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit",
    )
    with ContextStops(given) as service:
        service.started()
        service.wait_delivered("orders_audit", source.version)
        service.wait_state("orders_audit", "running")
        process = service._process
        os.kill(service.pid, signal.SIGUSR1)
        if not idle:
            source.change("UPDATE {} SET amount = 1 WHERE id = 7")
        until(lambda: not service.running, WITHIN_SECONDS, service.log.read_text)
        assert process is not None
        assert process.wait() == 1, service.log.read_text()
        assert "exiting so that the process manager restarts the service" in service.log.read_text()
