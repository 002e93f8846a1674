"""One writer per state path: a numbered lease, whose highest number (token) identifies the lease holder.

    <state path>/leases/<token>.json    host, pid, since and url of the holder; rewritten as a heartbeat, locked if local

A holder on a local folder releases its file lock when its process ends, and the next instance takes the lease at once. A
paused or disconnected holder keeps the lock, and an object store has no locks. A standby that sees no heartbeat for
``SILENT_SECONDS`` therefore takes the next token. The old holder ends when it finds a higher token, and sinks refuse its
pending writes by the token (``RouteSpec.fence``).
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
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdf_replicator.state import lease_file
from cdf_replicator.state.lease_file import NONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdf_replicator.state.lease_file import LeaseFile
    from cdf_replicator.state.storage_path import StoragePath

log = structlog.get_logger(__name__)

SILENT_SECONDS: Final = 15.0
"""A standby takes over from a holder without a heartbeat for this time."""
LOOK_SECONDS: Final = 0.5
REMOTE_LOOK_SECONDS: Final = 2.0
RELEASE_SECONDS: Final = 5.0


class LeaseHeldError(Exception):
    """Another process holds the lease; ``holder`` holds its host, pid, since and url."""

    def __init__(self, root: StoragePath, holder: dict[str, Any]) -> None:
        who = ", ".join(f"{name} {value}" for name, value in holder.items()) or "another process"
        super().__init__(f"the state path {root} is in use ({who}). Stop it first, or name another CDF_STATE_PATH.")
        self.holder = holder


class Lease:
    """A lease, held from ``acquire`` until ``release``, the end of the process, or a higher ``token``."""

    def __init__(self, file: LeaseFile, root: StoragePath, token: int) -> None:
        self._file = file
        self._root = root
        self._over = threading.Event()
        self._keeping: threading.Thread | None = None
        self.token = token

    @classmethod
    def acquire(cls, root: StoragePath, *, url: str | None = None) -> Lease:
        """Take the lease; raise ``LeaseHeldError`` if another process holds it.

        A file lock shows that immediately. On an object store the method waits for a heartbeat.
        """
        while True:
            token = _newest(root)
            if (found := _read_holder(root, token)) is not None and (root.is_local or _sends_heartbeats(root, token)):
                raise LeaseHeldError(root, found)
            if (lease := _take(root, token, url)) is not None:
                return lease

    @classmethod
    def wait(
        cls,
        root: StoragePath,
        on_holder: Callable[[dict[str, Any]], None],
        wait: Callable[[float], bool],
        url: str | None,
        now: Callable[[], float] = time.monotonic,
    ) -> Lease | None:
        """Take the lease once its holder has released it or its heartbeat has stopped; return None if ``wait`` says so.

        ``on_holder`` is called once per holder with its host, pid, since and url. ``wait`` waits for the given seconds, measured by
        the clock ``now``, and returns whether to give up. ``url`` is the address that this instance writes into the lease.
        """
        monitor = HeartbeatMonitor(root, now)
        pause = LOOK_SECONDS if root.is_local else REMOTE_LOOK_SECONDS
        while True:
            with suppress(OSError):  # while the state path can't be read or written, neither side can act
                found, new = monitor.poll()
                if found is not None and new:
                    on_holder(found)
                free = found is None or monitor.expired
                if free and (lease := _take(root, monitor.token, url)) is not None:
                    return lease
            if wait(pause):
                return None

    def keep(self, lost: Callable[[], None]) -> None:
        """Start the heartbeat thread; it calls ``lost`` if another process has taken a higher token."""
        self._keeping = threading.Thread(target=self._keep, args=(lost,), name="lease", daemon=True)
        self._keeping.start()

    @property
    def held(self) -> bool:
        """True while no process has taken a higher token; raise ``OSError`` if the state path can't be read."""
        return _newest(self._root) == self.token

    def release(self) -> None:
        """Release the lease; give up after ``RELEASE_SECONDS`` if the store does not answer.

        The heartbeat stops in both cases, so that a standby can take over.
        """
        self._over.set()
        if self._keeping is not None:
            self._keeping.join(RELEASE_SECONDS)
        last = threading.Thread(target=self._file.release, name="lease-release", daemon=True)
        last.start()
        last.join(RELEASE_SECONDS)

    def _keep(self, lost: Callable[[], None]) -> None:
        while not self._over.wait(self._file.touch_seconds):
            try:
                if not self.held:
                    lost()
                    return
                self._file.heartbeat()
            except OSError:  # the next write to the full or read-only disk reports the error
                continue
            except Exception:
                log.exception("no heartbeat of the lease")


def holder(root: StoragePath) -> dict[str, Any] | None:
    """Return host, pid, since and url of the lease holder; None if the lease is free, also after a crash of its holder."""
    return _read_holder(root, _newest(root))


def is_held(root: StoragePath, token: int) -> bool:
    """Return whether the holder of this token still holds the lease."""
    return _newest(root) == token and _read_holder(root, token) is not None


class HeartbeatMonitor:
    """Watches the lease holder's heartbeat with the local monotonic clock; never compares clocks across hosts."""

    def __init__(self, root: StoragePath, now: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._now = now
        self._heartbeat_at: float | None = None
        self._since = self._polled_at = now()
        self.token = -1

    def poll(self) -> tuple[dict[str, Any] | None, bool]:
        """Return the present holder's host, pid, since and url, and whether the holder has changed since the last call."""
        token = _newest(self._root)
        found = _read_holder(self._root, token)
        new, self.token = token != self.token, token
        heartbeat_at = None if found is None else _heartbeat_at(self._root, token)
        now = self._now()
        # The store did not answer here, and perhaps not to the holder.
        blind = now - self._polled_at > SILENT_SECONDS / 3
        if new or blind or heartbeat_at != self._heartbeat_at:
            self._heartbeat_at, self._since = heartbeat_at, now
        self._polled_at = now
        return found, new

    @property
    def expired(self) -> bool:
        return self._now() - self._since > SILENT_SECONDS


def _newest(root: StoragePath) -> int:
    """Return the highest token; 0 if there is none."""
    return max(_tokens(root), default=0)


def _tokens(root: StoragePath) -> list[int]:
    names = (file.name.removesuffix(".json") for file in (root / "leases").glob("[0-9]*.json"))
    return [int(name) for name in names if name.isdecimal()]


def _read_holder(root: StoragePath, token: int) -> dict[str, Any] | None:
    """Return what the token's holder wrote; None if it has ended."""
    return lease_file.read_holder(_path(root, token)) if token else None


def _heartbeat_at(root: StoragePath, token: int) -> float:
    try:
        return _path(root, token).modified_at()
    except OSError:
        return 0.0


def _sends_heartbeats(root: StoragePath, token: int) -> bool:
    """Return whether the holder of this token is alive.

    A live holder sends heartbeats, has not released the lease, and has the highest token.
    """
    monitor, first = HeartbeatMonitor(root), None
    while not monitor.expired:
        found, _ = monitor.poll()
        if found is None:
            return False
        seen = monitor.token, _heartbeat_at(root, token)
        if first is not None and seen != first:
            return True
        first = seen
        time.sleep(LOOK_SECONDS)
    return False


def _take(root: StoragePath, newest: int, url: str | None) -> Lease | None:
    """Take a token above the newest; return None if another process takes one at the same time.

    The token is the time in seconds since 1970. After a restore of the state path from a backup, it is thus still higher than
    the tokens that the sinks have recorded.
    """
    token = max(newest + 1, int(time.time()))
    path = _path(root, token)
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "url": url}
    text = json.dumps({name: value for name, value in content.items() if value is not None} | {NONCE: uuid.uuid4().hex})
    file = lease_file.create(path, text)
    if file is None:
        return None
    if any(newest < other != token for other in _tokens(root)):  # another process took a lower token meanwhile
        file.abort()
        return None
    for older in _tokens(root):
        if older < token:
            _path(root, older).unlink(missing_ok=True)
    return Lease(file, root, token)


def _path(root: StoragePath, token: int) -> StoragePath:
    return root / "leases" / f"{token:010d}.json"
