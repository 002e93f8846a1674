"""Select and name the columns that a route delivers, or halt the route for a definition that the table contradicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.errors.exceptions import RouteHaltError
from connectors.names import quote_identifier
from connectors.rendering import KEYLESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from cdf_replicator.route import Route


def delivered(names: Sequence[str], route: Route) -> list[Column]:
    """Return the columns of ``row`` for a frame that has columns of these names."""
    columns = [F.col(quote_identifier(name)) for name in wanted(names, route)]
    columns += [F.expr(text) for text in route.computed.values()]
    return [column.alias(name) for column, name in zip(columns, sink_names(names, route), strict=True)]


def wanted(names: Sequence[str], route: Route) -> list[str]:
    return list(names) if route.columns is None else list(route.columns)


def sink_names(names: Sequence[str], route: Route) -> list[str]:
    return [*(route.rename.get(name, name) for name in wanted(names, route)), *route.computed]


def check_names(has: Sequence[str], route: Route) -> None:
    """Raise ``RouteHaltError`` for an absent column or for two columns of the same name.

    Args:
        has: Column names of the source table.
        route: The route whose definition applies.
    """
    names = [*has, *route.joined_columns]
    if missing := [name for name in route.keys if name not in has]:
        joined = " Keys are columns of the table, never joined." if set(missing) & set(route.joined_columns) else ""
        raise _missing(missing, has, route, "KEYS", joined)
    if missing := [name for name in (*wanted(names, route), *route.rename) if name not in names]:
        raise _missing(missing, names, route, "COLUMNS or RENAME")
    if clash := _doubled(names):
        raise RouteHaltError(
            "bad_expression",
            f"Route {route.name} joins a column {clash}, and table {route.source.slug} has one of that name already.",
            "Give it another name in the COLUMNS of its ENRICH: column=name. Then restart, or reload a changed file: cdf-replicator reload",
        )
    if clash := _doubled(sink_names(names, route)):
        raise RouteHaltError(
            "bad_expression",
            f"RENAME or COMPUTED of route {route.name} gives two columns the name {clash}.",
            "Give each column a different name (case is ignored), or remove it from COLUMNS, then restart, or reload a changed file: cdf-replicator reload",
        )


def _missing(
    missing: Sequence[str], known: Sequence[str], route: Route, settings: str, more: str = ""
) -> RouteHaltError:
    return RouteHaltError(
        "bad_expression",
        f"Table {route.source.slug} ({route.source.location}) has no column {', '.join(sorted(set(missing)))}; "
        f"it has {', '.join(known)}.{more}",
        f"Correct {settings} of route {route.name}, then restart, or reload a changed file: cdf-replicator reload",
    )


def _doubled(names: Sequence[str]) -> str:
    """Return the duplicate names as text. Spark and Delta compare names without case."""
    lower = [name.lower() for name in names]
    return ", ".join(sorted({name for name in names if lower.count(name.lower()) > 1}))


def check_keys(table: StructType, route: Route) -> None:
    """Raise ``RouteHaltError`` for a key column of a type that has no unique text per value."""
    keyless = [name for name in route.keys if isinstance(table[name].dataType, KEYLESS)]
    if keyless:
        typed = ", ".join(f"{name} ({table[name].dataType.simpleString()})" for name in keyless)
        raise RouteHaltError(
            "bad_expression",
            f"Key column {typed} of table {route.source.slug} has a type that can't be a key: equal values can have "
            "different texts.",
            f"Name columns of simple types in CDF_TABLES__{route.source.slug.upper()}__KEYS, then restart, or reload a changed file: cdf-replicator reload",
        )
