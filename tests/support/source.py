"""A source table with a key ``id``, written by another Spark than the service's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support import light_table
from tests.support.reading import Rows, table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Source:
    spark: SparkSession
    path: Path

    @classmethod
    def created(cls, spark: SparkSession, path: Path, rows: int = 10) -> Source:
        """Make a table with its change feed on, and with ids from 0 on."""
        source = cls(spark, path)
        source.sql(
            "CREATE TABLE {} (id BIGINT, name STRING, amount BIGINT) USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        )
        source.sql(f"INSERT INTO {{}} SELECT id, concat('name ', id), id * 10 FROM range({rows})")
        return source

    def sql(self, statement: str) -> int:
        """Run a statement, with ``{}`` for the table; returns the version it made."""
        self.spark.sql(statement.format(f"delta.`{self.path}`"))
        return self.version

    def change(self, statement: str) -> int:
        """Run an UPDATE or a DELETE, in Spark only if it has to be; returns the version it made."""
        if light_table.changed(str(self.path), statement.replace("{}", "{t}")):
            return self.version
        return self.sql(statement)

    @property
    def version(self) -> int:
        return max(int(file.stem) for file in (self.path / "_delta_log").glob("*.json"))

    @property
    def rows(self) -> Rows:
        return table(self.spark, self.path, ["id"])
