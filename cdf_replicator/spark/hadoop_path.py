"""A state path outside the local file system: an object store, or any other file system of Hadoop.

It is accessed through the JVM with the settings and credentials that Spark reads tables with (``CDF_SPARK__CONF``).
"""

from __future__ import annotations

import errno
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_END: Final = b"\n"
_ATOMIC: Final = "fs.option.create.conditional.overwrite"
"""S3A checks at the write whether the object exists (``Options.CreateFileOptionKeys``); other stores check at the open."""
_TRIES: Final = {"fs.s3a.attempts.maximum": "3", "fs.s3a.retry.limit": "3"}
"""Limits of S3A's own retries, which would delay the first report by two minutes; the service itself retries and logs."""


class HadoopPath:
    """A path in a file system of Hadoop (``state.storage_path.StoragePath``); every failure is an ``OSError``."""

    is_local: ClassVar = False

    def __init__(self, jvm: Any, files: Any, location: str) -> None:
        self._jvm = jvm  # remains usable after the session has ended
        self._files = files
        self._location = location.rstrip("/")

    @classmethod
    def at(cls, spark: SparkSession, location: str) -> HadoopPath:
        """Return the path; raise ``OSError`` if Hadoop has no usable file system for the location."""
        jvm: Any = spark._jvm
        with _as_os_errors():
            conf = spark._jsparkSession.sessionState().newHadoopConf()
            for name, tries in _TRIES.items():
                if spark.conf.get(f"spark.hadoop.{name}", None) is None:
                    conf.set(name, tries)
            path = getattr(jvm, "org.apache.hadoop.fs.Path")(location)
            files = getattr(jvm, "org.apache.hadoop.fs.FileSystem").newInstance(path.toUri(), conf)
        return cls(jvm, files, location)

    def __str__(self) -> str:
        return self._location

    def __truediv__(self, name: str) -> HadoopPath:
        return HadoopPath(self._jvm, self._files, f"{self._location}/{name}")

    @property
    def name(self) -> str:
        return self._location.rpartition("/")[2]

    @property
    def parent(self) -> HadoopPath:
        return HadoopPath(self._jvm, self._files, self._location.rpartition("/")[0])

    def with_name(self, name: str) -> HadoopPath:
        return self.parent / name

    def exists(self) -> bool:
        with _as_os_errors():
            return bool(self._files.exists(self._path))

    def modified_at(self) -> float:
        with _as_os_errors():
            return float(self._files.getFileStatus(self._path).getModificationTime()) / 1000

    def glob(self, pattern: str) -> list[HadoopPath]:
        """Return the matching names directly in the folder, listed as a whole; an empty list if the folder is missing."""
        with suppress(FileNotFoundError), _as_os_errors():
            names = [str(status.getPath().getName()) for status in self._files.listStatus(self._path)]
            return [self / name for name in names if fnmatchcase(name, pattern)]
        return []

    def read_bytes(self) -> bytes:
        with _as_os_errors():
            stream = self._files.open(self._path)
            try:
                return bytes(getattr(self._jvm, "org.apache.commons.io.IOUtils").toByteArray(stream))
            finally:
                stream.close()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text that ``replace_text`` wrote last.

        During a write, or after an interrupted one, the text comes from the draft.
        """
        for place in (self, self._draft, self):  # the draft may be deleted between the first two reads
            with suppress(FileNotFoundError):
                content = place.read_bytes()
                if content.endswith(_END):
                    return content.decode(encoding)
        raise FileNotFoundError(errno.ENOENT, f"{self} is missing or incomplete")

    def replace_text(self, text: str) -> None:
        """Write a draft first and keep it until the file is whole, since not all stores write an object atomically."""
        self._draft.write_text(text)
        self.write_text(text)
        self._draft.unlink()

    def write_text(self, text: str) -> None:
        """Write the text; a reader may find no file for a moment."""
        with _as_os_errors():
            stream = self._files.create(self._path, True)
            stream.write(text.encode() + _END)
            stream.close()

    def create_text(self, text: str) -> bool:
        content = text.encode() + _END
        try:
            with _as_os_errors():
                builder = self._files.createFile(self._path).overwrite(False).recursive()
                stream = builder.opt(_ATOMIC, "true").build()
                stream.write(content)
                stream.close()
        except OSError:
            with suppress(FileNotFoundError):
                return self.read_bytes() == content  # the first try of a retried request may have succeeded
            raise
        return True

    def move_to(self, name: str) -> None:
        """Rename the file or folder; an object store copies each object."""
        with _as_os_errors():
            moved = self._files.rename(self._path, self.with_name(name)._path)
        if not moved:
            raise OSError(errno.EIO, f"Input/output error: {self} can't be renamed to {name}")

    def sync(self, since: float) -> None:
        """Do nothing, since a closed file of these file systems is durable."""

    def unlink(self, *, missing_ok: bool = True) -> None:  # noqa: ARG002 - no store reports it
        with _as_os_errors():
            self._files.delete(self._path, False)

    @property
    def _draft(self) -> HadoopPath:
        return self.with_name(f".{self.name}.draft")

    @property
    def _path(self) -> Any:
        return getattr(self._jvm, "org.apache.hadoop.fs.Path")(self._location)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        java, text = error.java_exception, str(error.java_exception.toString()).splitlines()[0]
        if java.getClass().getSimpleName() == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, text) from error
        if java.getClass().getSimpleName() == "AccessDeniedException":
            raise PermissionError(errno.EACCES, text) from error
        raise OSError(errno.EIO, f"Input/output error: {text}") from error
    except Py4JError as error:
        raise OSError(errno.EIO, f"Input/output error: {error}") from error
