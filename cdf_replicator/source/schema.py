"""Compare table schemas and decide whether a route may continue after a schema change.

Schemas have the JSON form that Delta's log and Spark share. A column is identified by its column mapping id if the table
has ids, else by its name. Order, comments, nullability and constraints are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from cdf_replicator.errors.conditions import RESYNC
from cdf_replicator.errors.exceptions import RouteHaltError
from connectors.type_widening import WHOLE, widens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cdf_replicator.route import Route

Kind = Literal["added", "dropped", "renamed", "widened", "retyped", "replaced", "repartitioned"]

CHANGE_FEED_PROPERTY: Final = "delta.enableChangeDataFeed"
ID: Final = "delta.columnMapping.id"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of a table's columns.

    ``column`` is the dotted path under its former name, empty for ``repartitioned``. ``was`` and ``now`` are types or
    partition columns; ``now`` is the new path of a ``renamed`` column.
    """

    kind: Kind
    column: str
    was: str = ""
    now: str = ""

    @property
    def what(self) -> str:
        """Return the change in words."""
        name = f"column {self.column}" if self.column else "partition columns"
        if self.kind == "replaced":
            return f"{name} by a new one of the same name"
        return name + (f" from {self.was}" if self.was else "") + (f" to {self.now}" if self.now else "")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's schema at a commit ``version``.

    ``columns`` is the struct as JSON. ``partitioned_by`` is None if it is not known. ``removed`` has the lower-case paths of
    columns that were dropped or renamed since the route's epoch began. Entries may still hold their values.
    """

    version: int
    columns: dict[str, Any]
    partitioned_by: tuple[str, ...] | None = None
    removed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        by = None if self.partitioned_by is None else list(self.partitioned_by)
        columns = _bare(self.columns)
        return {"version": self.version, "columns": columns, "partitioned_by": by, "removed": list(self.removed)}

    @property
    def identified(self) -> bool:
        """Return whether all columns have column mapping ids."""
        return all(ID in field["metadata"] for field in self.columns["fields"])

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TableSchema:
        by, removed = fields["partitioned_by"], fields.get("removed", ())  # absent in a file of an older service
        return cls(fields["version"], fields["columns"], None if by is None else tuple(by), tuple(removed))


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's metadata as set by a commit."""

    table_id: str
    schema: TableSchema
    properties: dict[str, str]

    @classmethod
    def parse(cls, version: int, action: str) -> Metadata:
        """Parse the line ``{"metaData": ...}`` of a commit file."""
        fields = json.loads(action)["metaData"]
        columns = json.loads(fields["schemaString"])
        schema = TableSchema(version, columns, tuple(fields["partitionColumns"]))
        return cls(fields["id"], schema, fields.get("configuration", {}))

    @property
    def change_feed(self) -> bool:
        return self.properties.get(CHANGE_FEED_PROPERTY, "false").lower() == "true"

    @property
    def column_mapping(self) -> bool:
        return self.properties.get("delta.columnMapping.mode", "none") != "none"


def diff(old: TableSchema, new: TableSchema) -> list[SchemaChange]:
    """Return the changes of columns and partitioning between two schemas, in no particular order."""
    changes = _replaced(_struct(old.columns, new.columns, ""), old.removed)
    if old.partitioned_by is not None and new.partitioned_by is not None:
        names = {c.column: c.now for c in changes if c.kind == "renamed"}
        if [names.get(name, name) for name in old.partitioned_by] != list(new.partitioned_by):
            by = (", ".join(names) or "none" for names in (old.partitioned_by, new.partitioned_by))
            changes.append(SchemaChange("repartitioned", "", *by))
    return changes


def check_allowed(route: Route, changes: Sequence[SchemaChange], version: int, *, mapped: bool) -> None:
    """Raise ``RouteHaltError`` unless the route may continue after schema changes.

    Args:
        route: The route with its schema change policy.
        changes: The changes to classify.
        version: Commit version that made the last of the changes.
        mapped: True if the table has column mapping, so that Delta can follow a renamed or dropped column. Without
            column mapping, no stream can pass such a commit after a restart; a resync is required.
    """
    table = f"Table {route.source.slug} ({route.source.location})"
    what = f"{table} changed at version {version}: {'; '.join(f'{c.kind} {c.what}' for c in changes)}."
    stops = {"retyped", "replaced", "repartitioned"} | (set() if mapped else {"dropped"})
    if any(change.kind in stops or _retypes_key(change, route) for change in changes):
        raise RouteHaltError("schema_change", f"{what} The stream can't continue across this change.", RESYNC)
    asks = {"fail": {"added", "widened", "dropped", "renamed"}}.get(route.schema_changes, {"dropped", "renamed"})
    allowed = route.source.allow_schema_change
    if not any(change.kind in asks for change in changes) or allowed in ("always", version):
        return
    variable = f"CDF_TABLES__{route.source.slug.upper()}__ALLOW_SCHEMA_CHANGE"
    follow = "" if route.schema_changes != "fail" else f", or set CDF_ROUTES__{route.name.upper()}__SCHEMA_CHANGES=add"
    raise RouteHaltError(
        "schema_change",
        what,
        f"Approve it: set {variable}={version}{follow}, then restart, or reload a changed file: cdf-replicator reload. Entries that are not changed later "
        f"keep their present columns. To rewrite all entries instead, run: cdf-replicator resync {route.name}",
    )


def without_added(old: TableSchema, new: TableSchema) -> TableSchema:
    """Return the new schema without columns and nested fields that the old one lacks, for policy ``ignore``."""
    return TableSchema(new.version, _kept(old.columns, new.columns), new.partitioned_by, old.removed)


def with_removed(old: TableSchema, new: TableSchema, changes: Iterable[SchemaChange]) -> TableSchema:
    """Return the new schema with the paths that were removed before and by the changes, and those of their nested fields."""
    now = _removed(changes)
    nested = {path for path in _paths(old.columns, "") if any(f"{path}.".startswith(f"{former}.") for former in now)}
    return replace(new, removed=tuple(sorted({*old.removed, *nested})))


def _struct(old: dict[str, Any], new: dict[str, Any], prefix: str) -> list[SchemaChange]:
    by_id = all(ID in field["metadata"] for field in (*old["fields"], *new["fields"]))
    before, after = ({_identity(f, by_id=by_id): f for f in struct["fields"]} for struct in (old, new))
    changes = []
    for identity, field in before.items():
        path = prefix + field["name"]
        now = after.get(identity)
        if now is None:
            changes.append(SchemaChange("dropped", path))
            continue
        if by_id and now["name"] != field["name"]:
            changes.append(SchemaChange("renamed", path, now=prefix + now["name"]))
        changes += _type(field["type"], now["type"], path)
    return changes + [SchemaChange("added", prefix + after[new]["name"]) for new in after if new not in before]


def _type(old: Any, new: Any, path: str) -> list[SchemaChange]:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return _struct(old, new, f"{path}.")
        if old["type"] == "array":
            return _type(old["elementType"], new["elementType"], f"{path}.element")
        if old["type"] == "map":
            keys = _type(old["keyType"], new["keyType"], f"{path}.key")
            return keys + _type(old["valueType"], new["valueType"], f"{path}.value")
    if old == new:
        return []
    was, now = (kind if isinstance(kind, str) else kind["type"] for kind in (old, new))
    return [SchemaChange("widened" if widens(was, now) else "retyped", path, was, now)]


def _removed(changes: Iterable[SchemaChange]) -> set[str]:
    return {c.column.lower() for c in changes if c.kind in ("dropped", "renamed") and c.column.lower() != c.now.lower()}


def _paths(kind: Any, path: str) -> Iterator[str]:
    """Yield the lower-case paths of a type's fields at any depth."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        name = f"{path}{field['name']}".lower()
        yield name
        yield from _paths(field["type"], f"{name}.")
    for part, name in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
        yield from _paths(kind.get(part), f"{path}{name}.")


def _replaced(changes: list[SchemaChange], removed: Sequence[str]) -> list[SchemaChange]:
    """Report a column as ``replaced`` if it is added under, or renamed to, the name of a column that was removed before.

    Entries may hold values of the former column, and the change feed has no changes for them. ``removed`` has the paths
    removed by earlier changes. A dropped column of the same name is merged into ``replaced``.
    """
    gone = {*removed, *_removed(changes)}
    new = [c.column if c.kind == "added" else c.now for c in changes if c.kind in ("added", "renamed")]
    taken = {path.lower(): path for path in new if path.lower() in gone}
    rest = [c for c in changes if c.kind not in ("dropped", "added") or c.column.lower() not in taken]
    return rest + [SchemaChange("replaced", path) for path in sorted(taken.values())]


def _retypes_key(change: SchemaChange, route: Route) -> bool:
    """Return whether a widened key column changes the key text.

    If it did, each row would get a second entry (docs/design.md).
    """
    of_key = change.kind == "widened" and change.column in route.keys
    return of_key and not (change.was in WHOLE and change.now in WHOLE)


def _kept(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]):
        return new
    if new["type"] == "struct":
        by_id = all(ID in field["metadata"] for field in (*old["fields"], *new["fields"]))
        before = {_identity(field, by_id=by_id): field for field in old["fields"]}
        fields = [(before.get(_identity(field, by_id=by_id)), field) for field in new["fields"]]
        return {**new, "fields": [{**now, "type": _kept(was["type"], now["type"])} for was, now in fields if was]}
    inner = {"array": ("elementType",), "map": ("keyType", "valueType")}[new["type"]]
    return {**new, **{name: _kept(old[name], new[name]) for name in inner}}


def _identity(field: dict[str, Any], *, by_id: bool) -> object:
    return field["metadata"][ID] if by_id else field["name"].lower()


def _bare(kind: Any) -> Any:
    """Return a schema without the attributes that a comparison ignores, such as comments."""
    if isinstance(kind, list):
        return [_bare(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    known = {key: _bare(value) for key, value in kind.items() if key != "metadata"}
    if "name" in kind:
        known["metadata"] = {ID: kind["metadata"][ID]} if ID in kind["metadata"] else {}
    return known
