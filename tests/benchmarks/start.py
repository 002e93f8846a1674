"""Measure the time to the first delivery against a bare script, and the time of short commands against ``python -c pass``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import redis

from cdf_replicator.spark.java import java_home
from deploy.local.servers import Redis
from deploy.local.servers.server import PROJECT
from tests.benchmarks import light_table
from tests.benchmarks.contest import NOISE
from tests.support.service import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROWS = 1000
LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Start:
    """Seconds from exec on. ``bootstrap``, ``stream``: ``run`` until Redis shows a row, of the snapshot or of the feed.

    ``bare``: a script that streams the same table, until its first batch is counted. ``control``: the same once more.
    """

    bare: list[float]
    control: list[float]
    bootstrap: list[float]
    stream: list[float]

    @property
    def noise(self) -> float:
        """How far the bare script and its control are apart, as a share."""
        return abs(median(self.control) / median(self.bare) - 1)

    def ratio(self, ours: Sequence[float]) -> float | None:
        """To the bare script: the medians; None where the control forbids to say."""
        return None if self.noise > NOISE else median(ours) / median([*self.bare, *self.control])


@dataclass(frozen=True)
class Cost:
    """Medians of several runs of one command."""

    cpu_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class Commands:
    """``nothing``, ``nothing_again``: ``python -c pass``. ``pyspark``: the commands that import it, none should."""

    nothing: Cost
    nothing_again: Cost
    help: Cost
    validate: Cost
    pyspark: list[str]

    @property
    def noise(self) -> float:
        """How far ``python -c pass`` and its control are apart, as a share."""
        return abs(self.nothing_again.cpu_seconds / self.nothing.cpu_seconds - 1)

    def ratio(self, cost: Cost) -> float | None:
        """In processor time: another process on the machine does not change it much. None where the control forbids to say."""
        return None if self.noise > NOISE else cost.cpu_seconds / self.nothing.cpu_seconds


def start(rounds: int, report: Callable[[str], None], *, warm_up: bool) -> Start:
    """Each round runs the script, the service and the script again, in turning order; ``warm_up``: one before is not counted."""
    with TemporaryDirectory() as name, Redis.start() as cache:
        table = Path(name) / "rows"
        light_table.create(table, ROWS)
        arms = {
            "bare": lambda: _bare(table),
            "bootstrap": lambda: _service(table, cache.url, {}),
            "control": lambda: _bare(table),
            "stream": lambda: _service(table, cache.url, {"TABLES__ROWS__STARTING_VERSION": 0}),
        }
        found: dict[str, list[float]] = {arm: [] for arm in arms}
        for number in range(-1 if warm_up else 0, rounds):
            turns = [*arms]
            for arm in turns[number % len(turns) :] + turns[: number % len(turns)]:
                seconds = arms[arm]()
                report(f"start: {arm}: {seconds:.1f} s")
                if number >= 0:
                    found[arm].append(seconds)
    return Start(**found)


def commands(repetitions: int, report: Callable[[str], None]) -> Commands:
    """``--help`` and ``validate --offline`` with a valid configuration of three sinks, by turns with ``python -c pass``."""
    given = environment(
        Path("/srv/cdf"),
        TABLES__ORDERS__PATH="/srv/lake/orders",
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit,search,cache",
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH="/srv/lake/audit",
        SINKS__SEARCH__TYPE="elasticsearch",
        SINKS__SEARCH__HOSTS="http://search:9200",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL="redis://cache:6379/0",
    )
    nothing = [sys.executable, "-c", "pass"]
    arguments = {
        "nothing": nothing,
        "help": [str(COMMAND), "--help"],
        "nothing_again": nothing,
        "validate": [str(COMMAND), "validate", "--offline"],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in arguments}
    for number in range(-1, repetitions):  # the first writes what Python compiles
        for name, words in arguments.items():
            cost = _cost(words, given)
            if number >= 0:
                costs[name].append(cost)
    medians = {
        name: Cost(median(cost.cpu_seconds for cost in many), median(cost.wall_seconds for cost in many))
        for name, many in costs.items()
    }
    pyspark = [name for name in ("help", "validate") if _imports("pyspark", arguments[name], given)]
    found = Commands(**medians, pyspark=pyspark)
    report(f"start: processor time: {', '.join(f'{name} {cost.cpu_seconds:.2f} s' for name, cost in medians.items())}")
    return found


def script_environ() -> dict[str, str]:
    """Return the environment of a script that starts a Spark of its own."""
    # What a session of this process has left there is about files that are gone.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return {
        **inherited,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _bare(table: Path) -> float:
    words = [sys.executable, "-m", "tests.benchmarks.bare", str(table)]
    began = time.monotonic()
    with subprocess.Popen(
        words, env=script_environ(), cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as script:
        assert script.stdout is not None
        late = threading.Timer(PATIENCE_SECONDS, script.kill)
        late.start()
        line = script.stdout.readline()
        late.cancel()
        seconds = time.monotonic() - began
    assert line == f"counted {ROWS}\n", line
    return seconds


def _service(table: Path, url: str, further: Mapping[str, object]) -> float:
    """On a state path and a Redis without a trace of earlier runs."""
    with TemporaryDirectory() as name, redis.Redis.from_url(url) as client:
        client.flushall()
        sink = {"TABLES__ROWS__SINKS": "cache", "SINKS__CACHE__TYPE": "redis", "SINKS__CACHE__URL": url}
        given = environment(Path(name), TABLES__ROWS__PATH=table, TABLES__ROWS__KEYS="id", **sink, **further)
        began = time.monotonic()
        with _running([str(COMMAND), "run"], given, Path(name)) as service:
            while client.get("rows:0") is None:
                assert service.poll() is None, (Path(name) / "log").read_text()
                assert time.monotonic() - began < PATIENCE_SECONDS
                time.sleep(LOOK_SECONDS)
            return time.monotonic() - began


@contextmanager
def _running(words: Sequence[str], given: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("w") as log, subprocess.Popen(words, env=given, cwd=folder, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def _cost(words: Sequence[str], given: Mapping[str, str]) -> Cost:
    began = time.monotonic()
    process = subprocess.Popen(words, env=given, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return Cost(usage.ru_utime + usage.ru_stime, seconds)


def _imports(package: str, words: Sequence[str], given: Mapping[str, str]) -> bool:
    trace = subprocess.run(
        [sys.executable, "-X", "importtime", *words], env=given, capture_output=True, text=True, check=True
    ).stderr
    return re.search(rf"\| +{package}(\.|$)", trace, re.MULTILINE) is not None
