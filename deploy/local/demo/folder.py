"""Create a folder per run under `.cache/demo` and remove it at the end.

The next start removes the folder of a killed run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local.servers.server import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = CACHE / "demo"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Yield a folder that this process locks until it ends; first remove the folders that no process locks."""
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
    """Lock a folder until the caller closes the returned descriptor.

    Raises BlockingIOError if `wait` is false and another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
