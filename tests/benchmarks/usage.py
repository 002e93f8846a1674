"""Processor time and memory of process trees, while something runs."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EVERY_SECONDS = 0.2


@dataclass
class Usage:
    """``cpu_seconds`` used between begin and end, by what lived at the end or was reaped; ``peak_rss`` in bytes."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss: int = 0


def tree(roots: Sequence[int]) -> list[psutil.Process]:
    """The processes of these roots, each once, with all their children."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def cpu_seconds(roots: Sequence[int]) -> dict[int, float]:
    """Return the processor seconds of each process of the trees since its start, including its ended children."""
    found = {}
    for process in tree(roots):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[process.pid] = times.user + times.system + times.children_user + times.children_system
    return found


def rss(roots: Sequence[int]) -> int:
    """Bytes of memory that the trees hold now."""
    total = 0
    for process in tree(roots):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@contextmanager
def measured(roots: Sequence[int]) -> Iterator[Usage]:
    """Fill the usage in at the end."""
    usage, over = Usage(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            usage.peak_rss = max(usage.peak_rss, rss(roots))
            over.wait(EVERY_SECONDS)

    watcher = threading.Thread(target=watch)
    before, start = cpu_seconds(roots), time.monotonic()
    watcher.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - start
        # What has ended meanwhile is left out: its parent need not have waited for it (idle Python workers of Spark).
        usage.cpu_seconds = sum(total - before.get(pid, 0.0) for pid, total in cpu_seconds(roots).items())
        over.set()
        watcher.join()
