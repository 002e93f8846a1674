"""Keep SQL aggregates per entity up to date in a Delta table (sink type ``delta_features``).

The table ``<PATH>/<route name>`` has the columns of ``ENTITY``, the columns of ``AGGREGATES``, and ``_cdf_guard``. A
micro-batch determines the entities whose rows changed; both images of an update count. The sink aggregates the rows of
these entities in the newest snapshot of the source and merges the result. It deletes an entity that has no row left.

A row is the aggregate of its entity at some version at or after the entity's last delivered change. The table therefore
converges to the aggregation of the whole source. The guard is that version: an older result never overwrites a newer one.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar, Final

from connectors.change import CHANGE_TYPE, ROW, SNAPSHOT, guard_of
from connectors.delta.aggregation import (
    aggregate,
    aggregate_named,
    check_aggregates,
    order_dependent,
    same_entity,
    struct_of,
)
from connectors.delta.feature_settings import DeltaFeaturesOptions, DeltaFeaturesSettings
from connectors.delta.feature_source import (
    check_entity,
    definition_of,
    has_widened,
    identity_of,
    lower,
    options_of,
    source_of,
    types_of,
)
from connectors.delta.sink import DeltaSink
from connectors.delta.tables import schema as delta_schema
from connectors.delta.tables import table, transactions
from connectors.delta.tables.errors import classified
from connectors.delta.tables.session import session, txn_session
from connectors.delta.tables.snapshot import Snapshot
from connectors.delta.view import TableView, newest_version
from connectors.errors import PermanentError
from connectors.names import quote_identifier
from connectors.protocols import Aggregated, Capabilities, Resyncable
from connectors.result import EntryCount, FrameResult
from connectors.view import IDENTITY, paced

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.change import Batch, RouteSpec, Watermark
    from connectors.sink import Mode
    from connectors.view import View

HELD_GUARD: Final = "_cdf_guard"
_PRESENT: Final = "_cdf_present"
_KIND: Final = "_cdf_change_type"
_TYPES: Final = "cdf_replicator.types"
"""The table property with ``types_of`` the source from which every entity was computed."""
_WIDENED: Final = "cdf-replicator:widened"


class DeltaFeaturesSink(DeltaSink, Resyncable, Aggregated):
    """A sink that keeps one row per entity."""

    Settings = DeltaFeaturesSettings
    Options = DeltaFeaturesOptions
    mode: ClassVar[Mode] = "append"
    capabilities = Capabilities(preimages=True)
    what = "feature"

    def target(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/{route.name}"

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Check that the aggregates can be kept up to date, and that the table takes their columns."""
        path, options = self.target(route), options_of(route)
        check_entity(schema, route)
        result = check_aggregates(source_of(session(), route), options.entity, options.aggregates, route.name)
        self.check_columns(result, route, (HELD_GUARD,))
        columns = type(result)([*result.fields]).add(HELD_GUARD, "long")
        definition, types = definition_of(options, route), {_TYPES: types_of(route)}
        if not table.exists(path):
            delta_schema.create(path, columns, **types)
        else:
            self.check_table(path, (HELD_GUARD,))
            self.check_sole(path, route)
            if self.redefined(route, definition, "ENTITY or AGGREGATES") or not self._fits(columns, route):
                delta_schema.replace(path, columns)
                table.set_properties(path, types)
        self.record_claim(route, definition)
        return ()

    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Recompute the entities of the batch and merge the result."""
        from pyspark.sql import functions as F  # noqa: N812

        route, path = batch.route, self.target(batch.route)
        transaction = transactions.of_batch(batch, path, self.checked_snapshot(route))
        if transaction is None:
            return FrameResult(skipped=True)
        spark, entity = txn_session(frame.sparkSession, *transaction), options_of(route).entity
        names = [F.col(f"{ROW}.{quote_identifier(name)}").alias(name) for name in entity]
        touched = frame.select(F.col(CHANGE_TYPE).alias(_KIND), *names).persist()
        try:
            given = {row[0]: row[1] for row in touched.groupBy(_KIND).count().collect()}
            entities = None if given.keys() == {SNAPSHOT} else touched.drop(_KIND).distinct()
            self._recompute(spark, entities, route, path)
        except Exception as error:
            raise classified(error, path) from error
        finally:
            touched.unpersist()
        return FrameResult(given)

    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        """Record a batch without rows, and recompute every entity if a column that the aggregates read has become wider.

        ``avg`` of a wider decimal has more digits, for example, and the feed holds no change of the old rows.
        """
        super().save_watermark(route, watermark)
        path, types = self.target(route), types_of(route)
        newest = Snapshot(path)
        held = newest.properties.get(_TYPES)
        if held == types:
            return
        if held is not None and has_widened(held, types):  # a table of an earlier release has no such property
            spark = txn_session(session(), _WIDENED, newest.last_txn_version(_WIDENED) + 1)
            names = map(quote_identifier, options_of(route).entity)
            entities = session().read.format("delta").load(path).select(*names).distinct()
            try:
                self._recompute(spark, entities, route, path)
            except Exception as error:
                raise classified(error, path) from error
        table.set_properties(path, {_TYPES: types})

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        """Count rows by their guard."""
        from pyspark.sql import functions as F  # noqa: N812

        path = self.target(route)
        if not table.exists(path):
            return EntryCount()
        self.check_table(path, (HELD_GUARD,))
        older = F.col(HELD_GUARD).isNull() | (F.col(HELD_GUARD) < below_guard)
        rows = session().read.format("delta").load(path)
        found = rows.agg(F.count("*"), F.count_if(older), F.max(HELD_GUARD)).first()
        assert found is not None
        return EntryCount(found[0], found[1], found[2] or 0)

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        """Delete the rows that the new epoch's first load did not write: entities without a row."""
        orphans = f"{HELD_GUARD} IS NULL OR {HELD_GUARD} < {below_guard}"
        name = table.identifier(self.target(route))
        found = session().sql(f"DELETE FROM {name} WHERE {orphans}").first()  # noqa: S608 - a quoted path, a number
        assert found is not None
        return int(found["num_affected_rows"])

    def identity(self, route: RouteSpec) -> Column:
        return identity_of(route, f"{ROW}.")

    def view(self, route: RouteSpec) -> AbstractContextManager[View]:
        path = self.target(route)
        return nullcontext(TableView(path, newest_version(path), identity_of(route)))

    def expected(self, route: RouteSpec, version: int) -> tuple[DataFrame, tuple[str, ...]]:
        options, rows = options_of(route), source_of(session(), route, version)
        answer = aggregate(paced(rows), options.entity, options.aggregates)
        inexact = order_dependent(rows, options.entity, options.aggregates)
        return answer.select(identity_of(route).alias(IDENTITY), struct_of(options.aggregates).alias(ROW)), inexact

    def _fits(self, columns: StructType, route: RouteSpec) -> bool:
        """Evolve the table; return False if it can't take a type in a new epoch, and raise the error within an epoch."""
        try:
            _evolve(self.target(route), columns)
        except PermanentError:
            claim = self.read_claim(route)
            if claim is not None and claim.epoch >= route.epoch:
                raise
            return False
        return True

    def _recompute(self, session: SparkSession, entities: DataFrame | None, route: RouteSpec, path: str) -> None:
        """Merge the aggregates of these entities, or of every entity if None."""
        from delta.tables import DeltaTable
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.delta.tables import shape

        options, version = options_of(route), table.latest_version(session, route.source)
        rows = source_of(session, route, version)
        check_entity(rows.schema, route)  # the newest version may have renamed a column
        if entities is not None:
            touched = entities.alias("touched")
            rows = rows.alias("source").join(touched, same_entity("source", "touched", options.entity), "left_semi")
        answer = aggregate_named(rows, options.entity, options.aggregates, route.name)
        held = _evolved(path, answer.schema)
        answer = answer.withColumn(_PRESENT, F.lit(True))
        if entities is not None:
            both = touched.join(answer.alias("answer"), same_entity("touched", "answer", options.entity), "left")
            own = [name for name in answer.columns if name.lower() not in lower(options.entity)]
            named = [F.col(f"touched.{quote_identifier(name)}") for name in options.entity]
            answer = both.select(*named, *(F.col(f"answer.{quote_identifier(name)}") for name in own))
        answer = shape.fit(answer, held)
        guard = guard_of(route.epoch, version, upsert=True)
        columns: dict[str, str | Column] = {
            quote_identifier(name): F.col(f"answer.{quote_identifier(name)}")
            for name in answer.columns
            if name != _PRESENT
        }
        columns[HELD_GUARD] = F.lit(guard)
        into = DeltaTable.forPath(session, path).alias("held")
        on = " AND ".join(
            f"held.{quote_identifier(name)} <=> answer.{quote_identifier(name)}" for name in options.entity
        )
        not_older = f"(held.{HELD_GUARD} IS NULL OR held.{HELD_GUARD} <= {guard})"
        merge = into.merge(answer.alias("answer"), on)
        merge = merge.whenMatchedDelete(f"answer.{_PRESENT} IS NULL AND {not_older}")
        merge = merge.whenMatchedUpdate(not_older, set=columns)
        merge.whenNotMatchedInsert(f"answer.{_PRESENT}", values=columns).execute()


def _evolved(path: str, given: StructType) -> StructType:
    """Return the columns of the table, which first become as wide as the aggregates of the newest source.

    The source may have become wider after ``prepare``: a MERGE would cut the values, or overflow.
    """
    from connectors.delta.tables import shape

    held = table.schema_of(path)
    types = {field.name.lower(): field.dataType.simpleString() for field in held}
    if all(types.get(one.name.lower()) == one.dataType.simpleString() for one in shape.fitted(given, held)):
        return held
    _evolve(path, given)
    return table.schema_of(path)


def _evolve(path: str, columns: StructType) -> None:
    try:
        delta_schema.evolve_schema(path, columns)
    except PermanentError as error:
        raise PermanentError(error.reason, "Run: cdf-replicator resync {route}") from error
