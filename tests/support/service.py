"""The installed command as a process: an environment in, its exit code, its log and its endpoints out."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.servers.server import Server
from tests.support.session import JAVA_OPTIONS
from tests.support.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMMAND = Path(sys.executable).with_name("cdf-replicator")
INHERITED = ("PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "PYTHONPATH")
SPARK_CONF: dict[str, str] = {}
"""Settings that the tests add, and the benchmarks do not."""
SHORT_LIVED = {"spark.driver.extraJavaOptions": JAVA_OPTIONS}

Status = dict[str, Any]

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For requests without TLS. Otherwise each of them reads the certificate authorities, which takes 18 ms of processor time."""


def environment(folder: Path, **variables: object) -> dict[str, str]:
    """All that the command is given: ``CDF_`` is put before each variable; state path and audit lie in ``folder``."""
    given = {
        "STATE_PATH": folder / "state",
        "HTTP__BIND_PORT": 0,
        "SPARK__MASTER": "local[2]",
        "SPARK__CONF": json.dumps({"spark.driver.memory": "1g", **SPARK_CONF}),
        "DELIVERY__RETRY_SECONDS": 1,
        **variables,
    }
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return own | {f"CDF_{name}": str(value) for name, value in given.items()}


@dataclass(frozen=True)
class Ended:
    """A command that ended. ``log``: what it wrote to stderr, ``entries`` those lines of it that are JSON."""

    code: int
    output: str
    log: str

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def entry(self, **fields: Any) -> dict[str, Any]:
        """The first log entry with these fields."""
        for entry in self.entries:
            if fields.items() <= entry.items():
                return entry
        raise AssertionError(f"no log entry with {fields} in:\n{self.log}")


def command(given: Mapping[str, str], *words: str, within: float = PATIENCE_SECONDS) -> Ended:
    """Run the command to its end."""
    folder = Path(given["CDF_STATE_PATH"]).parent
    ended = subprocess.run(
        [COMMAND, *words],
        env=given,
        cwd=folder if folder.is_dir() else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


class Service(Server):
    """``cdf-replicator run`` in the background, on a port of its own."""

    name: ClassVar[str] = "cdf-replicator"
    start_seconds: ClassVar[float] = 60
    stop_seconds: ClassVar[float] = 120
    """Longer than the service's own grace (``CDF_SHUTDOWN_SECONDS``), as in a pod."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__()
        self.given = {**given, "CDF_HTTP__BIND_PORT": str(self.port)}

    def end(self) -> int:
        """SIGTERM to the command alone, as a container's init sends it; returns the exit code."""
        process = self._process
        assert process is not None
        self.stop()
        return process.returncode

    def _command(self) -> list[str]:
        return [str(COMMAND), "run"]

    def _environment(self) -> Mapping[str, str]:
        return self.given

    def _ready(self) -> bool:
        try:
            return self.get("/livez").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    # What it says

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10, trust_env=False, verify=NO_AUTHORITIES)

    def status(self) -> Status:
        status: Status = self.get("/status").json()
        return status

    def route(self, name: str) -> Status:
        (found,) = [route for route in self.status()["routes"] if route["route"] == name]
        return found

    def metrics(self) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
        """Samples by name, then by labels."""
        result: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                result.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return result

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        return sum(value for found, value in self.metrics()[name].items() if labels.items() <= set(found))

    def wait(self, holds: Callable[[Status], Any], within: float = PATIENCE_SECONDS) -> None:
        """Until ``/status`` is as wanted; fails at the deadline or when the service ends."""

        def reached() -> bool:
            assert self.running, self._tail()
            return bool(holds(self.status()))

        until(reached, within, lambda: f"{json.dumps(self.status(), indent=1)[:4000]}\n{self._tail()}")

    def wait_delivered(self, route: str, version: int, within: float = PATIENCE_SECONDS) -> None:
        """Until the route has delivered a commit version, and all before it."""

        def delivered(status: Status) -> bool:
            at = {found["route"]: found["delivered_version"] for found in status["routes"]}.get(route)
            return at is not None and at >= version

        self.wait(delivered, within)

    def wait_state(self, route: str, state: str, within: float = PATIENCE_SECONDS) -> None:
        self.wait(lambda status: (route, state) in {(r["route"], r["state"]) for r in status["routes"]}, within)


class Standby(Service):
    def _command(self) -> list[str]:
        return [str(COMMAND), "run", "--standby"]
