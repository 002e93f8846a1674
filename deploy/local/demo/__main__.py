"""`make demo`: starts everything, lets a source write and the service follow, compares, and ends."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cdf_replicator.spark.java import JavaNotFoundError
from deploy.local.demo import flights, report
from deploy.local.demo.comparison import Comparison
from deploy.local.demo.folder import run_folder
from deploy.local.demo.probe import Probe, audit_seconds, elasticsearch_updated_at, redis_updated_at
from deploy.local.demo.progress import Progress
from deploy.local.demo.service import ROUTES, TABLE, Service
from deploy.local.demo.source import FIRST_DAY, MOST_DAYS, Board, Commit
from deploy.local.demo.spark import session
from deploy.local.servers import Elasticsearch, Redis, ServerError
from deploy.local.servers.server import PROJECT

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

DAYS = 7
PATIENCE_SECONDS = 180
"""How long the service may take for its first load, and at the end to catch up."""


class DemoError(RuntimeError):
    """The demo can't go on; the text says why."""


@dataclass(frozen=True)
class Stage:
    """All that plays: servers, the service, the source, and who looks on."""

    console: Console
    folder: Path
    spark: SparkSession
    elasticsearch: Elasticsearch
    redis: Redis
    service: Service
    board: Board
    probes: dict[str, Probe]

    @property
    def audit(self) -> Path:
        return self.folder / "audit" / TABLE


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help=f"days to write, 1 to {MOST_DAYS} (default: {DAYS})")
    parser.add_argument("--keep", action="store_true", help="stay up after the comparison, until Ctrl-C")
    options = parser.parse_args()
    if not 1 <= options.days <= MOST_DAYS:
        parser.error(f"--days: expected 1 to {MOST_DAYS}, got {options.days}")
    signal.signal(signal.SIGTERM, _ended)
    try:
        equal = demonstrate(options.days, keep=options.keep)
    except (DemoError, ServerError, flights.DataError, JavaNotFoundError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if equal else 1)


def demonstrate(days: int, *, keep: bool) -> bool:
    """Run it all; True if every sink holds what the source holds."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    with ExitStack() as stack:
        stage = _set(stack, console, days)
        stop = _stop_on_interrupt()
        _play(stage, days, stop)
        delivered = stage.service.delivered()
        if not keep:
            stage.service.stop()
        console.print("comparing whole rows, key by key")
        equal = _compare(stage, delivered)
        if keep:
            console.print(f"Staying up; the page is at {stage.service.url}/. Ctrl-C ends it.")
            stop.clear()
            stop.wait()
        return equal


def _set(stack: ExitStack, console: Console, days: int) -> Stage:
    """Start everything up to the first load."""
    folder = stack.enter_context(run_folder())
    csv = flights.write_csv(folder)
    console.print(f"flights         {flights.PACKAGE} {flights.VERSION}: 336,776 flights of 2013")
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(Elasticsearch.start, heap="512m")
        redis = stack.enter_context(Redis.start())
        spark = stack.enter_context(session(folder, memory="1g"))
        probes: dict[str, Probe] = {}
        board = Board(spark, csv, folder / TABLE, days=days, announce=lambda commit: _announce(probes, commit))
        rows = board.create()
        elasticsearch = stack.enter_context(starting.result())
    console.print(f"source table    {_short(folder / TABLE)}: the {rows:,} flights before {FIRST_DAY:%d %B}")
    console.print(f"servers         Elasticsearch {elasticsearch.url}, Redis {redis.url}")
    service = stack.enter_context(Service(folder, elasticsearch, redis).started())
    console.print(f"service         cdf-replicator run, process {service.pid}; its log: {_short(service.log)}")
    console.print(f"[bold]status page     {service.url}/[/]")
    log = folder / TABLE / "_delta_log"
    probes[ROUTES["search"]] = stack.enter_context(Probe(log, elasticsearch_updated_at(elasticsearch.url)))
    probes[ROUTES["cache"]] = stack.enter_context(Probe(log, redis_updated_at(redis.url)))
    return Stage(console, folder, spark, elasticsearch, redis, service, board, probes)


def _announce(probes: dict[str, Probe], commit: Commit) -> None:
    for probe in probes.values():
        probe.expect(commit)


def _play(stage: Stage, days: int, stop: threading.Event) -> None:
    """Write day after day while the service follows, until all are written or somebody says stop."""
    with Progress(stage.console, stage.service, days) as progress:
        _await(progress, stop, lambda: progress.running)
        for number in range(days):
            for commit in stage.board.write_day(number):
                progress.wrote(number + 1, commit)
                if number == 0 and commit.key is not None and commit.what == "schedule":
                    _suggest(stage, commit.key)
                if progress.trouble is not None:
                    raise DemoError(progress.trouble)
                if stop.is_set():
                    break
            if stop.is_set():
                stage.console.print("ending early: the service catches up first")
                break
        last = stage.board.latest_version()
        _await(progress, threading.Event(), lambda: progress.caught_up(last))


def _await(progress: Progress, stop: threading.Event, condition) -> None:  # noqa: ANN001 - a plain question
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if progress.trouble is not None:
            raise DemoError(progress.trouble)
        if time.monotonic() > deadline:
            raise DemoError(f"the service was not done after {PATIENCE_SECONDS} s: see its status page and log")
        if stop.wait(0.1):
            return


def _suggest(stage: Stage, key: str) -> None:
    """Three things to try in another terminal, with nothing but what `make setup` has installed."""
    python = _short(Path(sys.executable).absolute())
    search = f"{stage.elasticsearch.url}/{TABLE}/_search?q=dest:BOS+AND+dep_delay:>60&size=3&pretty"
    if shutil.which("curl"):
        look = f"curl -s '{search}'"
    else:
        look = f"{python} -c \"import urllib.request as r; print(r.urlopen('{search}').read().decode())\""
    bundled = Path(sys.executable).parent / "redis-cli"
    client = _short(bundled) if bundled.exists() else "redis-cli"
    get = f"{client} -p {stage.redis.port} GET '{TABLE}:{key}'"
    query = "SELECT change_type, count(*) FROM audit GROUP BY ALL"
    sql = f'{python} -m deploy.local.demo.sql {_short(stage.folder)} "{query}"'
    stage.console.print("\nTo try from this folder, in another terminal:")
    for command in (look, get, sql):
        stage.console.print(f"  {command}", soft_wrap=True, markup=False)
    stage.console.print()


def _compare(stage: Stage, delivered: dict[str, report.Delivered]) -> bool:
    source = stage.folder / TABLE
    comparison = Comparison(stage.spark, stage.folder, source, stage.audit)
    seconds = {route: probe.seconds for route, probe in stage.probes.items()}
    seconds[ROUTES["audit"]] = audit_seconds(stage.spark, stage.audit, source / "_delta_log")
    found = (
        ("audit", "audit table", comparison.audit()),
        ("search", "Elasticsearch", comparison.elasticsearch(stage.elasticsearch.url)),
        ("cache", "Redis", comparison.redis(stage.redis.url)),
    )
    results = [
        report.SinkResult(name, verdict, delivered[ROUTES[sink]], seconds[ROUTES[sink]])
        for sink, name, verdict in found
    ]
    return report.tell(stage.console, comparison.source_rows(), results, comparison.audit_counts())


def _stop_on_interrupt() -> threading.Event:
    """Ctrl-C ends the writing early; a second one ends the demo at once."""
    stop = threading.Event()

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, interrupted)
    return stop


def _ended(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _short(path: Path) -> str:
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)


if __name__ == "__main__":
    main()
