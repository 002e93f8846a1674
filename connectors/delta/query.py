"""What the query of a feature table must be so that an entity can be recomputed by itself, and the proof that it is.

The proof is Spark's own. It knows which output columns are distinct, so it says whether the query gives one row per
entity. And its optimizer moves a condition on the entity down to the rows of the source only if that changes no answer:
where it does so everywhere, the answer for an entity depends on the rows of that entity alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from connectors.delta import table
from connectors.delta.errors import line
from connectors.errors import PermanentError
from connectors.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PLACEHOLDER: Final = "{source}"
_VIEW: Final = "cdf_source"
_MARK: Final = 618_033_988


class QueryError(ValueError):
    """The query can't be used; the text says why."""


def answer(query: str, rows: DataFrame) -> DataFrame:
    """The query over these rows. Uses a view of the rows' session, which must be private."""
    rows.createOrReplaceTempView(_VIEW)
    text = query.strip().rstrip(";").replace(PLACEHOLDER, _VIEW)
    return rows.sparkSession.sql(f"SELECT * FROM (\n{text}\n)")  # noqa: S608 - the operator's own query


def checked(query: str, entity: Sequence[str], rows: DataFrame) -> StructType:
    """Return the schema of the query's answer; raises ``QueryError``. ``rows``: any of the source's shape."""
    private = table.private_session(rows.sparkSession)
    source = private.createDataFrame(private.sparkContext.emptyRDD(), rows.schema)
    try:
        result = answer(query, source)
    except Exception as error:
        if type(error).__module__.startswith(("pyspark", "py4j")):
            raise QueryError(f"it can't be run: {line(error)}") from error
        raise
    lacking = [name for name in entity if name.lower() not in {column.lower() for column in result.columns}]
    if lacking:
        raise QueryError(f"its answer has no column {', '.join(lacking)}, only {', '.join(result.columns)}")
    _check_deterministic(result, private)
    _check_one_row_each(result, entity)
    _check_separate(result, entity)
    return result.schema


def _check_deterministic(result: DataFrame, private: SparkSession) -> None:
    jvm: Any = private._jvm
    plan = result._jdf.queryExecution().analyzed()
    timely = plan.containsPattern(getattr(jvm, "org.apache.spark.sql.catalyst.trees.TreePattern").CURRENT_LIKE())
    if timely or not plan.deterministic():
        raise QueryError(
            "its answer changes by itself, with the time or at random, and no change of a row would tell when"
        )


def _check_one_row_each(result: DataFrame, entity: Sequence[str]) -> None:
    plan = result._jdf.queryExecution().optimizedPlan()
    wanted = {name.lower() for name in entity}
    ids = {column.exprId().id() for column in _each(plan.output()) if column.name().lower() in wanted}
    keys = [[part for part in _each(key) if _kind(part) == "AttributeReference"] for key in _each(plan.distinctKeys())]
    distinct = [{part.exprId().id() for part in key} for key in keys]
    if not any(key and key <= ids for key in distinct):
        raise QueryError(
            f"it may give several rows for one {', '.join(entity)}: group by {', '.join(entity)} and nothing else"
        )


def _check_separate(result: DataFrame, entity: Sequence[str]) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    marked = result.where(F.hash(*(F.col(quote_identifier(name)) for name in entity)) == _MARK)
    hashed = ", ".join(rf"{re.escape(name)}#\d+L?" for name in entity)
    mark = re.compile(rf"\(hash\({hashed}, 42\) = {_MARK}\)", re.IGNORECASE)
    for leaf, condition in _leaves(marked._jdf.queryExecution().optimizedPlan()):
        if leaf != "LogicalRDD":
            raise QueryError("it reads something else than {source}, whose changes nobody would see")
        if not mark.search(condition):
            raise QueryError(
                f"the answer for one {', '.join(entity)} depends on rows of others (or on a column renamed to it), so "
                "it can't be recomputed by itself; limits, windows, joins and subqueries must keep to the entity"
            )


def _leaves(plan: Any, condition: str = "") -> Iterator[tuple[str, str]]:
    """The relations a plan reads, in subqueries too, each with the condition right above it."""
    for subquery in _each(plan.subqueries()):
        yield from _leaves(subquery)
    children = list(_each(plan.children()))
    if not children:
        yield _kind(plan), condition
    above = plan.condition().toString() if _kind(plan) == "Filter" else ""
    for child in children:
        yield from _leaves(child, above)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(collection: Any) -> Iterator[Any]:
    """Over a Scala collection."""
    found = collection.iterator()
    while found.hasNext():
        yield found.next()


def refused(error: QueryError, route: str) -> PermanentError:
    return PermanentError(
        f"QUERY of route {route} can't be kept up to date: {error}.",
        f"Correct CDF_ROUTES__{route.upper()}__QUERY or __ENTITY, then restart.",
    )
