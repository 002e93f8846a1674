"""A real Delta table that remembers each of its versions, read by ``versionAsOf``, and its feed before VACUUM takes it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from tests.oracle.operations import KEYS, TEXTS
from tests.support.vacuum import vacuum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from tests.oracle.history import Act, Shape

Row = dict[str, Any]

FEED = "delta.enableChangeDataFeed"
TYPES = {"id": "bigint", "region": "string", "name": "string", "amount": "int"}


class Table:
    """``versions``: rows by key number, of every version. ``held``: all of them. ``columns``: those a writer gives.

    ``fields``: those of the struct ``detail``, once there is one. ``restorable_from``, ``replayable_from``: the oldest versions
    that RESTORE, and a replay, may go back to.
    """

    def __init__(self, spark: SparkSession, path: Path, shape: Shape) -> None:
        self.spark = spark
        self.path = str(path)
        self.shape = shape
        self._begin()
        self._create(feed=not shape.feed_late)

    def _begin(self) -> None:
        self.columns = list(TYPES)
        self.fields: list[str] = []
        self.versions: list[dict[int, Row]] = []
        self.held: list[list[Row]] = []
        self.widened = False
        self.mapped = self.shape.column_mapping
        self.regions = ("eu", "us", "a:p %" if self.shape.odd_region else "ap")
        self.vectors = self.shape.deletion_vectors
        self.rewritten_after_vectors = False
        self.feed_is_on = False
        self.feed_from = 0
        self.restorable_from = 0
        self.replayable_from = 0
        self.spark_feed: list[Row] = []
        self.other_feed: list[Row] = []
        self.other_refused = ""
        self._captured = -1

    def recreate(self) -> None:
        """Put another table under the path, which has its rows yet to come."""
        old = Path(self.path)
        old.rename(old.with_name(f"{old.name}-{time.monotonic_ns()}"))
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        self._begin()
        self._create(feed=True)
        self.look()

    def _create(self, *, feed: bool) -> None:
        self.feed_is_on = feed
        shape, columns = self.shape, [f"{name} {kind}" for name, kind in TYPES.items()]
        if shape.generated:
            columns += ["bucket INT GENERATED ALWAYS AS (CAST(id % 3 AS INT))"]
            columns += ["serial BIGINT GENERATED ALWAYS AS IDENTITY"]
        layout = {"plain": "", "clustered": "CLUSTER BY (id)"}.get(shape.layout, f"PARTITIONED BY ({shape.layout})")
        properties = {
            FEED: feed,
            "delta.enableDeletionVectors": shape.deletion_vectors,
            "delta.enableTypeWidening": shape.type_widening,
            "delta.enableInCommitTimestamps": shape.in_commit_timestamps,
            "delta.enableRowTracking": shape.row_tracking,
            "delta.columnMapping.mode": "name" if shape.column_mapping else "none",
        }
        listed = ", ".join(f"'{name}' = '{str(value).lower()}'" for name, value in properties.items())
        self.sql(f"CREATE TABLE {{t}} ({', '.join(columns)}) USING delta {layout} TBLPROPERTIES ({listed})")

    # What operations use

    @property
    def version(self) -> int:
        return len(self.versions) - 1

    @property
    def rows(self) -> dict[int, Row]:
        return self.versions[-1]

    @property
    def ids(self) -> list[int]:
        return sorted(self.rows)

    @property
    def absent(self) -> list[int]:
        return [number for number in range(KEYS) if number not in self.rows]

    @property
    def columns_text(self) -> str:
        return ", ".join(self.columns)

    @property
    def all_columns(self) -> list[str]:
        """Return the present columns of the table, including generated columns."""
        return [*self.columns, *(("bucket", "serial") if self.shape.generated else ())]

    def columns_of(self, alias: str) -> str:
        return ", ".join(f"{alias}.{name}" for name in self.columns)

    def fresh(self, act: Act, ids: Iterable[int]) -> list[Row]:
        """New rows for keys, with the values that are easy to get wrong among them."""
        rows = []
        for number in ids:
            turn = number + act.a + self.version
            text = TEXTS[turn % len(TEXTS)] if turn % 3 == 0 else f"{act.kind} {self.version} {number}"
            amount = None if turn % 7 == 0 else (number * 11 + act.b * 7 + self.version) % 100
            row: Row = {"id": number, "region": self.regions[turn % len(self.regions)], "name": text, "amount": amount}
            rows.append(row | {name: self._further(name, number) for name in self.columns[len(TYPES) :]})
        return rows

    def _further(self, name: str, number: int) -> Any:
        if name == "detail":
            return {field: f"{field} of {number}" for field in self.fields}
        return f"{name} of {number}"

    def view(self, name: str, rows: Sequence[Row]) -> None:
        self._frame(rows).createOrReplaceTempView(name)

    def write(self, rows: Sequence[Row], *, files: int, mode: str, **options: str) -> None:
        frame = self._frame(rows).repartition(files)
        if self.shape.generated:  # Delta does not derive it for replaceWhere and dynamic overwrite
            frame = frame.withColumn("bucket", F.expr("CAST(id % 3 AS INT)"))
        frame.write.format("delta").mode(mode).options(**options).save(self.path)

    def sql(self, statement: str) -> DataFrame:
        return self.spark.sql(statement.replace("{t}", f"delta.`{self.path}`"))

    def set_properties(self, **properties: str) -> None:
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})")

    def enable_feed(self) -> None:
        self.set_properties(**{FEED: "true"})
        self.look()
        self.feed_is_on = True
        self.feed_from = self.restorable_from = self.replayable_from = self.version
        self._captured = self.version - 1

    def schema_changed(self, *added: str) -> None:
        """Going back behind this version would drop a column or narrow a type: tests of schema changes do that."""
        self.columns += added
        self.look()
        self.restorable_from = self.version

    def vacuum(self) -> None:
        """Remove every file that today's version does not need."""
        self.capture()
        vacuum(self.spark, self.path)
        self.look()
        self.restorable_from = self.replayable_from = self._captured = self.version

    # What the engines use

    def look(self) -> None:
        """Read the versions there are by now, one by one, where their rows may differ."""
        newest = max(int(file.stem) for file in Path(self.path, "_delta_log").glob("*.json"))
        for version in range(len(self.versions), newest + 1):
            rows = self._read(version, newest) if self._has_files(version) else (self.held or [[]])[-1]
            self.held.append(rows)
            self.versions.append({row["id"]: row for row in rows})
            assert self.shape.twins or len(self.versions[-1]) == len(rows), (
                "an operation of this test gave two rows one key"
            )

    def _has_files(self, version: int) -> bool:
        """Return whether a commit adds or removes a file. A commit that does not leaves the rows as they were."""
        commit = Path(self.path, "_delta_log", f"{version:020}.json").read_text()
        return any(json.loads(line).keys() & {"add", "remove"} for line in commit.splitlines())

    def _read(self, version: int, newest: int) -> list[Row]:
        reader = self.spark.read.format("delta")
        if version < newest:  # Delta has computed the state of the newest version already
            reader = reader.option("versionAsOf", version)
        return [row.asDict(recursive=True) for row in reader.load(self.path).collect()]

    def capture(self) -> None:
        """Read the feed of the versions not yet read: by Spark in a batch, and by ``deltalake``."""
        from tests.oracle import engines

        self.look()
        first, last = max(self._captured + 1, self.feed_from), self.version
        if first > last or not self.feed_is_on:
            return
        self.spark_feed += engines.spark_feed(self, first, last)
        if not self.other_refused:
            try:
                self.other_feed += engines.other_feed(self, first, last)
            except Exception as error:  # noqa: BLE001 - the oracle decides whether deltalake may refuse it
                self.other_refused = str(error)
        self._captured = last

    def _frame(self, rows: Sequence[Row]) -> DataFrame:
        types = {"id": pa.int64(), "amount": pa.int64() if self.widened else pa.int32()}
        types["detail"] = pa.struct([(field, pa.string()) for field in self.fields])
        schema = pa.schema([(name, types.get(name, pa.string())) for name in self.columns])
        return self.spark.createDataFrame(pa.Table.from_pylist(list(rows), schema))
