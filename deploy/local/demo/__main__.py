"""Start the servers, a source and the service; measure a first load and the latency of commits; compare every row."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cdf_replicator.spark import JavaNotFoundError, SparkStartError
from deploy.local.demo import flights
from deploy.local.demo.board import FIRST_DAY, MOST_DAYS, TABLE, Board, session
from deploy.local.demo.comparison import Comparison
from deploy.local.demo.latency import Probe, elasticsearch_updated_at, redis_updated_at
from deploy.local.demo.report import SinkResult, report
from deploy.local.demo.service import SINKS, FirstLoad, Service
from deploy.local.servers import Elasticsearch, Redis, ServerError
from deploy.local.servers.server import CACHE, PROJECT

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

DAYS = 7
COMMIT_SECONDS = 5
"""Shortest time from the start of a commit to the start of the next."""
RUNS = CACHE / "demo"


@dataclass(frozen=True)
class Stage:
    """The running parts of the demo."""

    console: Console
    folder: Path
    spark: SparkSession
    elasticsearch: Elasticsearch
    redis: Redis
    service: Service
    board: Board


class Interrupt:
    """Notes the first Ctrl-C. The second Ctrl-C ends the demo at once."""

    noted = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.noted:
            logging.disable()  # py4j logs the interrupted call
            raise KeyboardInterrupt
        self.noted = True


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help=f"days to write, 1 to {MOST_DAYS} (default: {DAYS})")
    parser.add_argument("--rows", type=int, help="flights in the timetable (default: all flights of the year)")
    parser.add_argument("--keep", action="store_true", help="keep the servers running until Ctrl-C")
    options = parser.parse_args()
    if not 1 <= options.days <= MOST_DAYS:
        parser.error(f"--days: expected 1 to {MOST_DAYS}, got {options.days}")
    signal.signal(signal.SIGTERM, _exit)
    try:
        equal = demonstrate(options.days, options.rows, keep=options.keep)
    except (ServerError, flights.DataError, JavaNotFoundError, SparkStartError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if equal else 1)


def demonstrate(days: int, rows: int | None, *, keep: bool) -> bool:
    """Run the whole demo. Return True if every sink holds what the source holds."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    RUNS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=RUNS, prefix="", ignore_cleanup_errors=True)))
        stage = _start(stack, console, folder, days, rows)
        interrupt = Interrupt()
        signal.signal(signal.SIGINT, interrupt)
        loads = _first_loads(stage)
        _suggest(stage)
        latencies = _follow(stage, days, interrupt)
        if not keep:
            stage.service.stop()
        equal = _compare(stage, loads, latencies)
        if keep:
            console.print(f"The servers stay up; the status page is {stage.service.url}/. Ctrl-C ends them.")
            interrupt.noted = False
            while not interrupt.noted:
                time.sleep(0.2)
        return equal


def _start(stack: ExitStack, console: Console, folder: Path, days: int, rows: int | None) -> Stage:
    csv = flights.write_csv(folder)
    console.print(f"data            {flights.PACKAGE} {flights.VERSION}, the flights that left New York in 2013")
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(Elasticsearch.start, heap="512m")
        redis = stack.enter_context(Redis.start())
        try:
            spark = stack.enter_context(session(folder, memory="1g"))
            board = Board(spark, csv, folder / TABLE, days=days, rows=rows)
            rows = board.create()
        finally:
            elasticsearch = stack.enter_context(starting.result())
    console.print(f"source table    {_short(folder / TABLE)}: the timetable, {rows:,} flights")
    console.print(f"servers         Elasticsearch {elasticsearch.url}, Redis {redis.url}")
    service = stack.enter_context(Service(folder, elasticsearch, redis).started())
    console.print(f"service         cdf-replicator run, process {service.pid}; its log: {_short(service.log)}")
    console.print(f"[bold]status page     {service.url}/[/]")
    return Stage(console, folder, spark, elasticsearch, redis, service, board)


def _first_loads(stage: Stage) -> dict[str, FirstLoad]:
    """Wait for the first load of every sink; return it by sink."""
    stage.console.print("\nfirst load of all flights, into all sinks at once")
    loads = {}
    for sink, load in stage.service.first_loads():
        loads[sink] = load
        stage.console.print(
            f"  {SINKS[sink]:<14}{load.rows:,} rows in {load.seconds:.1f} s, written at {load.rate:,.0f} rows/s"
        )
    return loads


def _follow(stage: Stage, days: int, interrupt: Interrupt) -> dict[str, list[float]]:
    """Write day after day until all are written or the user interrupts; return the latencies by sink."""
    stage.console.print(f"what happened, day by day, a commit every {COMMIT_SECONDS} s or slower")
    log = stage.folder / TABLE / "_delta_log"
    search = Probe(log, elasticsearch_updated_at(stage.elasticsearch.url))
    cache = Probe(log, redis_updated_at(stage.redis.url))
    with search, cache:
        for number in range(days):
            changes: Counter[str] = Counter()
            for commit in stage.board.commits(number):
                next_at = time.monotonic() + COMMIT_SECONDS
                search.expect(commit)
                cache.expect(commit)
                commit.write()
                changes.update(commit.changes)
                time.sleep(max(0, next_at - time.monotonic()))
                lags = stage.service.lags()
                if interrupt.noted:
                    break
            found = ", ".join(f"{count} {what}" for what, count in changes.items() if count)
            behind = max(lags.values())
            stage.console.print(
                f"  {FIRST_DAY + timedelta(days=number):%d %B}  version {commit.version:>3}: {found}; behind: {behind:.1f} s",
                soft_wrap=True,
            )
            if interrupt.noted:
                stage.console.print("interrupted: the service delivers the rest, then all is compared")
                break
        stage.service.await_delivered(stage.board.latest_version())
        return {"search": search.seconds(), "cache": cache.seconds()}


def _suggest(stage: Stage) -> None:
    """Print what to try in another terminal, with programs that `make setup` installed."""
    bundled = Path(sys.executable).with_name("redis-cli")
    client = _short(bundled) if bundled.exists() else "redis-cli"
    command = _short(Path(sys.executable).with_name("cdf-replicator"))
    stage.console.print("\nTo try from this folder, in a browser and in another terminal:")
    for line in (
        f"{stage.elasticsearch.url}/{TABLE}/_search?q=dest:BOS+AND+dep_delay:>60&size=3&pretty",
        f"{client} -p {stage.redis.port} GET '{TABLE}:{stage.board.first_key()}'",
        f"{command} changes {_short(stage.folder / TABLE)} --from 1 --limit 20",
    ):
        stage.console.print(f"  {line}", soft_wrap=True, markup=False)
    stage.console.print()


def _compare(stage: Stage, loads: dict[str, FirstLoad], latencies: dict[str, list[float]]) -> bool:
    stage.console.print("comparing whole rows, key by key")
    comparison = Comparison(stage.spark, stage.folder, stage.folder / TABLE, stage.folder / "audit" / TABLE)
    verdicts = {
        "audit": comparison.audit(),
        "search": comparison.elasticsearch(stage.elasticsearch.url),
        "cache": comparison.redis(stage.redis.url),
    }
    results = [SinkResult(name, verdicts[sink], loads[sink], latencies.get(sink, ())) for sink, name in SINKS.items()]
    return report(stage.console, comparison.source_rows(), results, comparison.changes())


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _short(path: Path) -> str:
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)


if __name__ == "__main__":
    main()
