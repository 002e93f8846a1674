"""Join the dimensions of a route to its changes.

Each micro-batch reads a dimension at one version, the newest when the micro-batch starts. Spark evaluates the frame more
than once and must get equal rows each time. Spark broadcasts a dimension below ``spark.sql.autoBroadcastJoinThreshold``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegralType, StructField, StructType

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import UNKNOWN_SPARK_ERROR
from cdf_replicator.errors.exceptions import EnrichmentError, ErrorDecision, RouteHaltError
from cdf_replicator.route import Source
from cdf_replicator.source.table import SourceTable
from connectors import change
from connectors.names import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from cdf_replicator.route import Dimension, Route

T = TypeVar("T")
EXAMPLES: Final = 3
READ_ERROR: Final = "Encountered error while reading file "
"""Text of Spark's ``FAILED_READ_FILE`` conditions before the URI of the file."""
WAITED_FOR: Final = ("history_lost", "start_out_of_range", "read_failed")
"""Reasons that end when the table is recreated or repaired, since a route reads only the newest version of a dimension."""
NEXT_STEPS: Final = {
    **dict.fromkeys(WAITED_FOR, "Repair or recreate it, unless another process does so now; the route waits for it."),
    "table_missing": "Create it, or correct its PATH or NAME; the route waits for it.",
    "schema_change": "No action needed: the route restarts with the new columns.",
    UNKNOWN_SPARK_ERROR: "The route waits for it. If the error persists, see the log for its full text.",
}
"""Next steps by reason. For any other reason, that of the error's condition applies, such as of an object store."""


class Dimensions:
    """The dimensions of one route. Each run of the route calls ``columns`` first."""

    def __init__(self, spark: SparkSession, route: Route) -> None:
        self._route = route
        self._tables = [DimensionTable(spark, dimension, route) for dimension in route.enrich]

    def columns(self, source: StructType) -> StructType:
        """Open the dimensions and return the columns they add, under their names in the row.

        Raises ``EnrichmentError`` if a dimension can't be read; ``RouteHaltError`` if it lacks a column or a type does not fit.
        """
        return StructType([field for table in self._tables for field in table.columns(source)])

    def snapshot_join(self) -> Callable[[DataFrame], DataFrame]:
        """Look up the newest version of each dimension; return a function that joins these versions to a change frame.

        The frame's ``row`` must have every column of the source. The join adds the columns of the dimensions.
        """
        snapshots = [table.pinned() for table in self._tables]
        return lambda frame: _joined(frame, self._route, snapshots)

    def read_failure(self, error: Exception, source_id: str) -> EnrichmentError | None:
        """Return the error of the dimension whose file a write could not read; None if the write failed otherwise.

        A table that is joined with itself, which has the table id ``source_id``, counts as the source table.
        """
        return next((table.classified(error) for table in self._tables if table.has_file_of(error, source_id)), None)


@dataclass(slots=True)
class DimensionTable:
    """A dimension of a route, as the table that it names."""

    spark: SparkSession
    dimension: Dimension
    route: Route
    _table: SourceTable | None = field(default=None, init=False)
    _schema: StructType = field(default_factory=StructType, init=False)
    _checked: tuple[str, int] | None = field(default=None, init=False)
    """Table id and version of the last checked snapshot. A recreated table repeats versions but has a new id."""

    def columns(self, source: StructType) -> list[StructField]:
        """Reopen the table and check it against the source; return the columns that it adds to the row."""
        self._open()
        self._check_columns(source)
        columns = self.dimension.columns.items()
        return [StructField(name, self._schema[column].dataType) for column, name in columns]

    def pinned(self) -> DataFrame:
        """Return the snapshot of the newest version. Each version is checked once for duplicate keys."""
        table = self._present()
        version = self._read(lambda: table.log.available()[1])
        newest = self._read(table.newest_metadata).table_id, version
        snapshot = self._read(lambda: table.snapshot(version))
        if newest != self._checked:
            self._check_schema(snapshot.schema)
            self._read(lambda: self._check_unique(snapshot, version))
            self._checked = newest
        return snapshot

    def has_file_of(self, error: Exception, source_id: str) -> bool:
        """Return whether Spark could not read a file of this table, which is not the source table."""
        if self._table is None or self._table.metadata.table_id == source_id:
            return False
        return f"{READ_ERROR}{self._table.location}/" in unquote(str(error))

    def _present(self) -> SourceTable:
        """Return the table at its present location. The snapshot of a table that has moved is checked against ``_schema``."""
        if self._table is None:
            return self._open()
        if self._read(self._table.has_moved):
            self._table, self._checked = self._read(self._located), None
        return self._table

    def _located(self) -> SourceTable:
        return SourceTable(self.spark, Source(self.dimension.slug, self.dimension.path, self.dimension.name))

    def _open(self) -> SourceTable:
        table = self._read(self._located)
        self._schema = self._read(table.schema)
        self._table, self._checked = table, None
        return table

    def _check_columns(self, source: StructType) -> None:
        own = [*self.dimension.on.values(), *self.dimension.columns]
        if missing := sorted({name for name in own if name not in self._schema.fieldNames()}):
            raise self._halt(
                f"it has no column {', '.join(missing)}; it has {', '.join(self._schema.fieldNames())}",
                "Correct its ON or COLUMNS",
            )
        if missing := sorted({name for name in self.dimension.on if name not in source.fieldNames()}):
            what = f"ON names {', '.join(missing)}, which table {self.route.source.slug} does not have"
            raise self._halt(what, "Correct its ON")
        for left, right in self.dimension.on.items():
            types = source[left].dataType, self._schema[right].dataType
            if not _comparable(*types):
                what = f"{left} is {types[0].simpleString()} and {right} is {types[1].simpleString()}"
                raise self._halt(f"the join columns differ in type: {what}", "Join columns of the same type")

    def _check_schema(self, schema: StructType) -> None:
        """Raise ``EnrichmentError`` for a changed type or a dropped column, so that the route restarts.

        The next run applies the new type at the sink, or halts if a column is missing.
        """
        names = [*self.dimension.on.values(), *self.dimension.columns]
        known = {field.name: field.dataType for field in schema.fields}
        if any(known.get(name) != self._schema[name].dataType for name in names):
            what = self._named("a joined column changed its type or was dropped")
            raise EnrichmentError(ErrorDecision("restart", "schema_change", what, NEXT_STEPS["schema_change"]))

    def _check_unique(self, snapshot: DataFrame, version: int) -> None:
        on = [F.col(quote_identifier(name)).alias(f"on_{n}") for n, name in enumerate(self.dimension.on.values())]
        keys = snapshot.select(*on)
        complete = reduce(and_, (F.col(name).isNotNull() for name in keys.columns))  # a null joins nothing
        doubled = keys.where(complete).groupBy(*keys.columns).count().where("count > 1").limit(EXAMPLES).collect()
        if doubled:
            examples = ", ".join(f"{tuple(row)[:-1]} ({row['count']} rows)" for row in doubled)
            columns = ", ".join(self.dimension.on.values())
            raise self._halt(
                f"{columns} does not identify a row, so that joined rows would multiply; at version {version} there "
                f"are several of {examples}",
                "Correct its ON",
            )

    def _read(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except RouteHaltError:
            raise
        except Exception as error:
            raise self.classified(error) from error

    def classified(self, error: Exception) -> EnrichmentError:
        """Return the error of the joined table. An error that could end without a command never halts the route."""
        decision = classify_error(error, route=self.route.name)
        if decision.action == "retry_then_halt" or decision.reason in WAITED_FOR:
            decision = replace(decision, action="wait")
        next_step = NEXT_STEPS.get(decision.reason, decision.remedy)
        return EnrichmentError(replace(decision, message=self._named(decision.message), remedy=next_step))

    def _named(self, what: str) -> str:
        dimension = self.dimension
        return f"Table {dimension.slug} ({dimension.location}), which route {self.route.name} joins: {what}"

    def _halt(self, what: str, remedy: str) -> RouteHaltError:
        variable = f"CDF_ROUTES__{self.route.name.upper()}__ENRICH__{self.dimension.slug.upper()}__..."
        return RouteHaltError(
            "bad_dimension",
            self._named(what) + ".",
            f"{remedy} ({variable}), then restart, or reload a changed file: cdf-replicator reload. Or correct that table, "
            f"then run: cdf-replicator resume {self.route.name}",
        )


def _joined(frame: DataFrame, route: Route, snapshots: Sequence[DataFrame]) -> DataFrame:
    row = frame.schema[change.ROW].dataType
    assert isinstance(row, StructType)
    fields = [F.col(change.ROW).getField(name).alias(name) for name in row.fieldNames()]
    result = frame
    for place, (dimension, snapshot) in enumerate(zip(route.enrich, snapshots, strict=True)):
        on = [F.col(quote_identifier(name)).alias(f"on_{place}_{n}") for n, name in enumerate(dimension.on.values())]
        added = F.struct(*(F.col(quote_identifier(column)).alias(name) for column, name in dimension.columns.items()))
        right = snapshot.select(*on, added.alias(f"added_{place}"))
        same = [
            _equal(F.col(change.ROW).getField(own), row[own], F.col(f"on_{place}_{n}"), snapshot.schema[other])
            for n, (own, other) in enumerate(dimension.on.items())
        ]
        result = result.join(right, reduce(and_, same), "left")
        fields += [F.col(f"added_{place}").getField(name).alias(name) for name in dimension.columns.values()]
    others = [name for name in frame.columns if name != change.ROW]
    return result.select(*others, F.struct(*fields).alias(change.ROW))


def _comparable(left: DataType, right: DataType) -> bool:
    return left == right or (isinstance(left, IntegralType) and isinstance(right, IntegralType))


def _equal(left: Column, left_field: StructField, right: Column, right_field: StructField) -> Column:
    """Compare two columns as SQL does, which pads a char to the length of the other. Spark does not pad fields of a struct."""
    types = (str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING")) for field in (left_field, right_field))
    lengths = [int(found[1]) for kind in types if (found := re.fullmatch(r"char\((\d+)\)", kind))]
    if len(set(lengths)) < 2:  # noqa: PLR2004 - a char and a char of another length
        return left == right
    return F.rpad(left, max(lengths), " ") == F.rpad(right, max(lengths), " ")
