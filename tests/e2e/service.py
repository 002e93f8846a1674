"""The installed command as a process: an environment in, its exit code, its log and its endpoints out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

COMMAND = Path(sys.executable).with_name("cdf-replicator")
INHERITED = ("PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR")
PATIENCE_SECONDS = 120

Status = dict[str, Any]


def environment(folder: Path, **variables: object) -> dict[str, str]:
    """All that the command is given: ``CDF_`` is put before each variable; state path and audit lie in ``folder``."""
    given = {
        "STATE_PATH": folder / "state",
        "HTTP__BIND_PORT": 0,
        "SPARK__MASTER": "local[2]",
        "SPARK__CONF": json.dumps({"spark.driver.memory": "1g"}),
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


@dataclass
class Service:
    """``cdf-replicator run`` in the background; ``with`` kills what is left of it."""

    given: Mapping[str, str]
    words: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = None
    _starts: int = field(default=0)

    @property
    def _log(self) -> Path:
        return Path(self.given["CDF_STATE_PATH"]).parent / f"service-{self._starts}.log"

    def start(self) -> Self:
        """Start it and wait until it serves HTTP."""
        self._starts += 1
        with self._log.open("wb") as log:
            # A session of its own, so that all of its processes are found however they regroup themselves.
            self._process = subprocess.Popen(
                [COMMAND, "run", *self.words],
                env=self.given,
                cwd=self._log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: self.url or self.exit_code is not None, 30, self.tail)
        assert self.url, self.tail()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # How it ends

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def stop(self, within: float = 30) -> int:
        """SIGTERM to the command alone, as a container's init sends it; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(within)

    def kill(self) -> None:
        """SIGKILL to every process of it at once: the command, Spark's JVM, the Python workers."""
        if self._process is None:
            return
        while members := _session(self._process.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait()

    # What it says

    @property
    def log(self) -> Ended:
        return Ended(self.exit_code or 0, "", self._log.read_text(errors="replace"))

    @property
    def url(self) -> str:
        served = [entry["url"] for entry in self.log.entries if entry["message"] == "serving"]
        return served[0] if served else ""

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10, trust_env=False)

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
            assert self.exit_code is None, f"ended with {self.exit_code}:\n{self.tail()}"
            return bool(holds(self.status()))

        until(reached, within, lambda: f"{json.dumps(self.status(), indent=1)[:4000]}\n{self.tail()}")

    def wait_delivered(self, route: str, version: int, within: float = PATIENCE_SECONDS) -> None:
        """Until the route has delivered a commit version, and all before it."""
        self.wait(
            lambda status: any(
                found["route"] == route and (found["delivered_version"] or -1) >= version for found in status["routes"]
            ),
            within,
        )

    def wait_state(self, route: str, state: str, within: float = PATIENCE_SECONDS) -> None:
        self.wait(lambda status: (route, state) in {(r["route"], r["state"]) for r in status["routes"]}, within)

    def tail(self) -> str:
        return "\n".join(self.log.log.splitlines()[-30:])


def until(reached: Callable[[], Any], within: float, told: Callable[[], str]) -> None:
    """Look until it is so; fails at the deadline with what ``told`` says."""
    deadline = time.monotonic() + within
    while not reached():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s:\n{told()}")
        time.sleep(0.05)


def _session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found
