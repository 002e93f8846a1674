"""Write and read a test's tables by ``deltalake``, another implementation of Delta, and leave to Spark what it does not have.

Spark takes 0.6 s of processor time for an UPDATE of one row, and ``deltalake`` 0.03 s. Both leave the same change feed, save
for an UPDATE that changes no value: ``deltalake`` writes no images for it. Tables with further properties are Spark's. A
function that writes returns False if the table or the statement needs Spark; the table is unchanged then.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Literal, TypeAlias

    Mode: TypeAlias = Literal["append", "overwrite"]

UPDATE: Final = re.compile(r"UPDATE \{t\} SET (?P<changes>.+?)(?: WHERE (?P<where>.+))?")
DELETE: Final = re.compile(r"DELETE FROM \{t\}(?: WHERE (?P<where>.+))?")
NEXT_CHANGE: Final = re.compile(r", (?=\w+ = )")
PLAIN_TYPES: Final = {"long", "integer", "string", "double", "boolean"}
READ_TYPES: Final = {pa.int64(), pa.int32(), pa.string(), pa.string_view(), pa.large_string(), pa.float64(), pa.bool_()}
PLAIN_PROPERTIES: Final = {"delta.enableChangeDataFeed"}
CHUNK_ROWS: Final = 1024
"""``deltalake`` begins a file after a chunk at the earliest."""
SPARKS_OWN: Final = set('`\\"')
"""Characters that quote in Spark, and have another meaning in DataFusion."""


def created(path: str, columns: str, properties: Mapping[str, str]) -> bool:
    """Create a table of plain columns.

    Args:
        path: Of the table.
        columns: In the DDL of Spark.
        properties: Of the table.
    """
    try:
        schema = StructType.fromDDL(columns).json()
    except PySparkException:
        return False
    if not properties.keys() <= PLAIN_PROPERTIES or not _plain(schema):
        return False
    DeltaTable.create(path, Schema.from_json(schema), configuration=dict(properties))
    return True


def inserted(path: str, rows: Sequence[str], mode: Mode = "append") -> bool:
    """Write rows in two files, as Spark with two cores does.

    Args:
        path: Of the table.
        rows: Each the text of an SQL tuple.
        mode: Whether the table keeps its other rows.
    """
    try:
        table = _opened(path, "".join(rows))
        if table is None or not _plain(table.schema().to_json()) or table.metadata().partition_columns:
            return False
        values = pa.table(QueryBuilder().execute(f"VALUES {', '.join(rows)}").read_all())
        schema = pa.schema(table.schema().to_arrow())
        named = values.combine_chunks().rename_columns(schema.names).cast(schema)
        append(table, named, mode)
    except DeltaError:
        return False
    return True


def append(table: DeltaTable, rows: pa.Table, mode: Mode = "append") -> None:
    """Write rows in two files, as Spark with two cores does, or in a few if they are many.

    Args:
        table: The table.
        rows: At least one.
        mode: Whether the table keeps its other rows.
    """
    half = len(rows) // 2
    files = [rows.slice(0, half), rows.slice(half)] if half else [rows]
    size = 1 if half < CHUNK_ROWS else rows.nbytes // 4
    write_deltalake(table, pa.concat_tables(files).to_reader(), mode=mode, target_file_size=size)


def changed(path: str, statement: str) -> bool:
    """Carry out an UPDATE or a DELETE.

    Args:
        path: Of the table.
        statement: In SQL, with ``{t}`` for the table.
    """
    update, delete = UPDATE.fullmatch(statement), DELETE.fullmatch(statement)
    try:
        table = _opened(path, statement)
        if table is None:
            return False
        if update:
            changes = dict(change.split(" = ", 1) for change in NEXT_CHANGE.split(update["changes"]))
            table.update(changes, predicate=update["where"])
        elif delete:
            table.delete(delete["where"])
    except DeltaError:
        return False
    return bool(update or delete)


def vacuumed(path: str) -> bool:
    """Remove every file that the newest version does not need.

    Args:
        path: Of the table.
    """
    table = _opened(path, "")
    if table is not None:
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    return table is not None


def checkpointed(path: str) -> bool:
    """Write a checkpoint of the newest version.

    Args:
        path: Of the table.
    """
    table = _opened(path, "")
    if table is not None:
        table.create_checkpoint()
    return table is not None


def read(path: str, columns: Sequence[str] = ()) -> list[dict[str, Any]] | None:
    """Read the rows of a table; None if a column of it is not plain or a feature of it is not supported.

    Args:
        path: Of the table.
        columns: Names of columns; all if empty.
    """
    try:
        table = DeltaTable(path)
        if (
            table.protocol().min_reader_version > 1
        ):  # with column mapping it would read columns of physical names as null
            return None
        held = pa.schema(table.schema().to_arrow())
        names = [*(columns or held.names)]
        if not all(held.field(name).type in READ_TYPES for name in names):
            return None
        rows: list[dict[str, Any]] = table.to_pyarrow_table(columns=names).to_pylist()
    except (DeltaError, KeyError):
        return None
    return rows


def _opened(path: str, statement: str) -> DeltaTable | None:
    """Return the table if neither it nor the statement has something of Spark's own."""
    if SPARKS_OWN & set(statement):
        return None
    table = DeltaTable(path)
    of_delta = {name for name in table.metadata().configuration if name.startswith("delta.")}
    return table if of_delta <= PLAIN_PROPERTIES else None


def _plain(schema: str) -> bool:
    """Return whether both implementations write each column alike; ``schema`` is JSON."""
    fields = json.loads(schema)["fields"]
    return all(str(field["type"]) in PLAIN_TYPES and field["nullable"] and not field["metadata"] for field in fields)


def added_rows(commit: Path) -> int:
    """Return the number of rows in the files that a commit adds, by their statistics."""
    added = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
    return sum(json.loads(add["stats"])["numRecords"] for add in added if add)
