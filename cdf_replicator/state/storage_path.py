"""A path under the state path, in one of two storages: a folder of this machine, or a file system of Hadoop.

``LocalPath`` is the first, ``spark.hadoop_path.HadoopPath`` the second.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class StoragePath(Protocol):
    """The methods of ``pathlib.Path`` that a state path uses, and the writes that survive a kill."""

    is_local: ClassVar[bool]

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> StoragePath: ...
    def __truediv__(self, name: str, /) -> StoragePath: ...
    def with_name(self, name: str, /) -> StoragePath: ...
    def exists(self) -> bool: ...
    def glob(self, pattern: str, /) -> Iterable[StoragePath]: ...
    def read_bytes(self) -> bytes: ...
    def read_text(self, encoding: str) -> str: ...
    def write_text(self, text: str, /) -> object: ...
    def unlink(self, *, missing_ok: bool) -> None: ...

    def modified_at(self) -> float:
        """Return the time of the last write in epoch seconds, by the storage's clock."""

    def replace_text(self, text: str) -> None:
        """Replace the file atomically: a reader, or a restart after a kill, sees the old text or the new text."""

    def create_text(self, text: str) -> bool:
        """Write the file unless it exists; of several writers at the same time, exactly one gets True."""

    def move_to(self, name: str) -> None:
        """Rename the file or folder within its parent."""

    def sync(self, since: float) -> None:
        """Make the files durable that were written to the folder since ``since`` (epoch seconds)."""


class LocalPath(PosixPath):
    """A path of this machine; its writes are synced to the disk."""

    is_local: ClassVar = True

    def glob(self, pattern: str) -> list[LocalPath]:  # type: ignore[override]
        """Return the matching names directly in the folder; an empty list if the folder is missing.

        If the folder can't be read, it raises ``OSError``; ``Path.glob`` then returns nothing.
        """
        with suppress(FileNotFoundError), os.scandir(self) as entries:
            return [self / entry.name for entry in entries if fnmatchcase(entry.name, pattern)]
        return []

    def nearest_folder(self) -> LocalPath:
        """Return the folder, or the nearest folder above it that exists; raise ``OSError`` if a file is in its place."""
        nearest = next(place for place in (self, *self.parents) if os.path.lexists(place))
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        return nearest

    def check_writable(self) -> None:
        """Raise ``OSError`` unless this user may write to the folder, or to the nearest folder above it that exists."""
        nearest = self.nearest_folder()
        if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))

    def modified_at(self) -> float:
        return self.stat().st_mtime

    def replace_text(self, text: str) -> None:
        draft = self._written_draft(text)
        with _deleted_on_error(draft):
            draft.replace(self)
        _sync(self.parent)

    def create_text(self, text: str) -> bool:
        draft = self._written_draft(text)
        try:
            os.link(draft, self)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def move_to(self, name: str) -> None:
        self.rename(self.with_name(name))

    def sync(self, since: float) -> None:
        if self.is_dir():
            for file in self.iterdir():
                # Another writer renames or deletes its draft after this listing.
                with suppress(FileNotFoundError):
                    if file.is_file() and file.stat().st_mtime >= since:
                        _sync(file)
            _sync(self)

    def _written_draft(self, text: str) -> LocalPath:
        self.parent.mkdir(parents=True, exist_ok=True)
        draft = self.with_name(f".{self.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        with _deleted_on_error(draft), draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return draft


@contextmanager
def _deleted_on_error(draft: Path) -> Iterator[None]:
    """Delete the draft of a failed write: each retry writes another draft."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
