"""Check the SQL expressions of a route: each depends on one row only, is deterministic, and has a usable type.

The checks read Spark's analysed plan instead of the text, because only the plan shows that ``unix_timestamp()`` reads
the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, NullType

from cdf_replicator.errors.exceptions import RouteHaltError
from connectors.sql.expressions import TIMELY, has_random_iv, has_star, is_time_dependent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType, StructType

    from cdf_replicator.route import Route

_TIMELY: Final = f"{TIMELY}; delivered rows would not be updated when it changes"
_STAR: Final = "* includes the change feed's columns beside the table's; name the columns instead"


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
            if has_star(text):
                raise _invalid(route, setting, text, _STAR)
            checked = rows.select(F.expr(text).alias("checked"))
        except (AnalysisException, ParseException) as error:
            raise _invalid(route, setting, text, _first_line(error)) from error
        fault = _fault(text, checked._jdf.queryExecution().analyzed())
        if fault is not None:
            raise _invalid(route, setting, text, fault)
        result[setting] = checked.schema[0].dataType
    return result


def _fault(text: str, plan: Any) -> str | None:
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
    if not expression.deterministic() or has_random_iv(expression):
        return "it gives another answer each time; a redelivery would differ from the first delivery"
    return _TIMELY if is_time_dependent(text, expression) else None


def _invalid(route: Route, setting: str, text: str, why: str) -> RouteHaltError:
    variable = f"CDF_ROUTES__{route.name.upper()}__{setting.split(maxsplit=1)[0]}"
    what = f"{setting} of route {route.name} ({text}) can't be used: {why.rstrip('.')}."
    return RouteHaltError(
        "bad_expression", what, f"Correct {variable}, then restart, or reload a changed file: cdf-replicator reload"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]
