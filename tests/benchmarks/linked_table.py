"""Tables of as many files, rows and commits as wanted, from one Parquet file: hard links of it, and a log written here.

The key of a row is ``part``, the partition value of the link, and ``id``. Every row is read, keyed and rendered as that of a
file of its own. Not shown: the bandwidth of a disk or an object store, which reads one file.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from tests.benchmarks import light_table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEYS: Final = "part,id"
LINKS_PER_FILE: Final = 50_000
"""ext4 allows 65,000 links of a file."""
SCHEMA: Final = light_table.SCHEMA.insert(0, pa.field("part", pa.int32()))


class LinkedTable:
    """A table whose files are links of one file of ``rows`` rows."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path, self._rows = path, rows
        self._files = self._version = 0
        (path / "_delta_log").mkdir(parents=True)

    def create(self, files: int) -> None:
        """Write version 0, with so many files."""
        table = {
            "id": "linked",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": Schema.from_arrow(SCHEMA).to_json(),
            "partitionColumns": ["part"],
            "configuration": light_table.FEED_ON,
            "createdTime": _now(),
        }
        self._commit([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}, {"metaData": table}], files)

    def append(self, commits: int) -> None:
        """Write commits of one file each."""
        for _ in range(commits):
            self._commit([], 1)

    def _commit(self, actions: Iterable[dict[str, Any]], files: int) -> None:
        info = {"timestamp": _now(), "operation": "WRITE", "operationParameters": {}, "isBlindAppend": True}
        lines = [{"commitInfo": info}, *actions, *(self._link() for _ in range(files))]
        log = self._path / "_delta_log" / f"{self._version:020d}.json"
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        self._version += 1

    def _link(self) -> dict[str, Any]:
        """Return the action that adds one more file."""
        number, self._files = self._files, self._files + 1
        linked = self._path / f"source-{number // LINKS_PER_FILE}.parquet"
        if not linked.exists():
            pq.write_table(pa.Table.from_batches([light_table.batch(0, self._rows)]), linked)
        name = f"{number}.parquet"
        os.link(linked, self._path / name)
        return {
            "add": {
                "path": name,
                "partitionValues": {"part": str(number)},
                "size": linked.stat().st_size,
                "modificationTime": _now(),
                "dataChange": True,
                "stats": json.dumps({"numRecords": self._rows}),
            }
        }


def _now() -> int:
    return round(time.time() * 1000)
