"""One folder per run under `.cache/demo`, gone afterwards; one that a killed run has left behind goes at the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.servers.server import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = CACHE / "demo"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder that is locked for as long as this process lives."""
    RUNS.mkdir(parents=True, exist_ok=True)
    with _locked(RUNS):
        for leftover in RUNS.iterdir():
            _remove_unless_used(leftover)
        folder = Path(tempfile.mkdtemp(dir=RUNS, prefix=""))
        lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_unless_used(folder: Path) -> None:
    with suppress(BlockingIOError):
        lock = _lock(folder, wait=False)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path, *, wait: bool = True) -> int:
    """Lock a folder until the returned descriptor is closed. Raises BlockingIOError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
