"""Read the source table of a feature table: its rows, the types of its columns, and the text of an entity."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from connectors.delta.aggregation import columns_read, entity_text
from connectors.delta.feature_settings import DeltaFeaturesOptions
from connectors.delta.tables.session import session
from connectors.errors import PermanentError
from connectors.type_widening import widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.change import RouteSpec


def definition_of(options: DeltaFeaturesOptions, route: RouteSpec) -> str:
    """Return a hash of everything that determines a row, except the source's rows."""
    text = json.dumps([options.aggregates, options.entity, route.filter], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def types_of(route: RouteSpec) -> str:
    """Return the columns that the aggregates read, as text for a table property."""
    options = options_of(route)
    columns = columns_read(source_of(session(), route), options.entity, options.aggregates, route.name)
    return base64.b64encode(columns.json().encode()).decode()


def has_widened(types: str, now: str) -> bool:
    """Return whether a column or a field in ``now`` is wider than in ``types``; both are texts of ``types_of``."""
    from pyspark.sql.types import StructType

    was, becomes = (StructType.fromJson(json.loads(base64.b64decode(text))) for text in (types, now))
    return any(widened(was, becomes))


def options_of(route: RouteSpec) -> DeltaFeaturesOptions:
    assert isinstance(route.options, DeltaFeaturesOptions)
    return route.options


def source_of(session: SparkSession, route: RouteSpec, version: int | None = None) -> DataFrame:
    """Return the rows of the source, at a version if given, that pass the route's filter."""
    at = "" if version is None else f" VERSION AS OF {version}"
    rows = session.sql(f"SELECT * FROM {route.source}{at}")  # noqa: S608 - the operator's own table
    return rows.where(route.filter) if route.filter else rows


def identity_of(route: RouteSpec, within: str = "") -> Column:
    return entity_text(source_of(session(), route), options_of(route).entity, within)


def check_entity(given: StructType, route: RouteSpec) -> None:
    """Check that changes name an entity as the source does, since the aggregation reads the source itself."""
    own = lower(given.fieldNames()) - lower(route.derived_columns)
    if missing := [name for name in options_of(route).entity if name.lower() not in own]:
        raise PermanentError(
            f"ENTITY of route {route.name} names {', '.join(missing)}, which the route leaves out, renames, computes or "
            "joins, or which the source does not have.",
            "Remove COLUMNS, RENAME and the like from the route, and name the columns in AGGREGATES.",
        )


def lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}
