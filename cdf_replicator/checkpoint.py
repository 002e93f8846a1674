"""What Spark's checkpoint says of a route: read only, never written by us.

Offset JSON of Delta's source: ``reservoirVersion`` N and ``index`` I; I < 0 means nothing of N is read yet.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdf_replicator.remote_path import RemotePath

_CRC: Final = b"crc\0"


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a stream stands in the source: files up to ``index`` of commit ``version``."""

    table_id: str
    version: int
    index: int

    @classmethod
    def parse(cls, text: str) -> Offset:
        fields = json.loads(text)
        return cls(fields["reservoirId"], int(fields["reservoirVersion"]), int(fields["index"]))

    @property
    def touched(self) -> int:
        """The newest version of which anything was read."""
        return self.version if self.index >= 0 else self.version - 1

    @property
    def complete(self) -> int:
        """The newest version that is surely read as a whole, without asking whether more of it follows."""
        return self.version - 1


def is_whole(checkpoint: Path | RemotePath) -> bool:
    """Return whether Spark can go on with it. A power cut, or a disk that was full, leaves files that are cut off."""
    planned = max(_numbers(checkpoint / "offsets"), default=None)
    committed = max(_numbers(checkpoint / "commits"), default=-1)
    if not _lines(checkpoint / "metadata"):
        return False
    if planned is None:  # then Spark wants nothing there, no temporary file of a write that was broken off either
        return not any([*(checkpoint / "offsets").glob("*"), *(checkpoint / "commits").glob("*")])
    needed = range(max(0, planned - 1), planned + 1)
    if not all(_offset(checkpoint, number) for number in needed):
        return False
    return committed < 0 or (committed <= planned and bool(_lines(checkpoint / "commits" / str(committed))))


def last_committed(checkpoint: Path | RemotePath) -> Offset | None:
    """Return the end of the last micro-batch that Spark committed, of those that can be read; None if there is none."""
    batch = last_batch(checkpoint)
    return batch and batch[1]


def last_batch(checkpoint: Path | RemotePath) -> tuple[int, Offset] | None:
    """Return Spark's number of that micro-batch, and its end."""
    batches = sorted(_numbers(checkpoint / "commits"), reverse=True)
    return next(((batch, offset) for batch in batches if (offset := _offset(checkpoint, batch))), None)


def start_of_last_committed(checkpoint: Path | RemotePath) -> Offset | None:
    """Return where the last micro-batch that Spark committed began; None if it was the first one."""
    batch = max(_numbers(checkpoint / "commits"), default=0)
    return _offset(checkpoint, batch - 1) if batch else None


def last_planned(checkpoint: Path | RemotePath) -> Offset | None:
    """Return the end of the newest micro-batch that may have been written, committed or not."""
    return _offset(checkpoint, newest_batch(checkpoint))


def newest_batch(checkpoint: Path | RemotePath) -> int:
    """Spark's number of the newest micro-batch that may have been written; -1 if there was none."""
    return max(_numbers(checkpoint / "offsets"), default=-1)


def _numbers(folder: Path | RemotePath) -> list[int]:
    return [int(file.name) for file in folder.glob("*") if file.name.isdigit()]


def _offset(checkpoint: Path | RemotePath, batch: int) -> Offset | None:
    """The end of a micro-batch; None where its file is not there or not whole."""
    lines = _lines(checkpoint / "offsets" / str(batch))
    return Offset.parse(lines[-1]) if len(lines) > 1 else None


def _lines(file: Path | RemotePath) -> list[str]:
    """The JSON objects of one of Spark's files, one a line; none if the file is not whole."""
    try:
        content = file.read_bytes()
        objects = [line for line in content.decode().removeprefix("v1").splitlines() if line]
        for text in objects:
            json.loads(text)
        return objects if _agrees(content, file.with_name(f".{file.name}.crc")) else []
    except ValueError:
        return []
    except OSError as error:
        if isinstance(file, Path) or isinstance(error, FileNotFoundError):
            return []
        raise  # a store that does not answer says nothing of the file


def _agrees(content: bytes, checksums: Path | RemotePath) -> bool:
    """Whether Hadoop would take a file together with its checksums: CRC-32 of each so many bytes. One cut off early it ignores."""
    sums = checksums.read_bytes() if checksums.exists() else b""
    if len(sums) < len(_CRC) + 4 or not sums.startswith(_CRC):
        return True
    step = int.from_bytes(sums[len(_CRC) : len(_CRC) + 4], "big")
    found = (zlib.crc32(content[at : at + step]).to_bytes(4, "big") for at in range(0, len(content), step))
    return sums[len(_CRC) + 4 :] == b"".join(found)
