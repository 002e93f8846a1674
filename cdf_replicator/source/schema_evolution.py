"""Keeps a route in step with its table's schema: judged when its stream starts, looked after with each micro-batch.

Delta ends a stream that meets a new schema, mostly; the stream then starts again and what changed is judged here,
before anything of it is delivered. What Delta passes over in silence is found in the commits of the micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from cdf_replicator.errors.classifier import judge as judge_error
from cdf_replicator.errors.conditions import RESYNC
from cdf_replicator.errors.exceptions import HaltError, SchemaChangedError
from cdf_replicator.source import schema
from cdf_replicator.source.schema import TableSchema
from connectors.change import FEED_COLUMNS
from connectors.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame

    from cdf_replicator.route import Route
    from cdf_replicator.source.schema import Metadata
    from cdf_replicator.source.table import SourceTable
    from cdf_replicator.state.route_state import RouteState


def settled(
    route: Route,
    source: SourceTable,
    state: RouteState,
    frame: DataFrame,
    first: int,
    row_schema: Callable[[StructType], StructType],
) -> tuple[RouteState, DataFrame]:
    """Judge the schema that a stream is about to deliver against the one the route knows; raises ``HaltError``.

    ``first``: the first commit not delivered. ``row_schema``: of a table's schema, what the route makes of it; raises
    where its definition does not fit. Returns the state that knows the new schema, to be saved, and the feed
    without what the route's policy leaves out.
    """
    if not source.metadata.change_feed:
        raise _feed_off(route, source, source.log.latest_version())
    known = None if state.table_schema is None else TableSchema.from_json(state.table_schema)
    now = known_as(source, frame, first, known)
    if known is None:
        return replace(state, table_schema=now.to_json()), frame
    if now.identified and not known.identified:
        known = _identified(source, known, now.version)
        state = replace(state, table_schema=known.to_json())
    changes = schema.compare(known, now)
    if changes and now.version > known.version:  # a replay meets schemas that are older
        mapped = source.metadata.column_mapping
        if mapped:
            _still_readable(route, lambda: row_schema(frame.schema), changes, now.version)
        schema.judge(route, changes, now.version, mapped=mapped)
    if route.schema_changes == "ignore":
        now = schema.without_added(known, now)
        frame = _narrowed_frame(frame, StructType.fromJson(now.columns))
    if changes and now.version > known.version:
        state = replace(state, table_schema=now.to_json())
    return state, frame


def known_as(source: SourceTable, frame: DataFrame, first: int, known: TableSchema | None = None) -> TableSchema:
    """The table's schema that a frame shows, with its ids, as of the commit that made it.

    A stream that tracks schemas may show an older one than the table has by now. ``first``: where to begin to look
    for it; ``known``: if the newest is that one, there is nothing to look for.
    """
    shown, newest = TableSchema(-1, _columns(frame)), source.newest_metadata().schema
    current = not schema.compare(shown, newest)
    if current and (known is None or not schema.compare(known, newest)):
        return newest
    after = range(first, newest.version + 1)
    before = range(min(first, newest.version), -1, -1)
    for version in (*after, *(() if current else before)):
        metadata = source.log.metadata_at(version)
        if metadata is not None and not schema.compare(shown, metadata.schema):
            return metadata.schema
    return newest if current else replace(shown, version=newest.version)


class Lookout:
    """Of one run of a stream: looks into the commits of each micro-batch, before it is delivered.

    ``planned``: the table's newest metadata, read before the stream was planned.
    """

    def __init__(self, route: Route, source: SourceTable, frame: DataFrame, first: int, planned: Metadata) -> None:
        self._route, self._source = route, source
        self._planned: Metadata | None = planned  # until the first micro-batch: the query has started then
        self._delivered = TableSchema(-1, _columns(frame))
        self._next = first

    def check(self, last: int) -> None:
        """See that nothing was passed over up to a commit version; raises ``HaltError``.

        A change feed that was switched off and on again leaves inserts and deletes where updates were, a column dropped
        without column mapping reads as null, and a table replaced in place goes on: Delta's stream raises none of it.
        """
        if self._planned is not None:
            self._check_plan(self._planned)
            self._planned = None
        for version in range(self._next, last + 1):
            metadata = self._source.log.metadata_at(version)
            if metadata is None:
                continue
            if metadata.table_id != self._source.metadata.table_id:
                raise _replaced(self._route, version)
            if not metadata.change_feed:
                raise _feed_off(self._route, self._source, version)
            if not self._source.metadata.column_mapping and self._lost(metadata.schema):
                lost = self._lost(self._source.newest_metadata().schema)  # a column that came back is delivered again
                schema.judge(self._route, lost, version, mapped=False)
        self._next = max(self._next, last + 1)

    def _check_plan(self, planned: Metadata) -> None:
        """See that the table did not change between the plan of the stream and the start of its query.

        Delta reads with the schema it finds at the start, Spark takes the columns by their position, with the types of the
        plan: columns that were moved arrive swapped, numbers of a wider type cut off, and neither of them raises.
        """
        newest = self._source.newest_of(planned.table_id)
        for version in range(planned.schema.version + 1, newest.schema.version + 1):
            metadata = self._source.log.metadata_at(version)
            if metadata is not None and metadata.schema.columns != planned.schema.columns:
                source = self._route.source
                raise SchemaChangedError(
                    f"Table {source.slug} ({source.location}) changed its columns at version {version}, while its stream "
                    "was being started."
                )

    def _lost(self, now: TableSchema) -> list[schema.Change]:
        return [change for change in schema.compare(self._delivered, now) if change.kind == "dropped"]


def _identified(source: SourceTable, known: TableSchema, until: int) -> TableSchema:
    """What the route knows with the ids it got when column mapping was switched on, so that a rename is told as one."""
    for version in range(known.version + 1, until + 1):
        metadata = source.log.metadata_at(version)
        if metadata is not None and metadata.schema.identified:
            if all(change.kind == "added" for change in schema.compare(known, metadata.schema)):
                return replace(schema.without_added(known, metadata.schema), version=known.version)
            break
    return known


def _still_readable(route: Route, read: Callable[[], object], changes: Iterable[schema.Change], version: int) -> None:
    """See that the route's definition does not name what has gone; raises ``HaltError``."""
    try:
        read()
    except Exception as error:
        verdict = judge_error(error, route=route.name)
        if verdict.reason not in ("bad_expression", "bad_dimension"):
            raise
        gone = "; ".join(f"{c.kind} {c.what}" for c in changes if c.kind in ("dropped", "renamed"))
        raise HaltError(
            "schema_change",
            f"Table {route.source.slug} ({route.source.location}) changed at version {version}: {gone}. "
            f"The route's definition names it: {verdict.what}",
            "Correct the route's KEYS, COLUMNS, RENAME, FILTER, COMPUTED or ENRICH. Then "
            + RESYNC[0].lower()
            + RESYNC[1:],
        ) from error


def _feed_off(route: Route, source: SourceTable, version: int) -> HaltError:
    return HaltError(
        "change_feed_off",
        f"The change feed of table {route.source.slug} ({route.source.location}) was off at version {version}: what "
        "changed there can't be told from it.",
        f"Enable it: ALTER TABLE delta.`{source.location}` SET TBLPROPERTIES "
        "(delta.enableChangeDataFeed = true). Then " + RESYNC[0].lower() + RESYNC[1:],
    )


def _replaced(route: Route, version: int) -> HaltError:
    return HaltError(
        "table_replaced",
        f"Table {route.source.slug} ({route.source.location}) was replaced at version {version}: it has a new table id, "
        "so that what the sink holds may be of no row any more.",
        RESYNC,
    )


def _columns(frame: DataFrame) -> dict[str, Any]:
    struct = frame.schema.jsonValue()
    return {**struct, "fields": [field for field in struct["fields"] if field["name"] not in FEED_COLUMNS]}


def _narrowed_frame(frame: DataFrame, wanted: StructType) -> DataFrame:
    names = {field.name.lower(): field.dataType for field in wanted}
    columns = []
    for field in frame.schema:
        column = F.col(quote_identifier(field.name))
        if field.name in FEED_COLUMNS:
            columns.append(column)
        elif field.name.lower() in names:
            columns.append(_narrowed(column, field.dataType, names[field.name.lower()]).alias(field.name))
    return frame.select(*columns)


def _narrowed(column: Column, now: DataType, wanted: DataType) -> Column:
    if '"struct"' not in now.json():
        return column
    if isinstance(now, StructType) and isinstance(wanted, StructType):
        names = {field.name.lower(): field.dataType for field in wanted}
        inner = [field for field in now if field.name.lower() in names]
        fields = [_narrowed(column.getField(f.name), f.dataType, names[f.name.lower()]).alias(f.name) for f in inner]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(now, ArrayType) and isinstance(wanted, ArrayType):
        return F.transform(column, lambda item: _narrowed(item, now.elementType, wanted.elementType))
    if isinstance(now, MapType) and isinstance(wanted, MapType):
        return F.transform_values(column, lambda _, value: _narrowed(value, now.valueType, wanted.valueType))
    return column
