"""One writer per state path: a numbered lease, of which the highest number writes.

    <state path>/leases/<token>.json    what the holder said of itself; the file's lock is held as long as it lives

A holder that dies leaves its lock behind, so the next takes over at once. One that is paused, or cut off, keeps it: a
standby that has not seen it touch its file for a while takes the next number all the same. Whoever wakes up then finds a
higher number than its own and ends; what it has under way, the sinks refuse by the number (``RouteSpec.fence``).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOUCH_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 15.0
"""A holder that has not touched its file for so long, while a standby looked on, is taken for paused or cut off."""
LOOK_SECONDS: Final = 0.5


class LeaseHeldError(Exception):
    """Another process writes to this state path. ``holder``: what it said of itself (host, pid, since, url)."""

    def __init__(self, root: Path, holder: dict[str, Any]) -> None:
        who = ", ".join(f"{name} {value}" for name, value in holder.items()) or "another process"
        super().__init__(f"the state path {root} is in use ({who}). Stop it first, or name another CDF_STATE_PATH.")
        self.holder = holder


class Lease:
    """Held from ``acquire`` until ``release``, the end of the process, or a higher ``token``."""

    def __init__(self, file: IO[str], path: Path, token: int) -> None:
        self._file = file
        self._path = path
        self._over = threading.Event()
        self._keeping: threading.Thread | None = None
        self.token = token

    @classmethod
    def acquire(cls, root: Path, *, url: str | None = None) -> Lease:
        """Take the lease at once; raises ``LeaseHeldError``."""
        while True:
            token = _newest(root)
            if (said := _said(root, token)) is not None:
                raise LeaseHeldError(root, said)
            if (lease := _taken(root, token, url)) is not None:
                return lease

    @classmethod
    def wait(
        cls, root: Path, told: Callable[[dict[str, Any]], None], over: threading.Event, url: str | None
    ) -> Lease | None:
        """Take the lease once its holder has gone or fallen silent; None if that was ``over`` first.

        ``told``: called with what a holder says of itself, once for each.
        """
        seen: tuple[int, float] | None = None
        since = 0.0
        while not over.is_set():
            token = _newest(root)
            said = _said(root, token)
            silent = False
            if said is not None:
                if seen is None or seen[0] != token:
                    told(said)
                if (now := (token, _touched(root, token))) != seen:
                    seen, since = now, time.monotonic()
                silent = time.monotonic() - since > SILENT_SECONDS
            if said is None or silent:
                with suppress(OSError):  # a state path that can't be written now keeps both waiting
                    if (lease := _taken(root, token, url)) is not None:
                        return lease
            over.wait(LOOK_SECONDS)
        return None

    def keep(self, lost: Callable[[], None]) -> None:
        """Touch the file from now on, in a thread; ``lost`` is called there once a higher number was taken."""
        self._keeping = threading.Thread(target=self._keep, args=(lost,), name="lease", daemon=True)
        self._keeping.start()

    @property
    def held(self) -> bool:
        """Whether nobody has taken a higher number."""
        return _newest(self._path.parents[1]) == self.token

    def release(self) -> None:
        self._over.set()
        if self._keeping is not None:
            self._keeping.join()
        self._file.truncate(0)
        self._file.close()

    def _keep(self, lost: Callable[[], None]) -> None:
        while not self._over.wait(TOUCH_SECONDS):
            with suppress(OSError):  # a full or read-only disk is the next write's trouble, and told there
                if not self.held:
                    lost()
                    return
                os.utime(self._file.fileno())


def holder(root: Path) -> dict[str, Any] | None:
    """Return what the holder said of itself; None when nobody holds the lease, whatever a killed one has left there."""
    return _said(root, _newest(root))


def _newest(root: Path) -> int:
    """The highest token there is; 0 before the first."""
    return max(_tokens(root), default=0)


def _tokens(root: Path) -> list[int]:
    return [int(file.stem) for file in (root / "leases").glob("[0-9]*.json")]


def _said(root: Path, token: int) -> dict[str, Any] | None:
    """What its holder said; None if it has none."""
    try:
        file = _path(root, token).open(encoding="utf-8")
    except OSError:
        return None
    with file:
        if _locked(file, fcntl.LOCK_SH):
            return None
        try:
            return dict(json.load(file))
        except ValueError:
            return {}


def _touched(root: Path, token: int) -> float:
    try:
        return _path(root, token).stat().st_mtime
    except OSError:
        return 0.0


def _taken(root: Path, newest: int, url: str | None) -> Lease | None:
    """Take a number above the newest, if nobody has: the file appears under it locked, and as a whole.

    Seconds since 1970: a state path that was brought back from a copy goes on above what its sinks have been told.
    """
    token = max(newest + 1, int(time.time()))
    path = _path(root, token)
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f".{os.getpid()}-{threading.get_ident()}.draft")
    file = draft.open("w+", encoding="utf-8")
    try:
        _locked(file, fcntl.LOCK_EX)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        said = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "url": url}
        json.dump({name: value for name, value in said.items() if value is not None}, file)
        file.flush()
        os.link(draft, path)
    except OSError as error:
        file.close()
        if isinstance(error, FileExistsError):
            return None
        raise
    finally:
        draft.unlink(missing_ok=True)
    if any(newest < other != token for other in _tokens(root)):  # somebody took one meanwhile: a lower one came first
        path.unlink()
        file.close()
        return None
    for older in _tokens(root):
        if older < token:
            _path(root, older).unlink(missing_ok=True)
    return Lease(file, path, token)


def _path(root: Path, token: int) -> Path:
    return root / "leases" / f"{token:010d}.json"


def _locked(file: IO[str], how: int) -> bool:
    """Lock the file for as long as it is open, if nobody else has."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
