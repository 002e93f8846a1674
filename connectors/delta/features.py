"""``delta_features``: the answer of a SQL aggregation, one row per entity, kept up to date in a Delta table.

The table is ``<PATH>/<route name>``: the columns of ``QUERY`` and ``_cdf_guard``. A micro-batch names the entities
whose rows changed, both images of an update count; for these alone the query is run again over the newest snapshot of
the source, and merged. An entity that has no row in the answer any more is removed.

A row says what the query says of its entity at some version at or after the entity's last change that was delivered, so
that the table converges to ``QUERY`` over the whole source. The guard is that version: an older answer never overwrites.
"""

from __future__ import annotations

import hashlib
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import Field, field_validator

from connectors.change import CHANGE_TYPE, ROW, guard_of
from connectors.delta import query, table
from connectors.delta.errors import classified
from connectors.delta.sink import DeltaSettings, DeltaSink
from connectors.errors import PermanentError
from connectors.result import FrameResult, Held
from connectors.sink import RouteOptions
from connectors.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.change import Batch, RouteSpec
    from connectors.sink import Mode

HELD_GUARD: Final = "_cdf_guard"
_PRESENT: Final = "_cdf_present"
_KIND: Final = "_cdf_change_type"


class DeltaFeaturesSettings(DeltaSettings):
    path: str = Field(min_length=1, description="Folder; each route gets the Delta table <PATH>/<route name>.")


class DeltaFeaturesOptions(RouteOptions):
    entity: tuple[str, ...] = Field(
        min_length=1, description="Columns that name an entity, in the source and in QUERY."
    )
    query: str = Field(description="SELECT ... FROM {source} GROUP BY the entity: one row each. Resync after a change.")

    @field_validator("query")
    @classmethod
    def _query_has_a_source(cls, text: str) -> str:
        if query.PLACEHOLDER not in text:
            raise ValueError(
                "a query with {source} where the source table belongs: SELECT ... FROM {source} GROUP BY ..."
            )
        return text


class DeltaFeaturesSink(DeltaSink):
    """One row per entity."""

    Settings = DeltaFeaturesSettings
    Options = DeltaFeaturesOptions
    mode: ClassVar[Mode] = "append"
    preimages = True
    what = "feature"

    def target(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/{route.name}"

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """See that the query can be kept up to date, and that the table takes its answer."""
        path, options = self.target(route), _options(route)
        _check_entity(schema, route)
        try:
            answer = query.checked(options.query, options.entity, _source(table.session(), route))
        except query.QueryError as error:
            raise query.refused(error, route.name) from error
        self.check_columns(answer, route, (HELD_GUARD,))
        columns = type(answer)([*answer.fields]).add(HELD_GUARD, "long")
        text = f"{options.query}\x1f{','.join(options.entity)}\x1f{route.filter or ''}"
        definition = hashlib.sha256(text.encode()).hexdigest()
        if not table.exists(path):
            table.create(path, columns)
        else:
            self.check_table(path, (HELD_GUARD,))
            self.check_sole(path, route)
            if self.redefined(route, definition, "ENTITY or QUERY"):
                table.replace(path, columns)
            table.grow(path, columns)
        self.record_claim(route, definition)
        return ()

    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Recompute the entities of the batch and merge them."""
        from pyspark.sql import functions as F  # noqa: N812

        route, path = batch.route, self.target(batch.route)
        app, entity = table.application(batch.route, path, batch.request), _options(batch.route).entity
        if batch.replay:
            session = table.private_session(frame.sparkSession)
        elif table.recorded(path, app) >= batch.txn_version:
            return FrameResult(skipped=True)
        else:
            session = table.transaction(frame.sparkSession, app, batch.txn_version)
        self.check_kept(route)
        names = [F.col(f"{ROW}.{quote_identifier(name)}").alias(name) for name in entity]
        touched = frame.select(F.col(CHANGE_TYPE).alias(_KIND), *names).persist()
        try:
            given = {row[0]: row[1] for row in touched.groupBy(_KIND).count().collect()}
            entities = None if given.keys() == {"snapshot"} else touched.drop(_KIND).distinct()
            self._recompute(session, entities, route, path)
        except Exception as error:
            raise classified(error, path) from error
        finally:
            touched.unpersist()
        return FrameResult(given)

    def count(self, route: RouteSpec, below_guard: int) -> Held:
        """Count rows by their guard."""
        from pyspark.sql import functions as F  # noqa: N812

        path = self.target(route)
        if not table.exists(path):
            return Held()
        self.check_table(path, (HELD_GUARD,))
        older = F.col(HELD_GUARD).isNull() | (F.col(HELD_GUARD) < below_guard)
        rows = table.session().read.format("delta").load(path)
        told = rows.agg(F.count("*"), F.count_if(older), F.max(HELD_GUARD)).first()
        assert told is not None
        return Held(told[0], told[1], told[2] or 0)

    def sweep(self, route: RouteSpec, below_guard: int) -> int:
        """Remove the rows the new epoch's first load has not written: entities that have no row any more."""
        orphans = f"{HELD_GUARD} IS NULL OR {HELD_GUARD} < {below_guard}"
        name = table.identifier(self.target(route))
        told = table.session().sql(f"DELETE FROM {name} WHERE {orphans}").first()  # noqa: S608 - a quoted path, a number
        assert told is not None
        return int(told["num_affected_rows"])

    def _recompute(self, session: SparkSession, entities: DataFrame | None, route: RouteSpec, path: str) -> None:
        """Merge the answer for these entities, or for all there are."""
        from delta.tables import DeltaTable
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.delta import shape

        options, version = _options(route), table.latest_version(session, route.source)
        rows = _source(session, route, version)
        if entities is not None:
            touched = entities.alias("touched")
            rows = rows.alias("source").join(touched, _same("source", "touched", options.entity), "left_semi")
        answer = query.answer(options.query, rows).withColumn(_PRESENT, F.lit(True))
        if entities is not None:
            both = touched.join(answer.alias("answer"), _same("touched", "answer", options.entity), "left")
            own = [name for name in answer.columns if name.lower() not in _lower(options.entity)]
            named = [F.col(f"touched.{quote_identifier(name)}") for name in options.entity]
            answer = both.select(*named, *(F.col(f"answer.{quote_identifier(name)}") for name in own))
        answer = shape.fit(answer, table.schema_of(path))
        guard = guard_of(route.epoch, version, upsert=True)
        columns: dict[str, str | Column] = {
            quote_identifier(name): F.col(f"answer.{quote_identifier(name)}")
            for name in answer.columns
            if name != _PRESENT
        }
        columns[HELD_GUARD] = F.lit(guard)
        held = DeltaTable.forPath(session, path).alias("held")
        on = " AND ".join(
            f"held.{quote_identifier(name)} <=> answer.{quote_identifier(name)}" for name in options.entity
        )
        not_older = f"(held.{HELD_GUARD} IS NULL OR held.{HELD_GUARD} <= {guard})"
        merge = held.merge(answer.alias("answer"), on)
        merge = merge.whenMatchedDelete(f"answer.{_PRESENT} IS NULL AND {not_older}")
        merge = merge.whenMatchedUpdate(not_older, set=columns)
        merge.whenNotMatchedInsert(f"answer.{_PRESENT}", values=columns).execute()


def _options(route: RouteSpec) -> DeltaFeaturesOptions:
    assert isinstance(route.options, DeltaFeaturesOptions)
    return route.options


def _source(session: SparkSession, route: RouteSpec, version: int | None = None) -> DataFrame:
    """The rows of the route: those of the source, at a version, that its filter takes."""
    at = "" if version is None else f" VERSION AS OF {version}"
    rows = session.sql(f"SELECT * FROM {route.source}{at}")  # noqa: S608 - the operator's own table
    return rows.where(route.filter) if route.filter else rows


def _check_entity(given: StructType, route: RouteSpec) -> None:
    """The query reads the source itself, so that the changes must name an entity as the source does."""
    own = _lower(given.fieldNames()) - _lower(route.made)
    if missing := [name for name in _options(route).entity if name.lower() not in own]:
        raise PermanentError(
            f"ENTITY of route {route.name} names {', '.join(missing)}, which the route leaves out, renames, computes or "
            "joins, or which the source does not have.",
            "Leave out COLUMNS, RENAME and the like of the route, and say it in QUERY.",
        )


def _same(one: str, other: str, entity: Sequence[str]) -> Column:
    """Of two aliases. Null is an entity too: a group of its own."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [quote_identifier(name) for name in entity]
    pairs = (F.col(f"{one}.{name}").eqNullSafe(F.col(f"{other}.{name}")) for name in names)
    return reduce(lambda left, right: left & right, pairs)


def _lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}
