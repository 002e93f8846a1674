"""List the effective values: for operators with their origins and secrets hidden, and as they are for a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from cdf_replicator.settings.models import FIXED_GROUPS, Enrichment, RouteFields
from cdf_replicator.settings.parsing.raw import DEFAULT, Path, variable_of
from cdf_replicator.settings.redact import HIDDEN, sensitive_conf, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cdf_replicator.route import Route
    from cdf_replicator.settings.loader import Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective setting.

    Args:
        value: the value as text, secrets hidden; None if it is not set.
        origin: source of the value, see ``Settings``.

    """

    variable: str
    path: str
    value: str | None
    origin: str


def effective(settings: Settings) -> list[Setting]:
    """Return every value, defaults included, in the order of the documentation."""
    return [setting(path, value, settings) for path, value in values_of(settings).items()]


def values_of(settings: Settings) -> dict[Path, Any]:
    """Return every value by path, secrets included, in the order of the documentation."""
    values: dict[Path, Any] = {}
    for name in ("state_path", "trigger_seconds", "shutdown_seconds", "routes_include"):
        values[(name,)] = getattr(settings, name)
    groups: list[Mapping[str, Any]] = [settings.tables, settings.sinks]
    for name, group in zip(("tables", "sinks"), groups, strict=True):
        for slug, model in group.items():
            values.update(_fields(model, (name, slug)))
    for route in settings.routes.values():
        values.update(_route(route, settings))
    for name in FIXED_GROUPS:
        values.update(_fields(getattr(settings, name), (name,)))
    return values


def values_read_by(route: Route, settings: Settings) -> dict[Path, Any]:
    """Return every value that a route reads, by path, secrets included. A table's KEYS count as the route's."""
    table, sink = ("tables", route.source.slug), ("sinks", route.sink)
    values: dict[Path, Any] = {(name,): getattr(settings, name) for name in ("trigger_seconds", "shutdown_seconds")}
    values.update(_fields(settings.delivery, ("delivery",)))
    values.update(_fields(settings.tables[route.source.slug], table))
    values.update(_fields(settings.sinks[route.sink], sink))
    values.update(_route(route, settings))
    del values[(*table, "sinks")], values[(*table, "keys")]
    return values | {("routes", route.name, "keys"): route.keys}


def setting(path: Path, value: Any, settings: Settings) -> Setting:
    """Return a value as an operator may see it."""
    text = None if value is None else shown(value)
    origin = settings.origin(path)
    if path[:2] == ("spark", "conf"):
        name = path[-1]
        return Setting(variable_of(path[:2]), f"spark.conf[{name}]", HIDDEN if sensitive_conf(name) else text, origin)
    if origin == DEFAULT and path[0] == "routes" and path[-1] in ("table", "sink"):
        origin = "the table's SINKS"
    return Setting(variable_of(path), ".".join(path), text, origin)


def _fields(model: BaseModel, path: Path) -> Iterator[tuple[Path, Any]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, (*path, name))
        elif path == ("spark",) and name == "conf":
            yield from (((*path, name, key), item) for key, item in value.items())
        else:
            yield (*path, name), value


def _route(route: Route, settings: Settings) -> Iterator[tuple[Path, Any]]:
    """Yield the route's own fields that differ from its table's, then its sink's options."""
    path = ("routes", route.name)
    own: dict[str, Any] = {"table": route.source.slug, "sink": route.sink, "keys": route.keys, "filter": route.filter}
    own |= {"columns": route.columns, "rename": route.rename or None, "computed": route.computed or None}
    own["schema_changes"] = route.schema_changes
    inherited = route.keys == settings.tables[route.source.slug].keys
    for name in RouteFields.model_fields:
        if name != "keys" or not inherited:
            yield (*path, name), own[name]
    for dimension in route.enrich:
        for name in Enrichment.model_fields:
            yield (*path, "enrich", dimension.slug, name), getattr(dimension, name)
    yield from _fields(route.options, path)
