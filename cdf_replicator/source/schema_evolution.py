"""Detect and check schema changes of a source table at each start of a stream and before each micro-batch.

Delta ends a stream at most schema changes. The stream restarts, and this module checks the change before its rows are
delivered. For changes that Delta does not report, it reads the commits of each micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import RESYNC, RESYNC_CLAUSE
from cdf_replicator.errors.exceptions import RouteHaltError, SchemaChangedError
from cdf_replicator.source import continuity, schema
from cdf_replicator.source.commit_log import CommitMark, Size
from cdf_replicator.source.schema import TableSchema
from connectors.change import FEED_COLUMNS
from connectors.names import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from cdf_replicator.route import Route
    from cdf_replicator.source.schema import Metadata
    from cdf_replicator.source.table import SourceTable


def reconcile(
    route: Route,
    source: SourceTable,
    known: TableSchema | None,
    frame: DataFrame,
    first: int,
    misfit: Exception | None,
) -> tuple[TableSchema, DataFrame]:
    """Reconcile the schema of a frame with the schema that the route delivers; raises ``RouteHaltError``.

    Returns the schema that the route delivers from now on, and the frame without columns that policy ``ignore`` leaves
    out.

    Args:
        route: The route with its schema change policy.
        source: The route's source table.
        known: The schema that the route has delivered; None before its first start.
        frame: The change feed as a stream.
        first: First commit version that is not delivered.
        misfit: The error of the route's definition with the frame's columns; None if it fits them.
    """
    if not source.metadata.change_feed:
        raise _feed_off(route, source.log.latest_version())
    now = table_schema_at(source, frame, first, known)
    if known is None:
        return now, frame
    if now.identified and not known.identified:
        known = _identified(source, known, now.version)
    keeps = route.schema_changes == "ignore"
    changes = schema.diff(replace(known, removed=()) if keeps else known, now)  # the route would not deliver the column
    changed = bool(changes) and now.version > known.version  # a replay reads older schemas too
    # An earlier release delivered a new case of a name without approval.
    recased = all(change.column.lower() == change.now.lower() for change in changes)
    if changed and (not recased or any(map(source.log.metadata_at, range(first, now.version + 1)))):
        mapped = source.metadata.column_mapping
        if mapped and misfit is not None and any(change.kind in ("dropped", "renamed") for change in changes):
            raise _misfit(route, misfit, changes, now.version)
        schema.check_allowed(route, changes, now.version, mapped=mapped)
    if keeps:
        now = schema.without_added(known, now)
        frame = _narrowed_frame(frame, StructType.fromJson(now.columns))
    return (schema.with_removed(known, now, changes) if changed else known), frame


def table_schema_at(source: SourceTable, frame: DataFrame, first: int, known: TableSchema | None = None) -> TableSchema:
    """Return the table schema that a frame has, with column mapping ids and the version of its commit.

    A stream with schema tracking may have an older schema than the table. If the log no longer holds the commit of that schema,
    the version is ``first``: a change that follows it is later, and a replay reads over it.

    Args:
        source: The source table.
        frame: The change feed or a snapshot.
        first: Commit version at which the search starts.
        known: Schema in the route's state; if the newest schema equals it, no search is needed.
    """
    shown, newest = TableSchema(-1, _columns(frame)), source.newest_metadata().schema
    current = not schema.diff(shown, newest)
    if current and (known is None or not schema.diff(known, newest)):
        return newest
    after = range(first, newest.version + 1)
    before = () if current else range(min(first, newest.version), source.log.available()[0] - 1, -1)
    for version in (*after, *before):
        metadata = source.log.metadata_at(version)
        if metadata is not None and not schema.diff(shown, metadata.schema):
            return metadata.schema
    return newest if current else replace(shown, version=min(first, newest.version))


class CommitGuard:
    """Checks the commits of each micro-batch before delivery; belongs to one run of a stream.

    ``planned`` is the table's newest metadata, read before Spark planned the stream.
    """

    def __init__(self, route: Route, source: SourceTable, frame: DataFrame, first: int, planned: Metadata) -> None:
        self._route, self._source = route, source
        self._planned: Metadata | None = planned  # None after the first micro-batch, when the query has started
        self._delivered = TableSchema(-1, _columns(frame))
        self._next = first
        self._last: Size | None = Size(0, 0)
        self._mark: CommitMark | None = None

    def check(self, last: int) -> Size | None:
        """Check the commits up to a version for changes that Delta's stream does not report; raises ``RouteHaltError``.

        The last commit before is checked first, since the table may have been recreated or restored from a copy between two
        triggers of the query.

        After a change feed was disabled and enabled again, updates appear as inserts and deletes. A column dropped
        without column mapping reads as null. A table replaced in place continues under a new id.

        Return what the micro-batch reads at most; None if that is not known. A micro-batch may begin within the last commit of
        the one before, so that the commit counts for both.
        """
        if self._planned is not None:
            self._check_plan(self._planned)
            self._planned = None
        log = self._source.log
        if self._mark is not None:
            continuity.verify_mark(self._source, self._mark, self._source.metadata.table_id)
        sizes = [self._last]
        for version in range(self._next, last + 1):
            commit = log.commit_at(version)
            sizes.append(None if commit is None else commit.size)
            metadata = None if commit is None else commit.metadata
            if metadata is None:
                continue
            if metadata.table_id != self._source.metadata.table_id:
                raise _replaced(self._route, version)
            if not metadata.change_feed:
                raise _feed_off(self._route, version)
            if not self._source.metadata.column_mapping and self._lost(metadata.schema):
                lost = self._lost(self._source.newest_metadata().schema)  # a column that was added again is delivered
                schema.check_allowed(self._route, lost, version, mapped=False)
        self._next = max(self._next, last + 1)
        self._last = sizes[-1]
        self._mark = CommitMark.at(log, last)
        return Size.sum(sizes)

    def _check_plan(self, planned: Metadata) -> None:
        """Check that the table did not change between the plan of the stream and the start of its query.

        Delta reads with the schema at the start. Spark takes columns by position, with the types of the plan. Moved
        columns would be swapped and numbers of a wider type truncated, without an error.
        """
        newest = self._source.newest_of(planned.table_id)
        columns = planned.schema.to_json()["columns"]  # without the highest value of an identity column
        for version in range(planned.schema.version + 1, newest.schema.version + 1):
            metadata = self._source.log.metadata_at(version)
            if metadata is not None and metadata.schema.to_json()["columns"] != columns:
                source = self._route.source
                raise SchemaChangedError(
                    f"Table {source.slug} ({source.location}) changed its columns at version {version}, while its stream "
                    "started."
                )

    def _lost(self, now: TableSchema) -> list[schema.SchemaChange]:
        return [change for change in schema.diff(self._delivered, now) if change.kind == "dropped"]


def _identified(source: SourceTable, known: TableSchema, until: int) -> TableSchema:
    """Return the known schema with the ids that enabling column mapping assigned, so that a rename is detected."""
    for version in range(max(known.version + 1, source.log.available()[0]), until + 1):
        metadata = source.log.metadata_at(version)
        if metadata is not None and metadata.schema.identified:
            if all(change.kind == "added" for change in schema.diff(known, metadata.schema)):
                return replace(schema.without_added(known, metadata.schema), version=known.version)
            break
    return known


def _misfit(route: Route, error: Exception, changes: Iterable[schema.SchemaChange], version: int) -> Exception:
    """Return the error of a definition that names a dropped or renamed column; any other error unchanged."""
    decision = classify_error(error, route=route.name)
    if decision.reason not in ("bad_expression", "bad_dimension"):
        return error
    gone = "; ".join(f"{c.kind} {c.what}" for c in changes if c.kind in ("dropped", "renamed"))
    return RouteHaltError(
        "schema_change",
        f"Table {route.source.slug} ({route.source.location}) changed at version {version}: {gone}. "
        f"The route's definition does not fit the new schema: {decision.message}",
        "Correct the route's KEYS, COLUMNS, RENAME, FILTER, COMPUTED or ENRICH. Then " + RESYNC_CLAUSE,
    )


def _feed_off(route: Route, version: int) -> RouteHaltError:
    return RouteHaltError(
        "change_feed_off",
        f"The change feed of table {route.source.slug} ({route.source.location}) was off at version {version}, so the "
        "feed lacks the changes of that version.",
        f"Run: cdf-replicator enable {route.source.slug}. It enables the feed if necessary. Then " + RESYNC_CLAUSE,
    )


def _replaced(route: Route, version: int) -> RouteHaltError:
    return RouteHaltError(
        "table_replaced",
        f"Table {route.source.slug} ({route.source.location}) was replaced at version {version}: it has a new table id. "
        "The sink may hold entries of rows that no longer exist.",
        RESYNC,
    )


def _columns(frame: DataFrame) -> dict[str, Any]:
    struct = frame.schema.jsonValue()
    return {**struct, "fields": [field for field in struct["fields"] if field["name"] not in FEED_COLUMNS]}


def _narrowed_frame(frame: DataFrame, target: StructType) -> DataFrame:
    names = {field.name.lower(): field.dataType for field in target}
    columns = []
    for field in frame.schema:
        column = F.col(quote_identifier(field.name))
        if field.name in FEED_COLUMNS:
            columns.append(column)
        elif field.name.lower() in names:
            columns.append(_narrowed(column, field.dataType, names[field.name.lower()]).alias(field.name))
    return frame.select(*columns)


def _narrowed(column: Column, now: DataType, target: DataType) -> Column:
    if '"struct"' not in now.json():
        return column
    if isinstance(now, StructType) and isinstance(target, StructType):
        names = {field.name.lower(): field.dataType for field in target}
        inner = [field for field in now if field.name.lower() in names]
        fields = [_narrowed(column.getField(f.name), f.dataType, names[f.name.lower()]).alias(f.name) for f in inner]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(now, ArrayType) and isinstance(target, ArrayType):
        return F.transform(column, lambda item: _narrowed(item, now.elementType, target.elementType))
    if isinstance(now, MapType) and isinstance(target, MapType):
        return F.transform_values(column, lambda _, value: _narrowed(value, now.valueType, target.valueType))
    return column
