"""Read the commit files of a Delta table: available versions, commit times, and the metadata that a commit sets."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.source.schema import Metadata

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from cdf_replicator.state.checkpoint import Offset

COMMIT: Final = re.compile(r"^(\d{20})\.json$")
_METADATA: Final = r'(?md)^\{"metaData":.*$'
_COMMIT_INFO: Final = r'(?md)^\{"commitInfo":.*$'
_EVERYTHING: Final = r"(?s).+"
_LISTED: Final = re.compile(r"/_delta_log/(\d{20})\.(?:(json)(?=[,}])|checkpoint\.)")
"""A commit or a checkpoint in the text of an array of paths."""
_PARSED_BYTES: Final = 2**16
"""Longest commit file whose actions are parsed. The driver's Python parses a shorter one in a millisecond."""


@dataclass(frozen=True, slots=True)
class Size:
    """The files that the change feed reads of some commits, and their bytes."""

    files: int
    bytes: int

    @classmethod
    def sum(cls, sizes: Collection[Size | None]) -> Size | None:
        """Return the size of all; None if one of them is not known."""
        known = [size for size in sizes if size is not None]
        return cls(sum(s.files for s in known), sum(s.bytes for s in known)) if len(known) == len(sizes) else None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the log.

    Args:
        metadata: The metadata that the commit sets; None if it sets none.
        size: What the change feed reads of it; None if the commit file is too long to be parsed or lacks a size.
    """

    metadata: Metadata | None
    size: Size | None


@dataclass(frozen=True, slots=True)
class CommitMark:
    """A commit file that a route has seen. After the table was recreated, or restored from a copy, its time differs."""

    log: CommitLog
    version: int
    time: float | None

    @classmethod
    def at(cls, log: CommitLog, version: int) -> CommitMark:
        return cls(log, version, log.committed_at(version))

    @property
    def is_unchanged(self) -> bool:
        return self.log.committed_at(self.version) == self.time


class CommitLog:
    """The commit files of the table at a location. Raises Hadoop's error if the folder is absent.

    ``listed_files`` is the number of files at the last list of the folder. ``device`` is the number of the mounted device
    of a log in this machine's own file system, else None.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._scanner = getattr(jvm, "java.util.Scanner")
        self._path = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._paths_of = getattr(jvm, "org.apache.hadoop.fs.FileUtil").stat2Paths
        self._text_of = getattr(jvm, "org.apache.commons.lang3.ArrayUtils").toString
        self._log = self._path(location, "_delta_log")
        self._files = self._log.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self._local_folder = str(self._log.toUri().getPath()) if self.is_local else None
        self._latest = self.available()[1]
        self.device = None if self._local_folder is None else os.stat(self._local_folder).st_dev  # noqa: PTH116

    @property
    def folder(self) -> str:
        return str(self._log.toString())

    @property
    def is_local(self) -> bool:
        """Return whether the log is in this machine's own file system."""
        return bool(self._files.getUri().getScheme() == "file")

    def available(self) -> tuple[int, int]:
        """Return (earliest, latest) commit version from which changes can be read.

        The earliest is version 0, or the oldest checkpoint from which all later commit files exist. A stream that starts
        at a version (``startingVersion``) needs the table's state at that version.
        """
        statuses = self._files.listStatus(self._log)
        self.listed_files = len(statuses)
        if self.is_local:  # one text for all files: py4j needs two requests for the name of each
            text = str(self._text_of(self._paths_of(statuses)))
        else:  # py4j finds no method for an array of a class of the store's own
            text = "".join(f"/_delta_log/{status.getPath().getName()}," for status in statuses)
        found = _LISTED.findall(text)
        commits = {int(version) for version, is_commit in found if is_commit}
        checkpoints = {int(version) for version, is_commit in found if not is_commit}
        latest = max(commits, default=-1)
        first = latest
        while first - 1 in commits:
            first -= 1
        if first == 0:
            return 0, latest
        starts = [version if version in commits else version + 1 for version in checkpoints if version + 1 >= first]
        return min(starts, default=latest), latest

    def latest_version(self) -> int:
        """Return the newest commit version. Checks only for files after the last known version."""
        while self._exists(self._latest + 1):
            self._latest += 1
        return self._latest

    def _exists(self, version: int) -> bool:
        if self._local_folder is not None:
            return os.path.exists(self._local_file(version))  # noqa: PTH110 - Path raises an error if access is denied
        return bool(self._files.exists(self._commit_file(version)))

    def committed_at(self, version: int) -> float | None:
        """Return the modification time of a commit file in epoch seconds; None if the file was removed."""
        if self._local_folder is not None:  # no request to the JVM
            try:
                return os.stat(self._local_file(version)).st_mtime_ns // 1_000_000 / 1000  # noqa: PTH116
            except FileNotFoundError:
                return None
        status = self._status(self._commit_file(version))
        return None if status is None else float(status.getModificationTime()) / 1000

    def first_since(self, moment: float) -> int:
        """Return the first version whose file is not older than ``moment`` (epoch seconds); newest + 1 if none."""
        versions = range(self._latest + 1)
        return bisect_left(versions, True, key=lambda version: (self.committed_at(version) or 0.0) >= moment)

    def metadata_at(self, version: int) -> Metadata | None:
        """Return the metadata that a commit sets; None if it sets none or its file was removed."""
        commit = self.commit_at(version)
        return None if commit is None else commit.metadata

    def commit_at(self, version: int) -> Commit | None:
        """Return a commit; None if its file was removed."""
        path = self._commit_file(version)
        status = self._status(path)
        if status is None:
            return None
        parsed = status.getLen() <= _PARSED_BYTES
        found = self._found(path, _EVERYTHING if parsed else _METADATA)
        if parsed:
            return _parsed(version, found or "")
        return Commit(None if found is None else Metadata.parse(version, found), None)

    def is_written_after(self, moment: float, version: int) -> bool:
        """Return whether a commit is from after ``moment`` (epoch seconds), by the time of its file and by its own."""
        if (self.committed_at(version) or 0.0) <= moment:
            return False
        line = self._found(self._commit_file(version), _COMMIT_INFO)
        return line is not None and json.loads(line)["commitInfo"].get("timestamp", 0) / 1000 > moment

    def first_unread(self, end: Offset) -> int:
        """Return the first version that a stream has not read as a whole at the position ``end``, which may lie within a commit."""
        whole = end.index >= 0 and end.index + 1 >= self._changed_files(end.version)
        return end.version + 1 if whole else end.version

    def _changed_files(self, version: int) -> int:
        """Return the number of files that the change feed reads of a commit.

        These are its change files, or without any the files that it adds or removes with a change of data.
        """
        changes = "cdc struct<path string>, add struct<dataChange boolean>, remove struct<dataChange boolean>"
        actions = self._spark.read.schema(changes).json(str(self._commit_file(version).toString()))
        counts = actions.agg(
            F.count("cdc.path"),
            F.count_if(F.col("add.dataChange")) + F.count_if(F.col("remove.dataChange")),
        ).first()
        assert counts is not None
        return int(counts[0] or counts[1])

    def _found(self, path: Any, pattern: str) -> str | None:
        scanner = self._scanner(self._files.open(path), "UTF-8")
        try:
            found: str | None = scanner.findWithinHorizon(pattern, 0)
        finally:
            scanner.close()
        return found

    def _status(self, path: Any) -> Any:
        """Return Hadoop's status of a file; None if it is absent. In an object store this is a single request."""
        try:
            return self._files.getFileStatus(path)
        except Py4JJavaError as error:
            if is_instance_of(self._spark.sparkContext._gateway, error.java_exception, "java.io.FileNotFoundException"):
                return None
            raise

    def _local_file(self, version: int) -> str:
        return f"{self._local_folder}/{version:020d}.json"

    def _commit_file(self, version: int) -> Any:
        return self._path(self._log, f"{version:020d}.json")


def _parsed(version: int, text: str) -> Commit:
    """Parse the actions of a commit file. The change feed reads its change files; without any, the data files it changes."""
    lines = [line for line in text.split("\n") if line]  # a value may hold a separator of Unicode
    actions = [json.loads(line) for line in lines]
    metadata = next((line for line, action in zip(lines, actions, strict=True) if "metaData" in action), None)
    changes = [action["cdc"]["size"] for action in actions if "cdc" in action]
    data = [file for action in actions if (file := action.get("add") or action.get("remove")) and file["dataChange"]]
    sizes = changes or [file.get("size") for file in data]  # a writer may leave out the size of a removed file
    size = None if None in sizes else Size(len(sizes), sum(sizes))
    return Commit(None if metadata is None else Metadata.parse(version, metadata), size)
