"""The lease holder's heartbeat: a locked file in a local folder, or an object that it rewrites."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from cdf_replicator.state.storage_path import StoragePath

TOUCH_SECONDS: Final = 2.0
REMOTE_TOUCH_SECONDS: Final = 5.0
"""Each heartbeat is a billed request of the object store."""
_RELEASED: Final = "null"
NONCE: Final = "nonce"
"""Distinguishes two holders with equal host and pid, as containers may have."""


class LeaseFile(Protocol):
    """The heartbeat of one token; ``touch_seconds`` is its interval."""

    touch_seconds: float

    def heartbeat(self) -> None: ...

    def release(self) -> None: ...

    def abort(self) -> None:
        """Remove the heartbeat without a trace."""


def create(path: StoragePath, text: str) -> LeaseFile | None:
    """Create the heartbeat with its whole content; return None if the path exists. Raises ``OSError``."""
    if isinstance(path, LocalPath):
        return LocalLeaseFile.create(path, text)
    return RemoteLeaseFile(path, text) if path.create_text(text) else None


def read_holder(path: StoragePath) -> dict[str, Any] | None:
    """Return host, pid, since and url of the holder, or an empty dict if this process may not read them; None if it has ended.

    Raise ``OSError`` if the storage fails: that is no sign that the holder has ended.
    """
    if not isinstance(path, LocalPath):
        with suppress(FileNotFoundError):  # not written as a whole yet, or removed by the next holder
            return _parsed(path.read_text("utf-8"))
        return {}
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return None
    except PermissionError:  # another user's
        return {}
    with file:
        return None if _locked(file, fcntl.LOCK_SH) else _parsed(file.read())


class LocalLeaseFile:
    """A heartbeat in a local folder; its lock ends with the process."""

    def __init__(self, file: IO[str], path: LocalPath) -> None:
        self._file = file
        self._path = path
        self.touch_seconds = TOUCH_SECONDS

    @classmethod
    def create(cls, path: LocalPath, text: str) -> LocalLeaseFile | None:
        """Create the file with its lock already held."""
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{os.getpid()}-{threading.get_ident()}.draft")
        file = draft.open("w+", encoding="utf-8")
        try:
            _locked(file, fcntl.LOCK_EX)
            file.write(text)
            file.flush()
            os.link(draft, path)
        except OSError as error:
            file.close()
            if isinstance(error, FileExistsError):
                return None
            raise
        finally:
            draft.unlink(missing_ok=True)
        return cls(file, path)

    def heartbeat(self) -> None:
        os.utime(self._file.fileno())

    def release(self) -> None:
        self._file.truncate(0)
        self._file.close()

    def abort(self) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()


class RemoteLeaseFile:
    """A heartbeat in an object store. A clean shutdown writes a release marker; after a crash the heartbeat stops."""

    def __init__(self, path: StoragePath, text: str) -> None:
        self._path = path
        self._text = text
        self.touch_seconds = REMOTE_TOUCH_SECONDS

    def heartbeat(self) -> None:
        self._path.write_text(self._text)

    def release(self) -> None:
        with suppress(OSError):
            self._path.replace_text(_RELEASED)

    def abort(self) -> None:
        self._path.unlink(missing_ok=True)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return None if content is None else {name: value for name, value in content.items() if name != NONCE}


def _locked(file: IO[str], how: int) -> bool:
    """Lock the file until it is closed; return False if another process holds the lock."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
