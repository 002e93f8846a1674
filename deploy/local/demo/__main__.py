"""Start the servers, a source and the service; measure a first load and the latency of commits; compare every row."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cdf_replicator.spark import SparkStartError
from deploy.local.demo import flights, sinks
from deploy.local.demo.board import FIRST_DAY, MOST_DAYS, TABLE, Board, session
from deploy.local.demo.service import SINKS, TYPES, FirstLoad, Service
from deploy.local.servers import Elasticsearch, OpenSearch, Postgres, Redis, ServerError
from deploy.local.servers.server import CACHE, PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DAYS = 7
COMMIT_SECONDS = 4
"""Shortest time from a commit to the start of the next."""
RUNS = CACHE / "demo"
SERVERS: dict[str, Callable[[bool], Elasticsearch | OpenSearch | Postgres | Redis]] = {
    "search": lambda long_lived: Elasticsearch.start(long_lived=long_lived),
    "os": lambda long_lived: OpenSearch.start(long_lived=long_lived),
    "cache": lambda _: Redis.start(),
    "db": lambda _: Postgres.start(),
}
"""Functions that start a server by sink. Their argument says whether the server indexes for long, as with all flights."""
NAMES = {TYPES[sink][0]: sink for sink in SERVERS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--days", type=int, default=DAYS, help=f"days to write, 1 to {MOST_DAYS} (default: {DAYS})")
    parser.add_argument("--rows", type=int, help="flights in the timetable (default: all flights of the year)")
    parser.add_argument("--keep", action="store_true", help="keep the servers running until Ctrl-C")
    default = "elasticsearch,redis"
    parser.add_argument(
        "--sinks", default=default, help=f"beside the audit, of: {', '.join(NAMES)} (default: {default})"
    )
    options = parser.parse_args()
    if unknown := set(wanted := options.sinks.split(",")) - set(NAMES):
        parser.error(f"--sinks: expected some of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    if not 1 <= options.days <= MOST_DAYS:
        parser.error(f"--days: expected 1 to {MOST_DAYS}, got {options.days}")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.disable()  # py4j logs a call that Ctrl-C interrupts
    try:
        equal = demonstrate(options.days, options.rows, [NAMES[name] for name in wanted], keep=options.keep)
    except (ServerError, flights.DataError, SparkStartError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if equal else 1)


def demonstrate(days: int, rows: int | None, chosen: Sequence[str], *, keep: bool) -> bool:
    """Run the whole demo. Return True if every sink holds what the source holds."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    RUNS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=RUNS, prefix="", ignore_cleanup_errors=True)))
        csv = flights.write_csv(folder)
        console.print(f"data            {flights.PACKAGE} {flights.VERSION}, the flights that left New York in 2013")
        urls = {sink: stack.enter_context(SERVERS[sink](rows is None)).url for sink in chosen}
        console.print("servers         " + ", ".join(f"{SINKS[sink]} {url}" for sink, url in urls.items()))
        spark = stack.enter_context(session(folder, memory="1g"))
        board = Board(spark, csv, folder / TABLE, days=days, rows=rows)
        console.print(f"source table    {_short(folder / TABLE)}: the timetable, {board.create():,} flights")
        service = stack.enter_context(Service(folder, urls).started())
        console.print(f"service         cdf-replicator run, process {service.pid}; its log: {_short(service.log)}")
        console.print(f"[bold]status page     {service.url}/[/]")
        loads = _first_loads(console, service)
        console.print("\nTo try from this folder, in a browser and in another terminal:")
        for sink, url in urls.items():
            console.print(f"  {_example(sink, url, board.first_key())}", markup=False)
        console.print(f"  {_program('cdf-replicator')} changes {_short(folder / TABLE)} --from 1 --limit 20\n")
        readers = {sink: sinks.READERS[sink](url) for sink, url in urls.items()}
        version, latencies = _follow(console, board, days, readers)
        service.await_delivered(version)
        console.print("comparing whole rows, key by key\n")
        comparison = sinks.Comparison(spark, folder, folder / TABLE, folder / "audit" / TABLE)
        results = {"audit": comparison.audit(), **{name: comparison.sink(name, readers[name]) for name in readers}}
        console.print(_table(comparison.source_rows(), loads, latencies, results))
        equal = _conclude(console, results, *comparison.changes())
        console.print(f"\nthe same by `cdf-replicator verify {TABLE}`, while the service runs\n")
        verified, output = service.verify()
        console.print(output, markup=False)
        if keep:
            console.print(f"The servers stay up; the status page is {service.url}/. Ctrl-C ends them.")
            with suppress(KeyboardInterrupt):
                signal.pause()
        return equal and verified


def _first_loads(console: Console, service: Service) -> dict[str, FirstLoad]:
    console.print("\nfirst load of all flights, into all sinks at once")
    loads = {}
    for sink, load in service.first_loads():
        loads[sink] = load
        written = f"written at {load.rate:,.0f} rows/s"
        console.print(f"  {SINKS[sink]:<14}{load.rows:,} rows in {load.seconds:.1f} s, {written}")
    return loads


def _follow(
    console: Console, board: Board, days: int, readers: Mapping[str, sinks.Reader]
) -> tuple[int, Mapping[str, Sequence[float]]]:
    """Write day after day; return the last version, and the seconds from each commit to its visibility, by sink."""
    console.print("what happened, day by day")
    latencies: dict[str, list[float]] = defaultdict(list)
    for number in range(days):
        changes: Counter[str] = Counter()
        for commit in board.write_day(number):
            changes.update(commit.changes)
            for sink, seconds in sinks.visible_seconds(readers, commit).items():
                latencies[sink].append(seconds)
            time.sleep(max(0, commit.committed_at + COMMIT_SECONDS - time.time()))
        found = ", ".join(f"{count} {what}" for what, count in changes.items() if count)
        console.print(f"  {FIRST_DAY + timedelta(days=number):%d %B}  version {commit.version:>3}: {found}")
    return commit.version, latencies


def _table(
    rows: int,
    loads: Mapping[str, FirstLoad],
    latencies: Mapping[str, Sequence[float]],
    results: Mapping[str, sinks.Result],
) -> Table:
    commits = max(map(len, latencies.values()))
    title = f"{loads['audit'].rows:,} rows, then {commits} commits; the source table now has {rows:,} rows"
    table = Table(title=title)
    table.add_column("sink")
    for heading in ("first load", "rows/s written", "visible: p50", "p95", "holds", "differing keys"):
        table.add_column(heading, justify="right")
    for sink, result in results.items():
        load, seconds = loads[sink], latencies.get(sink, ())
        ranked = statistics.quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else []
        visible = [f"{ranked[place]:.2f} s" for place in (9, 18)] if ranked else ["-", "-"]
        held = f"{result.rows:,}", str(result.differing)
        table.add_row(SINKS[sink], f"{load.seconds:.1f} s", f"{load.rate:,.0f}", *visible, *held)
    return table


def _conclude(console: Console, results: Mapping[str, sinks.Result], feed: Mapping[str, int], lacking: int) -> bool:
    """Print what the comparisons found. Return True if they found no difference."""
    console.print(
        "First load: into all sinks at once, with checks. Visible: from a commit until a read by key shows its row."
    )
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    console.print(f"Source, service and servers shared {os.cpu_count()} cores; load averages at the end: {load}.")
    for sink, result in results.items():
        for example in result.examples:
            console.print(f"{SINKS[sink]} differs at {example}")
    kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(feed.items()))
    if lacking:
        console.print(f"[bold red]{lacking} changes differ[/] between the audit table and the change feed ({kinds}).")
    else:
        console.print(f"The audit table has each change of the feed once: {kinds}.")
    differing = sum(result.differing for result in results.values())
    *others, last = (SINKS[sink] for sink in results)
    names = f"{', '.join(others)} and {last}"
    style, end = ("bold red", "see above") if differing else ("bold green", f"{names} hold what the source table holds")
    console.print(f"[{style}]{differing} differing keys[/]: {end}.")
    return differing == 0 and lacking == 0


def _example(sink: str, url: str, key: str) -> str:
    """Return a command or an address that shows rows of a sink."""
    search = f"{url}/{TABLE}/_search?q=dest:BOS+AND+dep_delay:>60&size=3&pretty"
    return {
        "search": search,
        "os": search,
        "cache": f"{_program('redis-cli')} -u {url} GET '{TABLE}:{key}'",
        "db": f"psql {url} -c \"SELECT * FROM {TABLE} WHERE dest = 'BOS' AND dep_delay > 60 LIMIT 3\"",
    }[sink]


def _program(name: str) -> str:
    """Return the path of a program that `make setup` installed, otherwise its name."""
    installed = Path(sys.executable).with_name(name)
    return _short(installed) if installed.exists() else name


def _short(path: Path) -> str:
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)


if __name__ == "__main__":
    main()
