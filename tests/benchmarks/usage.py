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
    """``cpu_seconds`` used between begin and end; ``peak_rss`` in bytes."""

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


def sampled(roots: Sequence[int]) -> tuple[dict[int, float], int]:
    """Return the processor seconds of each process of the trees, with its ended children, and the memory of all in bytes.

    The memory of a new process is left out: until it executes its program, it shows its parent's memory.
    """
    cpu: dict[int, float] = {}
    rss = 0
    for process in tree(roots):
        try:
            times, memory = process.cpu_times(), process.memory_info()
        except psutil.NoSuchProcess:
            continue
        cpu[process.pid] = times.user + times.system + times.children_user + times.children_system
        rss += memory.rss if time.time() - process.create_time() > EVERY_SECONDS else 0
    return cpu, rss


@contextmanager
def measured(roots: Sequence[int]) -> Iterator[Usage]:
    """Fill the usage in; the processes may end within."""
    usage, over = Usage(), threading.Event()
    before, start = sampled(roots)[0], time.monotonic()

    def sample() -> None:
        cpu, rss = sampled(roots)
        used = sum(total - before.get(pid, 0.0) for pid, total in cpu.items())
        # A process that has ended is left out, unless its parent has waited for it; an earlier sample has its time.
        usage.cpu_seconds, usage.peak_rss = max(usage.cpu_seconds, used), max(usage.peak_rss, rss)

    def watch() -> None:
        while not over.wait(EVERY_SECONDS):
            sample()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield usage
    finally:
        usage.seconds = time.monotonic() - start
        over.set()
        watcher.join()
        sample()
