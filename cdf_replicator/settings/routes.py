"""Resolve the routes: the shorthand of a table's SINKS, refined or extended by CDF_ROUTES."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from cdf_replicator.route import Route, Source
from cdf_replicator.settings import projection
from cdf_replicator.settings.groups import supported
from cdf_replicator.settings.models import RouteFields, Table
from cdf_replicator.settings.parsing.errors import Problems, meant
from cdf_replicator.settings.parsing.raw import RawTree, RawValue, split_list
from cdf_replicator.settings.parsing.validation import validate
from connectors import Addressed, SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from connectors import Sink, SinkSettings


SinkParts: TypeAlias = "tuple[type[Sink], SinkSettings | None]"


@dataclass(frozen=True)
class RouteInputs:
    """Tables and sinks that routes refer to.

    A table or sink is None if it was given but is not valid; its routes are then not checked.
    """

    tables: Mapping[str, Table | None]
    sinks: Mapping[str, SinkParts | None]
    shorthands: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Where a route writes. ``text``: for people. ``places``: see ``Addressed.places``."""

    route: Route
    kind: type[Sink]
    settings: SinkSettings
    text: str
    places: frozenset[str]

    @classmethod
    def of(cls, route: Route, sink: Sink) -> Target:
        """Return where a route writes by its sink, which may raise an error for the route's options."""
        spec = route.spec(owner="", epoch=0)
        places = sink.places(spec) if isinstance(sink, Addressed) else frozenset()
        return cls(route, type(sink), sink.settings, sink.target(spec), places)

    def meets(self, other: Target) -> bool:
        """Return whether both routes may write the same entry. Sinks without places must have the same settings."""
        comparable = bool(self.places and other.places) or (self.kind is other.kind and self.settings == other.settings)
        return comparable and self.may_meet(other)

    def may_meet(self, other: Target) -> bool:
        """Return whether both routes may write the same entry, also where different settings name the same place.

        A sink without places is compared by its text.
        """
        prefixes = self.kind.capabilities.prefix_targets and other.kind.capabilities.prefix_targets
        if self.places and other.places:
            pairs = product(self.places, other.places)
            return any(_overlap(here, there, prefixes=prefixes) for here, there in pairs)
        return _overlap(self.text, other.text, prefixes=prefixes)


def shorthands(tables: Mapping[str, RawTree], problems: Problems) -> dict[str, tuple[str, str]]:
    """Return ``<table>_<sink>`` -> (table, sink) before the tables are validated; add a problem for a repeated name."""
    result: dict[str, tuple[str, str]] = {}
    for table, tree in tables.items():
        node = tree.get("sinks")
        for sink in dict.fromkeys(_sinks(node)):
            name = f"{table}_{sink}"
            if name in result:
                other = " and ".join(
                    f"table {table!r} with sink {sink!r}" for table, sink in (result[name], (table, sink))
                )
                shown = node.display if isinstance(node, RawValue) else None
                expected = f"distinct route names, but {other} both give {name!r}; define one explicitly with CDF_ROUTES__<ROUTE>__TABLE and __SINK"
                problems.add(("tables", table, "sinks"), shown, expected)
            result.setdefault(name, (table, sink))
    return result


def _sinks(node: RawTree | RawValue | None) -> list[str]:
    value = node.value if isinstance(node, RawValue) else None
    try:
        items = split_list(value) if isinstance(value, str) else value
    except ValueError:
        return []
    return [item for item in items if isinstance(item, str)] if isinstance(items, list) else []


def resolve_routes(parts: RouteInputs, trees: Mapping[str, RawTree], problems: Problems) -> dict[str, Route]:
    """Return every valid route by name."""
    routes = {}
    for name in sorted({*parts.shorthands, *trees}):
        route = _route(name, trees.get(name, {}), parts, problems)
        if route is not None:
            routes[name] = route
    _refuse_shared_targets(routes, parts, problems)
    return routes


def _route(name: str, tree: RawTree, parts: RouteInputs, problems: Problems) -> Route | None:
    path = ("routes", name)
    own: RawTree = {key: node for key, node in tree.items() if key in RouteFields.model_fields}
    rest: RawTree = {key: node for key, node in tree.items() if key not in own and key != "enrich"}
    fields = validate(RouteFields, own, path, problems)
    ends = _ends(name, fields, parts, problems) if fields is not None else None
    if fields is None or ends is None:
        return None
    table_slug, sink_slug = ends
    table, sink = parts.tables[table_slug], parts.sinks[sink_slug]
    if sink is None:
        return None
    before = len(problems)
    rest = supported(rest, path, problems, own=sink[0].Options.model_fields)
    options = validate(sink[0].Options, rest, path, problems, also=(*RouteFields.model_fields, "enrich"))
    joined = projection.dimensions(tree.get("enrich"), (*path, "enrich"), problems)
    projection.check_projection(path, fields, joined, sink[0].mode, problems)
    if table is None or options is None:
        return None
    keys = table.keys if fields.keys is None else fields.keys
    if sink[0].mode == "upsert" and not keys:
        expected = f"the columns that identify a row, since sink {sink_slug!r} keeps one entry per key"
        problems.add(("tables", table_slug, "keys"), None, expected)
    if len(problems) > before:
        return None
    return Route(
        name=name,
        source=_source(table_slug, table),
        sink=sink_slug,
        keys=keys,
        filter=fields.filter,
        columns=fields.columns,
        rename=fields.rename,
        options=options,
        computed=fields.computed,
        enrich=joined,
        schema_changes=fields.schema_changes,
    )


def _source(slug: str, table: Table) -> Source:
    return Source(slug, **table.model_dump(exclude={"keys", "sinks"}))


def _ends(name: str, fields: RouteFields, parts: RouteInputs, problems: Problems) -> tuple[str, str] | None:
    """Return table and sink of a route; add a problem and return None if it has none."""
    before = len(problems)
    short = parts.shorthands.get(name)
    if short is None and fields.table is None and fields.sink is None:
        near = difflib.get_close_matches(name, parts.shorthands, n=1)
        names = (
            f"did you mean {near[0]!r}?"
            if near
            else f"routes of the tables' SINKS: {', '.join(parts.shorthands) or 'none'};"
        )
        expected = f"TABLE and SINK, or the name of a route to refine; {names}"
        problems.add(("routes", name, "table"), None, expected.rstrip(";"))
        return None
    ends = []
    for field_name, given, implied, known in (
        ("table", fields.table, short and short[0], parts.tables),
        ("sink", fields.sink, short and short[1], parts.sinks),
    ):
        path = ("routes", name, field_name)
        if given is not None and implied is not None and given != implied:
            expected = f"{implied!r}, since CDF_TABLES__{(short or ('',))[0].upper()}__SINKS already makes a route {name!r}; or another name for this route"
            problems.add(path, repr(given), expected)
        value = given or implied
        if value is None:
            problems.add(path, None, f"the {field_name} of a route spelled out; one of: {_list(known)}")
        elif value not in known:
            where = path if given is not None else ("tables", (short or ("",))[0], "sinks")
            own = f"CDF_{field_name.upper()}S__{value.upper()}__..."
            expected = f"a {field_name} with settings of its own ({own}); {meant(value, known)}"
            problems.add(where, repr(value), expected)
        else:
            ends.append(value)
    return (ends[0], ends[1]) if len(problems) == before else None


def _refuse_shared_targets(routes: Mapping[str, Route], parts: RouteInputs, problems: Problems) -> None:
    """Add a problem for each route that writes to another route's target, whatever the other settings of the sinks are."""
    targets: list[Target] = []
    for route in routes.values():
        sink = parts.sinks[route.sink]
        if sink is None or sink[1] is None:
            continue
        target = _target(route, sink[0], sink[1], problems)
        if target is None:
            continue
        other = next((other for other in targets if target.meets(other)), None)
        if other is not None:
            expected = (
                f"a target of its own, but route {other.route.name!r} already writes to {other.text!r}; "
                f"{_remedy(target, other)}"
            )
            problems.add(("routes", route.name), repr(target.text), expected)
        targets.append(target)


def _remedy(target: Target, other: Target) -> str:
    kind, sink = target.kind, target.route.sink
    options = ", ".join(name.upper() for name in kind.Options.model_fields) if kind is other.kind else ""
    remedy = f"give one of them another by its own {options}" if options else "leave one of them out"
    if sink == other.route.sink:
        return remedy
    return f"{remedy}, or point sink {sink!r} at another place than sink {other.route.sink!r}"


def _target(route: Route, kind: type[Sink], settings: SinkSettings, problems: Problems) -> Target | None:
    try:
        return Target.of(route, kind(settings))
    except Exception as error:  # noqa: BLE001 - a third party's sink may raise any error
        names = [name for name in type(route.options).model_fields if name in route.options.model_fields_set]
        path = ("routes", route.name, *names) if len(names) == 1 else ("routes", route.name)
        given = repr(getattr(route.options, names[0])) if len(names) == 1 else None
        expected = isinstance(error, SinkError | ValueError)
        problems.add(path, given, str(error) if expected else f"{type(error).__name__}: {error}")
        return None


def _overlap(one: str, other: str, *, prefixes: bool) -> bool:
    return one == other or (prefixes and (one.startswith(other) or other.startswith(one)))


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
