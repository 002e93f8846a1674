"""Check the SQL expressions of a route: each depends on one row only, is deterministic, and has a usable type.

The checks read Spark's analysed plan instead of the text, because only the plan shows that ``unix_timestamp()`` reads
the clock.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, NullType

from cdf_replicator.errors.exceptions import RouteHaltError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import DataType, StructType

    from cdf_replicator.route import Route

_TIMELY: Final = (
    "a time such as 'now', 'today' or '12:00' changes every day; delivered rows would not be updated when it changes"
)
_STAR: Final = "* includes the change feed's columns beside the table's; name the columns instead"
_TIMELY_TEXTS: Final = ("now", "today", "tomorrow", "yesterday")
_TO_TIME: Final = ("Cast", "ParseTo", "GetTimestamp")
_TIME_OF_DAY: Final = re.compile(r"\s*(T\d|\d{1,2}:)")
"""Spark converts such a text to a timestamp of the present day."""
_TIMELY_LITERAL: Final = re.compile(
    r"\b(date|timestamp(_ltz)?)\s*(['\"])\s*((now|today|tomorrow|yesterday)\b|T\d|\d{1,2}:)[^'\"]*\3", re.IGNORECASE
)
"""Spark's parser replaces such a literal by its present value, so the analysed plan does not show it."""


def check_filter(schema: StructType, route: Route) -> None:
    """Check that the filter is a condition on a row of this schema; raises ``RouteHaltError``."""
    if route.filter is None:
        return
    found = _analyze(schema, {"FILTER": route.filter}, route)["FILTER"]
    if not isinstance(found, BooleanType):
        raise _invalid(route, "FILTER", route.filter, f"it is of type {found.simpleString()}, not boolean")


def computed_types(schema: StructType, route: Route) -> dict[str, DataType]:
    """Return the types of the computed columns over rows of this schema; raises ``RouteHaltError``."""
    names = {f"COMPUTED {name}": name for name in route.computed}
    found = _analyze(schema, {setting: route.computed[name] for setting, name in names.items()}, route)
    for setting, kind in found.items():
        if isinstance(kind, NullType):
            text = route.computed[names[setting]]
            raise _invalid(route, setting, text, "it has no type; add a type, such as cast(null as string)")
    return {names[setting]: kind for setting, kind in found.items()}


def _analyze(schema: StructType, texts: Mapping[str, str], route: Route) -> dict[str, DataType]:
    if not texts:
        return {}
    rows = SparkSession.builder.getOrCreate().createDataFrame([], schema)
    result = {}
    for setting, text in texts.items():
        try:
            if _has_star(text):
                raise _invalid(route, setting, text, _STAR)
            checked = rows.select(F.expr(text).alias("checked"))
        except (AnalysisException, ParseException) as error:
            raise _invalid(route, setting, text, _first_line(error)) from error
        fault = _TIMELY if _TIMELY_LITERAL.search(text) else _nondeterminism(checked._jdf.queryExecution().analyzed())
        if fault is not None:
            raise _invalid(route, setting, text, fault)
        result[setting] = checked.schema[0].dataType
    return result


def _nondeterminism(plan: Any) -> str | None:
    """Return why an analysed ``SELECT expression`` is not a function of one row; None if it is."""
    patterns: Any = getattr(SparkSession.builder.getOrCreate()._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if plan.getClass().getSimpleName() != "Project" or not plan.child().children().isEmpty():
        return "it reads or returns more than one row (an aggregate, a window, explode)"
    expression = plan.projectList().apply(0)
    if expression.containsPattern(patterns.PLAN_EXPRESSION()):
        return "it reads another table (a subquery), whose changes would not be delivered; to join a table, use ENRICH"
    if expression.containsPattern(patterns.CURRENT_LIKE()):
        return (
            "it depends on when, where or by whom it is evaluated; delivered rows would not be updated when it changes"
        )
    if not expression.deterministic():
        return "it gives another answer each time; a redelivery would differ from the first delivery"
    if any(_is_time_dependent(node) for node in _nodes(expression)):
        return _TIMELY
    return None


def _has_star(text: str) -> bool:
    """Return whether ``*`` takes every column of a frame, such as in ``hash(*)``; ``column.*`` takes fields of a column.

    The rows that are filtered have the columns of the change feed too, which the checked schema lacks. Only the parsed
    expression shows a star, because the analysed plan has the columns in its place.
    """
    parser: Any = SparkSession.builder.getOrCreate()._jsparkSession.sessionState().sqlParser()
    nodes = _nodes(parser.parseExpression(text))
    return any(
        node.getClass().getSimpleName().startswith("UnresolvedStar") and node.target().isEmpty() for node in nodes
    )


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _children(expression):
        yield from _nodes(child)


def _children(expression: Any) -> list[Any]:
    children = expression.children()
    return [children.apply(position) for position in range(children.size())]


def _is_time_dependent(node: Any) -> bool:
    """Return whether a text such as 'today' is converted to a time: ``day > 'today'``, ``ts > '12:00'``."""
    name = node.getClass().getSimpleName()
    kind = str(node.dataType().typeName()) if name.startswith(_TO_TIME) else ""
    if not kind.startswith(("date", "timestamp")):
        return False
    texts = [str(child) for child in _children(node) if child.getClass().getSimpleName() == "Literal"]
    if kind == "timestamp" and len(texts) == 1 and _TIME_OF_DAY.match(texts[0]):  # a second text is a format
        return True
    return any(text.split()[:1] and text.split()[0].lower() in _TIMELY_TEXTS for text in texts)


def _invalid(route: Route, setting: str, text: str, why: str) -> RouteHaltError:
    variable = f"CDF_ROUTES__{route.name.upper()}__{setting.split(maxsplit=1)[0]}"
    what = f"{setting} of route {route.name} ({text}) can't be used: {why.rstrip('.')}."
    return RouteHaltError(
        "bad_expression", what, f"Correct {variable}, then restart, or reload a changed file: cdf-replicator reload"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]
