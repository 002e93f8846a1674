"""One writer per state path: an exclusive lock that the kernel releases however the holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class LeaseHeldError(Exception):
    """Another process writes to this state path. ``holder``: what it said of itself (host, pid, since, url)."""

    def __init__(self, root: Path, holder: dict[str, Any]) -> None:
        who = ", ".join(f"{name} {value}" for name, value in holder.items()) or "another process"
        super().__init__(f"the state path {root} is in use ({who}). Stop it first, or name another CDF_STATE_PATH.")
        self.holder = holder


class Lease:
    """Held from ``acquire`` until ``release`` or the end of the process."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @classmethod
    def acquire(cls, root: Path, *, url: str | None = None) -> Lease:
        """Take the lease at once; raises ``LeaseHeldError``."""
        file = (root / "lease").open("a+", encoding="utf-8")
        while not _locked(file, fcntl.LOCK_EX):
            if (said := holder(root)) is not None:
                file.close()
                raise LeaseHeldError(root, said)
            time.sleep(0.01)  # somebody only asked who holds it
        file.truncate(0)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        said = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "url": url}
        json.dump({name: value for name, value in said.items() if value is not None}, file)
        file.flush()
        return cls(file)

    def release(self) -> None:
        self._file.truncate(0)
        self._file.close()


def holder(root: Path) -> dict[str, Any] | None:
    """Return what the holder said of itself; None when nobody holds the lease, whatever a killed one has left there."""
    try:
        file = (root / "lease").open(encoding="utf-8")
    except OSError:
        return None
    with file:
        if _locked(file, fcntl.LOCK_SH):
            return None
        try:
            return dict(json.load(file))
        except ValueError:
            return {}


def _locked(file: IO[str], how: int) -> bool:
    """Lock the file for as long as it is open, if nobody else has."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
