"""Start the worker as a process, send it requests, and end it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cdf_replicator.spark.java import java_home
from deploy.local.servers.server import LOGS
from tests.benchmarks.rivals.environment import JARS, PYTHON, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("worker.py")
PATIENCE_SECONDS = 900
STOP_SECONDS = 30
MEMORY = "2g"


class RivalError(RuntimeError):
    """The worker could not execute a request; the text holds the reason."""


class Worker:
    """Spark 3.5 with the connectors, one job at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, folder: Path, keys: tuple[str, ...], to: str, name: str, settings: dict[str, str]) -> None:
        """Write the Parquet of a folder to the index or table ``name``. Raises RivalError."""
        order = {"folder": str(folder), "keys": keys, "to": to, "name": name, "settings": settings}
        assert self._process.stdin
        print(json.dumps(order), file=self._process.stdin, flush=True)
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise RivalError(f"Spark 3.5 did not answer; its log ({self._log}) ends with:\n{tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise RivalError(answer["error"])


@contextmanager
def worker() -> Iterator[Worker]:
    """Ended with all its children, however the block ends; a worker whose starter is gone finds its input closed and ends."""
    prepare()
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / "spark35.log"
    with TemporaryDirectory(prefix="cdf-spark35-") as scratch, log.open("w") as words:
        # Nothing of ours: SPARK_HOME, PYTHONPATH and their like would bring Spark 4 in.
        environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(Path.home()),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        process = subprocess.Popen(
            [PYTHON, "-I", WORKER, JARS, scratch, MEMORY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=environ,
            cwd=scratch,
            text=True,
            start_new_session=True,
        )
        try:
            yield Worker(process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    with suppress(BrokenPipeError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
