"""Build and check the aggregation of a feature table: one ``GROUP BY`` over the entity columns.

The service recomputes only the entities whose rows changed. The result for an entity must therefore depend on the rows of
that entity alone and must not change without a change of a row.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.tables.errors import line
from connectors.errors import RECONFIGURE, PermanentError
from connectors.names import quote_identifier
from connectors.sql.expressions import TIMELY, has_random_iv, has_star, is_time_dependent, items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_REFUSED: Final = {
    "PLAN_EXPRESSION": "it reads another table, whose changes the route does not follow",
    "WINDOW_EXPRESSION": "a window reads the rows of other entities",
    "GENERATOR": "it makes several rows of one",
    "CURRENT_LIKE": "its result changes with the time or the session, without a change of a row",
}
"""Patterns of Spark's analyzed plan, each with the reason of the refusal."""

_EXACT: Final = frozenset(
    ["Count", "CountIf", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg", "HyperLogLogPlusPlus"]
)
"""Classes of Spark's aggregate functions whose result is the same for every order of the rows."""
_SUMS: Final = frozenset({"Sum", "Average"})
"""Classes whose result is the same unless it is a floating-point number."""
_STAR: Final = "* takes every column of the source, those added later too; name the columns instead"
_TYPELESS: Final = re.compile(r'(^|[tT]ype":)"void"')
"""The JSON text of a type that is void, at any depth. Delta's own check lets it pass, but Parquet has no such type."""


def aggregate(rows: DataFrame, entity: Sequence[str], aggregates: Mapping[str, str]) -> DataFrame:
    """Return one row per entity: the entity columns, then a column per SQL aggregate."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.expr(text).alias(name) for name, text in aggregates.items()]
    return rows.groupBy(*(F.col(quote_identifier(name)) for name in entity)).agg(*columns)


def check_aggregates(rows: DataFrame, entity: Sequence[str], aggregates: Mapping[str, str], route: str) -> StructType:
    """Return the schema of the aggregation over ``rows``; raise ``PermanentError`` with the name of an invalid aggregate."""
    for name, text in aggregates.items():
        try:
            starred, result = has_star(text), aggregate(rows, entity, {name: text})
        except Exception as error:
            if type(error).__module__.startswith(("pyspark", "py4j")):
                raise _refused(route, name, text, line(error)) from error
            raise
        if (reason := _STAR if starred else _reason(text, result)) is not None:
            raise _refused(route, name, text, reason)
    return aggregate(rows, entity, aggregates).schema


def aggregate_named(rows: DataFrame, entity: Sequence[str], aggregates: Mapping[str, str], route: str) -> DataFrame:
    """Return ``aggregate``; raise ``PermanentError`` with the name of an aggregate that the columns no longer have."""
    from pyspark.errors import AnalysisException

    try:
        return aggregate(rows, entity, aggregates)
    except AnalysisException:
        check_aggregates(rows, entity, aggregates, route)
        raise


def columns_read(rows: DataFrame, entity: Sequence[str], aggregates: Mapping[str, str], route: str) -> StructType:
    """Return the columns of the source that the aggregation and the filter of ``rows`` read."""
    plan: Any = aggregate_named(rows, entity, aggregates, route)._jdf.queryExecution().analyzed()
    plans = [plan, plan.child()] if plan.child().getClass().getSimpleName() == "Filter" else [plan]
    names = {column.name() for each in plans for column in items(each.references().toSeq())}
    schema = rows.schema
    return type(schema)([field for field in schema if field.name in names])


def same_entity(one: str, other: str, entity: Sequence[str]) -> Column:
    """Return the condition that two aliases have the same entity. Null is an entity: a group of its own."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [quote_identifier(name) for name in entity]
    pairs = (F.col(f"{one}.{name}").eqNullSafe(F.col(f"{other}.{name}")) for name in names)
    return reduce(lambda left, right: left & right, pairs)


def entity_text(source: DataFrame, entity: Sequence[str], within: str) -> Column:
    """Return the JSON text of entity columns, in the types of the source; ``within`` precedes their names."""
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.rendering import json_of

    types = source.select(*map(quote_identifier, entity)).schema
    values = (
        F.col(within + quote_identifier(field.name)).try_cast(field.dataType).alias(field.name) for field in types
    )
    return json_of(F.struct(*values), types)


def struct_of(names: Iterable[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(*map(quote_identifier, names))


def order_dependent(rows: DataFrame, entity: Sequence[str], aggregates: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the aggregates whose values may depend on the order of an entity's rows.

    A floating-point sum rounds differently in another order, and ``max_by`` takes any of several rows with the highest value.
    """
    return tuple(name for name, text in aggregates.items() if not _is_exact(aggregate(rows, entity, {name: text})))


def _is_exact(aggregated: DataFrame) -> bool:
    plan: Any = aggregated._jdf.queryExecution().analyzed()
    return all(
        (kind := function.getClass().getSimpleName()) in _EXACT
        or (kind in _SUMS and function.dataType().typeName() not in ("double", "float"))
        for function in _functions(plan.expressions())
    )


def _functions(expressions: Any) -> Iterator[Any]:
    """Yield the aggregate functions within expressions of the JVM."""
    for expression in items(expressions):
        if expression.getClass().getSimpleName() == "AggregateExpression":
            yield expression.aggregateFunction()
        else:
            yield from _functions(expression.children())


def _reason(text: str, result: DataFrame) -> str | None:
    jvm, plan = result.sparkSession._jvm, result._jdf.queryExecution().analyzed()
    patterns: Any = getattr(jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    for pattern, reason in _REFUSED.items():
        if plan.containsPattern(getattr(patterns, pattern)()):
            return reason
    if not plan.deterministic() or has_random_iv(*items(plan.expressions())):
        return "its result changes at random, without a change of a row"
    if is_time_dependent(text, *items(plan.expressions())):
        return f"{TIMELY}, without a change of a row"
    return _unstorable(result)


def _unstorable(result: DataFrame) -> str | None:
    """Return why Delta can't store the type of the last column; None if it can."""
    kind = result.schema[-1].dataType
    if _TYPELESS.search(kind.json()):
        return "it holds a value of type void; add a type, such as cast(null as string)"
    schemas: Any = getattr(result.sparkSession._jvm, "org.apache.spark.sql.delta.schema.SchemaUtils")
    if schemas.findUnsupportedDataTypes(result._jdf.schema()).isEmpty():
        return None
    advice = "such as unix_micros(max(ts)) - unix_micros(min(ts)) or datediff(max(day), min(day)) for an interval"
    return f"Delta can't store its type {kind.simpleString()}; compute a value of another type, {advice}"


def _refused(route: str, name: str, text: str, reason: str) -> PermanentError:
    return PermanentError(
        f"AGGREGATES of route {route}: {name} ({text}) can't be kept up to date: {reason}.",
        f"Correct CDF_ROUTES__{route.upper()}__AGGREGATES, then {RECONFIGURE}",
    )
