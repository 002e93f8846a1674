"""Write the tables of docs/scale.md from the results of `make bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docs.generate.benchmarks_page import RESULTS
from tests.benchmarks.kept import Kept
from tests.benchmarks.report import MIB, MILLION, markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Rows = Sequence[Sequence[str]]

ONCE = ("table", "files", "rows", "micro-batches", "rows/s", "seconds", "CPU s", "peak memory, MiB")


def sizes() -> str:
    found = _seen("sizes")
    kinds = {"rows": found["rows"], "files": found["files"], "commits": [found["commits"]]}
    return markdown(ONCE, [_once(kind, once) for kind, several in kinds.items() for once in several])


def _once(kind: str, once: Mapping[str, Any]) -> Sequence[str]:
    return (
        f"many {kind}",
        f"{once['files']:,}",
        f"{once['rows']:,}",
        f"{once['batches']:,}",
        f"{once['rows'] / once['delivery_seconds']:,.0f}",
        f"{once['seconds']:,.0f}",
        f"{once['cpu_seconds']:,.0f}",
        f"{once['peak_rss'] / MIB:,.0f}",
    )


def works() -> str:
    rows = [
        (
            f"{work['files']:,}",
            f"{work['rows']:,}",
            f"{work['driver_seconds']:.1f}",
            f"{work['executor_seconds']:.1f}",
            f"{work['executor_seconds'] / work['rows'] * MILLION:.1f}",
        )
        for work in _seen("executors")["works"]
    ]
    columns = "tasks", "rows", "driver, CPU s", "executors, CPU s", "executors, CPU s per 1M rows"
    return markdown(columns, rows)


def rates() -> str:
    found = _seen("executors")["rates"]
    alone = found[0]["rows_a_second"]
    rows = [
        (str(rate["executors"]), f"{rate['rows_a_second']:,.0f}", f"{rate['rows_a_second'] / alone:.1f} x")
        for rate in found
    ]
    return markdown(("executors", "rows/s", "of one executor"), rows)


def routes() -> str:
    rows = [
        (
            str(idle["routes"]),
            f"{idle['start_seconds']:.0f}",
            f"{idle['cpu_share']:.1%}",
            f"{(idle['driver_rss'] + idle['jvm_rss']) / MIB:,.0f}",
            f"{idle['scrape_seconds']:.2f}",
        )
        for idle in (_seen("idle"), _seen("many"))
    ]
    columns = "idle routes", "start, s", "CPU, of one core", "driver and JVM, MiB", "scrape of /metrics, s"
    return markdown(columns, rows)


def _seen(part: str) -> Any:
    return Kept.read(RESULTS).seen[part]
