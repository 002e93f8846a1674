"""A source table with a key ``id``, written by ``deltalake``, or by another Spark than the service's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable

from tests.support import light_table
from tests.support.reading import Rows, fold, folded, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS: Final = ("id", "name", "amount")


@dataclass(frozen=True)
class Source:
    """``start`` returns the Spark session of the test's process, which starts at the first call."""

    start: Callable[[], SparkSession]
    path: Path

    @classmethod
    def created(cls, start: Callable[[], SparkSession], path: Path, rows: int = 10) -> Source:
        """Make a table with its change feed on, and with ids from 0 on."""
        ids = range(rows)
        values = [ids, [f"name {number}" for number in ids], [number * 10 for number in ids]]
        named = pa.table(dict(zip(COLUMNS, values, strict=True)))
        made = DeltaTable.create(str(path), named.schema, configuration={"delta.enableChangeDataFeed": "true"})
        light_table.append(made, named)
        return cls(start, path)

    @property
    def spark(self) -> SparkSession:
        return self.start()

    def sql(self, statement: str) -> int:
        """Run a statement in Spark, with ``{}`` for the table; returns the version it made."""
        self.spark.sql(statement.format(f"delta.`{self.path}`"))
        return self.version

    def change(self, statement: str) -> int:
        """Run an UPDATE or a DELETE, in Spark only if it has to be; returns the version it made."""
        if light_table.changed(str(self.path), statement.replace("{}", "{t}")):
            return self.version
        return self.sql(statement)

    def insert(self, *rows: str) -> int:
        """Append rows, each the text of an SQL tuple, in Spark only if it has to be; returns the version it made."""
        if light_table.inserted(str(self.path), rows):
            return self.version
        return self.sql(f"INSERT INTO {{}} VALUES {', '.join(rows)}")

    @property
    def version(self) -> int:
        return max(int(file.stem) for file in (self.path / "_delta_log").glob("*.json"))

    @property
    def rows(self) -> Rows:
        held = light_table.read(str(self.path))
        return table(self.spark, self.path, ["id"]) if held is None else {str(row["id"]): row for row in held}

    def folded(self, audit: Path) -> Rows:
        """Fold the audit table with preimages of this table into its present rows."""
        held = light_table.read(str(audit), ("change_type", "commit_version", *COLUMNS))
        if held is None:
            return folded(self.spark, audit, ["id"])
        return fold(held, ["id"], lambda change: {name: change[name] for name in COLUMNS})
