"""One writer per state path: a numbered lease, of which the highest number writes.

    <state path>/leases/<token>.json    what the holder said of itself, touched as long as it lives; a file is locked too

A holder of a local folder that dies leaves its lock behind, so the next takes over at once. One that is paused, or cut off,
keeps it, and an object store knows no locks: a standby that has not seen the holder touch its file for a while takes the next
number all the same. Whoever wakes up then finds a higher number than its own and ends; what it has under way, the sinks
refuse by the number (``RouteSpec.fence``).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator import lease_mark
from cdf_replicator.lease_mark import NONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdf_replicator.lease_mark import Mark
    from cdf_replicator.remote_path import RemotePath

SILENT_SECONDS: Final = 15.0
"""A holder that has not touched its file for so long, while a standby looked on, is taken for paused or cut off."""
LOOK_SECONDS: Final = 0.5
REMOTE_LOOK_SECONDS: Final = 2.0
RELEASE_SECONDS: Final = 5.0


class LeaseHeldError(Exception):
    """Another process writes to this state path. ``holder``: what it said of itself (host, pid, since, url)."""

    def __init__(self, root: Path | RemotePath, holder: dict[str, Any]) -> None:
        who = ", ".join(f"{name} {value}" for name, value in holder.items()) or "another process"
        super().__init__(f"the state path {root} is in use ({who}). Stop it first, or name another CDF_STATE_PATH.")
        self.holder = holder


class Lease:
    """Held from ``acquire`` until ``release``, the end of the process, or a higher ``token``."""

    def __init__(self, mark: Mark, root: Path | RemotePath, token: int) -> None:
        self._mark = mark
        self._root = root
        self._over = threading.Event()
        self._keeping: threading.Thread | None = None
        self.token = token

    @classmethod
    def acquire(cls, root: Path | RemotePath, *, url: str | None = None) -> Lease:
        """Take the lease, at once where a lock tells that nobody holds it; raises ``LeaseHeldError``."""
        while True:
            token = _newest(root)
            if (said := _said(root, token)) is not None and (isinstance(root, Path) or _touches(root, token)):
                raise LeaseHeldError(root, said)
            if (lease := _taken(root, token, url)) is not None:
                return lease

    @classmethod
    def wait(
        cls,
        root: Path | RemotePath,
        told: Callable[[dict[str, Any]], None],
        over: Callable[[float], bool],
        url: str | None,
        now: Callable[[], float] = time.monotonic,
    ) -> Lease | None:
        """Take the lease once its holder has gone or fallen silent; None if that was ``over`` first.

        ``told``: called with what a holder says of itself, once for each. ``over``: waits so many seconds, by the clock ``now``.
        """
        watched = Watched(root, now)
        pause = LOOK_SECONDS if isinstance(root, Path) else REMOTE_LOOK_SECONDS
        while True:
            with suppress(OSError):  # a state path that can't be read or written now keeps both waiting
                said, new = watched.look()
                if said is not None and new:
                    told(said)
                free = said is None or watched.silent
                if free and (lease := _taken(root, watched.token, url)) is not None:
                    return lease
            if over(pause):
                return None

    def keep(self, lost: Callable[[], None]) -> None:
        """Touch the file from now on, in a thread; ``lost`` is called there once a higher number was taken."""
        self._keeping = threading.Thread(target=self._keep, args=(lost,), name="lease", daemon=True)
        self._keeping.start()

    @property
    def held(self) -> bool:
        """Whether nobody has taken a higher number."""
        return _newest(self._root) == self.token

    def release(self) -> None:
        """Let the next one follow at once; a store that does not answer is not waited for, and the mark then falls silent."""
        self._over.set()
        if self._keeping is not None:
            self._keeping.join(RELEASE_SECONDS)
        last = threading.Thread(target=self._mark.release, name="lease-release", daemon=True)
        last.start()
        last.join(RELEASE_SECONDS)

    def _keep(self, lost: Callable[[], None]) -> None:
        while not self._over.wait(self._mark.touch_seconds):
            with suppress(OSError):  # a full or read-only disk is the next write's trouble, and told there
                if not self.held:
                    lost()
                    return
                self._mark.touch()


def holder(root: Path | RemotePath) -> dict[str, Any] | None:
    """Return what the holder said of itself; None when nobody holds the lease, whatever a killed one has left there."""
    return _said(root, _newest(root))


class Watched:
    """What an onlooker has seen of the holder. Its own clock counts, and that something moved, never the holder's time."""

    def __init__(self, root: Path | RemotePath, now: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._now = now
        self._touched: float | None = None
        self._since = self._looked = now()
        self.token = -1

    def look(self) -> tuple[dict[str, Any] | None, bool]:
        """What the present holder says, and whether it is another than last time."""
        token = _newest(self._root)
        said = _said(self._root, token)
        new, self.token = token != self.token, token
        touched = None if said is None else _touched(self._root, token)
        now = self._now()
        blind = now - self._looked > SILENT_SECONDS / 3  # the store was away for us, and so perhaps for the holder
        if new or blind or touched != self._touched:
            self._touched, self._since = touched, now
        self._looked = now
        return said, new

    @property
    def silent(self) -> bool:
        return self._now() - self._since > SILENT_SECONDS


def _newest(root: Path | RemotePath) -> int:
    """The highest token there is; 0 before the first."""
    return max(_tokens(root), default=0)


def _tokens(root: Path | RemotePath) -> list[int]:
    return [int(file.stem) for file in (root / "leases").glob("[0-9]*.json")]


def _said(root: Path | RemotePath, token: int) -> dict[str, Any] | None:
    """What its holder said; None if it has none."""
    return lease_mark.said(_path(root, token)) if token else None


def _touched(root: Path | RemotePath, token: int) -> float:
    try:
        return _path(root, token).stat().st_mtime
    except OSError:
        return 0.0


def _touches(root: RemotePath, token: int) -> bool:
    """Whether the holder lives: it touches what it left there, does not say that it has ended, and nobody follows it."""
    watched, first = Watched(root), None
    while not watched.silent:
        said, _ = watched.look()
        if said is None:
            return False
        seen = watched.token, _touched(root, token)
        if first is not None and seen != first:
            return True
        first = seen
        time.sleep(LOOK_SECONDS)
    return False


def _taken(root: Path | RemotePath, newest: int, url: str | None) -> Lease | None:
    """Take a number above the newest, if nobody has.

    Seconds since 1970: a state path that was brought back from a copy goes on above what its sinks have been told.
    """
    token = max(newest + 1, int(time.time()))
    path = _path(root, token)
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    said = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "url": url}
    text = json.dumps({name: value for name, value in said.items() if value is not None} | {NONCE: uuid.uuid4().hex})
    mark = lease_mark.create(path, text)
    if mark is None:
        return None
    if any(newest < other != token for other in _tokens(root)):  # somebody took one meanwhile: a lower one came first
        mark.withdraw()
        return None
    for older in _tokens(root):
        if older < token:
            _path(root, older).unlink(missing_ok=True)
    return Lease(mark, root, token)


def _path(root: Path | RemotePath, token: int) -> Path | RemotePath:
    return root / "leases" / f"{token:010d}.json"
