"""Source tables of the measures of the whole service, written by deltalake: no second JVM shares the two cores.

Ten columns of mixed types, about 290 bytes a row as JSON; the same arguments make the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FEED_ON = {"delta.enableChangeDataFeed": "true"}
FILE_ROWS = 250_000
COMMITS = (*["insert"] * 8, *["update"] * 10, *["delete"] * 2)
"""Commits of a change load, each with a twentieth of its changes."""

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.int64(),
        "name": pa.string(),
        "status": pa.string(),
        "amount": pa.decimal128(12, 2),
        "score": pa.float64(),
        "active": pa.bool_(),
        "created_at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "note": pa.string(),
    }
)


def create(path: Path, rows: int) -> None:
    """A table with its change feed on and the ids from 0 on, as version 0."""
    append(path, 0, rows)


def append(path: Path, first: int, rows: int) -> None:
    """One commit of new rows, in files of about a quarter of a million."""
    batches = pa.RecordBatchReader.from_batches(SCHEMA, _batches(first, rows))
    write_deltalake(path, batches, mode="append", configuration=FEED_ON, target_file_size=FILE_ROWS * 100)


def append_row(path: Path, key: int, note_bytes: int) -> None:
    """One commit of one row with so long a note."""
    one = batch(key, 1)
    note = pa.array(["x" * note_bytes])
    row = one.set_column(SCHEMA.get_field_index("note"), SCHEMA.field("note"), note)
    write_deltalake(path, pa.Table.from_batches([row]), mode="append", configuration=FEED_ON)


def change(path: Path, rows: int, changes: int) -> None:
    """So many changes over 20 commits, of a table with the ids from 0 to ``rows``: 40 % inserts, 50 % updates, 10 % deletes."""
    each = changes // len(COMMITS)
    low, high = 0, rows
    table = DeltaTable(path)
    for kind in COMMITS:
        if kind == "insert":
            append(path, high, each)
            high += each
            table.update_incremental()
        elif kind == "update":
            table.update({"status": "'changed'", "score": "score + 1"}, predicate=f"id >= {low} AND id < {low + each}")
            low += each
        else:
            table.delete(f"id >= {low} AND id < {low + each}")
            low += each


def batch(first: int, rows: int) -> pa.RecordBatch:
    """Rows of the ids from ``first`` on."""
    random = np.random.default_rng(first)
    ids = np.arange(first, first + rows, dtype=np.int64)
    cents = np.column_stack([random.integers(0, 10**9, rows), np.zeros(rows, np.int64)])
    columns = [
        pa.array(ids),
        pa.array(random.integers(0, 1_000_000, rows)),
        _text(random, rows, 32),
        pa.DictionaryArray.from_arrays(random.integers(0, 4, rows, np.int32), ["new", "paid", "sent", "done"]).cast(
            "string"
        ),
        pa.Array.from_buffers(pa.decimal128(12, 2), rows, [None, pa.py_buffer(cents)]),
        pa.array(random.random(rows)),
        pa.array(random.integers(0, 2, rows).astype(bool)),
        pa.array(random.integers(10**15, 2 * 10**15, rows)).cast(SCHEMA.field("created_at").type),
        pa.array(random.integers(18_000, 20_000, rows, np.int32)).cast("date32"),
        _text(random, rows, 60),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _batches(first: int, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(first, first + rows, FILE_ROWS):
        yield batch(start, min(FILE_ROWS, first + rows - start))


def _text(random: np.random.Generator, rows: int, length: int) -> pa.Array:
    """Hexadecimal digits."""
    digits = pa.py_buffer(random.bytes(rows * length // 2).hex().encode())
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * length, length, dtype=np.int32))
    return pa.StringArray.from_buffers(rows, offsets, digits)
