"""What Spark's checkpoint says of a route: read only, never written by us.

Offset JSON of Delta's source: ``reservoirVersion`` N and ``index`` I; I < 0 means nothing of N is read yet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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


def last_committed(checkpoint: Path) -> Offset | None:
    """Return the end of the last micro-batch that Spark committed; None before the first."""
    batch = _newest(checkpoint / "commits")
    return None if batch is None else _offset(checkpoint / "offsets" / str(batch))


def start_of_last_committed(checkpoint: Path) -> Offset | None:
    """Return where the last micro-batch that Spark committed began; None if it was the first one."""
    batch = _newest(checkpoint / "commits")
    return None if not batch else _offset(checkpoint / "offsets" / str(batch - 1))


def last_planned(checkpoint: Path) -> Offset | None:
    """Return the end of the newest micro-batch that may have been written, committed or not."""
    batch = _newest(checkpoint / "offsets")
    return None if batch is None else _offset(checkpoint / "offsets" / str(batch))


def _newest(folder: Path) -> int | None:
    numbers = [int(file.name) for file in folder.glob("*") if file.name.isdigit()]
    return max(numbers, default=None)


def _offset(file: Path) -> Offset | None:
    if not file.exists():
        return None
    last_line = file.read_text(encoding="utf-8").strip().splitlines()[-1]
    return Offset.parse(last_line) if last_line.startswith("{") else None
