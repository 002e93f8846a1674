"""Run a command within the test's process, on the Spark session of the tests."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING
from unittest.mock import patch

import structlog
from pyspark.sql import SparkSession

import cdf_replicator.spark.session
from cdf_replicator.cli import PROGRAM, main
from cdf_replicator.monitoring.logs import QUIET, SAID
from tests.support.service import Ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def run(spark: SparkSession, given: Mapping[str, str], *words: str) -> Ended:
    """Run the command to its end. A port of its own is chosen where none is given.

    Args:
        spark: The session that the command takes for its own; it goes on afterwards.
        given: All environment variables that the command sees.
        words: Its arguments.
    """
    output, log = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"CDF_HTTP__BIND_PORT": "0", **given}, clear=True))
        stack.enter_context(patch.object(sys, "argv", [PROGRAM, *words]))
        stack.enter_context(patch.object(cdf_replicator.spark.session, "start", lambda _settings, **_: spark))
        stack.enter_context(patch.object(SparkSession, "stop", lambda _session: None))
        stack.enter_context(_restored())
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(log))
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        else:
            code = 0
    return Ended(code, output.getvalue(), log.getvalue())


@contextmanager
def _restored() -> Iterator[None]:
    """Restore signal handlers and logging, which a command sets for its process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    root = logging.getLogger()
    handling = root.handlers[:]
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, (*QUIET, *SAID)))}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        root.handlers[:] = handling
        for logger, level in levels.items():
            logger.setLevel(level)
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()
