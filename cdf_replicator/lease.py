"""One writer per state path: an exclusive lock that the kernel releases however the holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
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
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise LeaseHeldError(root, holder(root)) from error
        file.truncate(0)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        said = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "url": url}
        json.dump({name: value for name, value in said.items() if value is not None}, file)
        file.flush()
        return cls(file)

    def release(self) -> None:
        self._file.truncate(0)
        self._file.close()


def holder(root: Path) -> dict[str, Any]:
    """Return what the holder said of itself; empty when nobody holds the lease."""
    try:
        return dict(json.loads((root / "lease").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
