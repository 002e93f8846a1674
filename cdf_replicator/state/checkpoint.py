"""Read a route's checkpoint, which only Spark writes.

In the offset JSON of Delta's source, ``reservoirVersion`` is N and ``index`` is I; I < 0 means that nothing of N is read.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdf_replicator.state.storage_path import StoragePath

SCHEMA_LOG: Final = "schema"
"""Folder of the checkpoint in which Delta tracks the schema of a table with column mapping."""
_CRC: Final = b"crc\0"


@dataclass(frozen=True, slots=True)
class Offset:
    """Position of a stream in the source: files up to ``index`` of commit ``version``."""

    table_id: str
    version: int
    index: int

    @classmethod
    def parse(cls, text: str) -> Offset:
        fields = json.loads(text)
        return cls(fields["reservoirId"], int(fields["reservoirVersion"]), int(fields["index"]))

    def __str__(self) -> str:
        return f"{self.version}:{self.index}"

    @property
    def started_version(self) -> int:
        """The newest version of which any file was read."""
        return self.version if self.index >= 0 else self.version - 1

    @property
    def completed_version(self) -> int:
        """The newest version that is certainly read as a whole; the position may also end ``version`` itself."""
        return self.version - 1


def is_intact(checkpoint: StoragePath) -> bool:
    """Return whether Spark can continue from the checkpoint: a power cut or a full disk leaves truncated files."""
    planned = max(_numbers(checkpoint / "offsets"), default=None)
    committed = max(_numbers(checkpoint / "commits"), default=-1)
    if not _lines(checkpoint / "metadata"):
        return False
    if planned is None:  # Spark then expects empty folders, without a temporary file of an interrupted write
        return not any([*(checkpoint / "offsets").glob("*"), *(checkpoint / "commits").glob("*")])
    needed = range(max(0, planned - 1), planned + 1)
    if not all(_offset(checkpoint, number) for number in needed):
        return False
    return committed < 0 or (committed <= planned and bool(_lines(checkpoint / "commits" / str(committed))))


def first_started_at(checkpoint: StoragePath) -> float:
    """Return the time in epoch seconds at which a stream first started from the checkpoint; now if none has."""
    written = checkpoint / "metadata"  # Spark writes it at the first start only
    return written.modified_at() if written.exists() else time.time()


def last_committed(checkpoint: StoragePath) -> Offset | None:
    """Return the end of the last committed micro-batch whose offset can be read; None if there is none."""
    batch = last_batch(checkpoint)
    return batch and batch[1]


def last_batch(checkpoint: StoragePath) -> tuple[int, Offset] | None:
    """Return Spark's batch id and the end of that micro-batch."""
    batches = sorted(_numbers(checkpoint / "commits"), reverse=True)
    return next(((batch, offset) for batch in batches if (offset := _offset(checkpoint, batch))), None)


def start_of_last_committed(checkpoint: StoragePath) -> Offset | None:
    """Return the start of the last committed micro-batch; None if it was the first one."""
    batch = max(_numbers(checkpoint / "commits"), default=0)
    return _offset(checkpoint, batch - 1) if batch else None


def last_offset(checkpoint: StoragePath) -> Offset | None:
    """Return the end of the newest micro-batch that may have been written, committed or not."""
    return _offset(checkpoint, newest_batch(checkpoint))


def last_planned(checkpoint: StoragePath) -> tuple[Offset, float] | None:
    """Return the end of the newest micro-batch, and when Spark planned it in epoch seconds; None if that can't be read.

    The time is by the clock of the driver or of the state path, whichever is later.
    """
    file = checkpoint / "offsets" / str(newest_batch(checkpoint))
    lines = _lines(file)
    if len(lines) > 1:
        return Offset.parse(lines[-1]), max(json.loads(lines[0])["batchTimestampMs"] / 1000, file.modified_at())
    return None


def planned_at(checkpoint: StoragePath, batch: int) -> float:
    """Return when Spark planned a micro-batch, in epoch seconds by the clock of the driver; 0 if that can't be read."""
    lines = _lines(checkpoint / "offsets" / str(batch))
    return float(json.loads(lines[0])["batchTimestampMs"]) / 1000 if len(lines) > 1 else 0.0


def newest_batch(checkpoint: StoragePath) -> int:
    """Return Spark's id of the newest micro-batch that may have been written; -1 if there was none."""
    return max(_numbers(checkpoint / "offsets"), default=-1)


def _numbers(folder: StoragePath) -> list[int]:
    return [int(file.name) for file in folder.glob("*") if file.name.isdigit()]


def _offset(checkpoint: StoragePath, batch: int) -> Offset | None:
    """Return the end of a micro-batch; None if its file is missing or truncated."""
    lines = _lines(checkpoint / "offsets" / str(batch))
    return Offset.parse(lines[-1]) if len(lines) > 1 else None


def _lines(file: StoragePath) -> list[str]:
    """Return the JSON objects of one of Spark's files, one per line; none if the file is missing or truncated."""
    try:
        content = file.read_bytes()
        objects = [line for line in content.decode().removeprefix("v1").splitlines() if line]
        for text in objects:
            json.loads(text)
        return objects if _agrees(content, file.with_name(f".{file.name}.crc")) else []
    except (ValueError, FileNotFoundError):  # any other error of the storage says nothing about the file
        return []


def _agrees(content: bytes, checksums: StoragePath) -> bool:
    """Return whether Hadoop would accept a file with its checksums (a CRC-32 per fixed number of bytes).

    Hadoop ignores a checksum file with a truncated header.
    """
    sums = checksums.read_bytes() if checksums.exists() else b""
    if len(sums) < len(_CRC) + 4 or not sums.startswith(_CRC):
        return True
    step = int.from_bytes(sums[len(_CRC) : len(_CRC) + 4], "big")
    found = (zlib.crc32(content[at : at + step]).to_bytes(4, "big") for at in range(0, len(content), step))
    return sums[len(_CRC) + 4 :] == b"".join(found)
