"""Map a Spark schema to fields, and check whether an existing mapping accepts it.

Rows are JSON as ``connectors.rendering`` writes it. ``_source`` keeps that text unchanged, so the types below affect search
only. A timestamp is a ``date``, which has milliseconds but accepts every year up to 9999; ``date_nanos`` refuses
9999-12-31. A whole number is a ``long`` and a float a ``double``, so that a widened column keeps its mapping. A dot in a
name is a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connectors.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.types import DataType, StructType

    from connectors.elasticsearch.dialect import Dialect
    from connectors.settings import Vectors

# Elasticsearch 9.2 refuses every document that contains one of these names, and has no setting to allow them. OpenSearch refuses most of them.
METADATA: Final = frozenset({
    "_data_stream_timestamp", "_doc_count", "_field_names", "_id", "_ignored", "_ignored_source", "_index", "_index_mode",
    "_nested_path", "_primary_term", "_routing", "_seq_no", "_source", "_tier", "_version",
})  # fmt: skip

LONG_DIGITS: Final = 18

TEXTUAL: Final = frozenset({
    "annotated_text", "completion", "constant_keyword", "counted_keyword", "icu_collation_keyword", "keyword",
    "match_only_text", "pattern_text", "search_as_you_type", "semantic_text", "text", "wildcard",
})  # fmt: skip
PARSED: Final = frozenset({"ip", "version", "date", "date_nanos", "geo_point", "geo_shape"})
REAL: Final = frozenset({"double", "float", "scaled_float"})
WHOLE: Final = REAL | {"long", "unsigned_long"}
DATES: Final = frozenset({"date", "date_nanos"})
OBJECTS: Final = frozenset({"object", "nested", "passthrough", "flattened", "flat_object"})
VECTOR_FIELDS: Final = frozenset({"dense_vector", "knn_vector"})
VECTORS: Final = ("array<float>", "array<double>")
CLOSED: Final = frozenset({"flattened", "flat_object"})
"""Objects whose keys are no fields."""

# ``ignore_malformed`` keeps a value that can't be indexed in ``_source`` and names its field in ``_ignored``. Without it
# the server refuses the row. Such values are NaN and infinities, which are text in JSON, and years after 9999.
REAL_NUMBER: Final = {"type": "double", "ignore_malformed": True}
DATE: Final = {"type": "date", "ignore_malformed": True}
STRING: Final = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
OPAQUE: Final = {"type": "object", "enabled": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """The mapping of a Spark type.

    ``definition`` is the mapping of a new field. ``accepts`` are the mapped types of an existing field that can hold the
    type; None means every type.
    """

    definition: Mapping[str, Any]
    accepts: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the schema without fields of its own. ``path`` is dotted; ``column`` is the route's column that holds it."""

    path: str
    column: str
    source: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class MappingDiff:
    """The difference between a schema and a mapping: missing leaves with the ``dynamic`` of their object, conflicts as text."""

    missing: list[tuple[Field, str]] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


KINDS: Final = {  # by Spark's name of the type
    "string": Kind(STRING, TEXTUAL | PARSED),
    "char": Kind(STRING, TEXTUAL | PARSED),
    "varchar": Kind(STRING, TEXTUAL | PARSED),
    "boolean": Kind({"type": "boolean"}, TEXTUAL | {"boolean"}),
    "byte": Kind({"type": "long"}, WHOLE | TEXTUAL | {"integer", "short", "byte", "half_float"}),
    "short": Kind({"type": "long"}, WHOLE | TEXTUAL | {"integer", "short"}),
    "integer": Kind({"type": "long"}, WHOLE | TEXTUAL | DATES | {"integer"}),
    "long": Kind({"type": "long"}, WHOLE | TEXTUAL | DATES),
    "float": Kind(REAL_NUMBER, REAL | TEXTUAL),
    "double": Kind(REAL_NUMBER, REAL | TEXTUAL),
    "date": Kind(DATE, DATES | TEXTUAL),
    "timestamp": Kind(DATE, DATES | TEXTUAL),
    "timestamp_ntz": Kind(DATE, DATES | TEXTUAL),
    "binary": Kind({"type": "binary"}, TEXTUAL | {"binary"}),
    "struct": Kind({"type": "object"}, OBJECTS),  # a struct without fields
    "variant": Kind(OPAQUE, None),
}
AS_TEXT: Final = Kind({"type": "keyword"}, TEXTUAL)  # intervals, times of day


def leaves(schema: StructType, route: str, dialect: Dialect, vectors: Vectors) -> list[Field]:
    """Return the leaves of a schema; raise ``PermanentError`` with the name of each column that the product refuses."""
    kinds = {**KINDS, "map": Kind(dialect.map_field, OBJECTS)}
    plain = [column for column in schema.fields if column.name not in vectors]
    found = [leaf for column in plain for leaf in _leaves(column.dataType, column.name, column.name, kinds)]
    found += [_vector(schema, name, dialect.vector_field(*vectors[name])) for name in vectors]
    paths = {leaf.path for leaf in found}
    wrong = {leaf.column: f"{leaf.path!r}: {fault}" for leaf in found if (fault := _fault(leaf.path, paths))}
    if wrong:
        raise PermanentError(
            f"{dialect.product} can't take {'; '.join(wrong.values())}.",
            f"Rename in CDF_ROUTES__{route.upper()}__RENAME or leave out in CDF_ROUTES__{route.upper()}__COLUMNS: "
            f"{', '.join(wrong)}.",
        )
    return found


def _leaves(data_type: DataType, path: str, column: str, kinds: Mapping[str, Kind]) -> Iterator[Field]:
    from pyspark.sql.types import ArrayType, StructType

    source = data_type.simpleString()
    while isinstance(data_type, ArrayType):  # every field may hold several values
        data_type = data_type.elementType
    if isinstance(data_type, StructType) and data_type.fields:
        for inner in data_type.fields:
            yield from _leaves(inner.dataType, f"{path}.{inner.name}", column, kinds)
    else:
        yield Field(path, column, source, _kind(data_type, kinds))


def _vector(schema: StructType, name: str, definition: Mapping[str, Any]) -> Field:
    held = {column.name: column.dataType.simpleString() for column in schema.fields}
    if held.get(name) not in VECTORS:
        raise PermanentError(
            f"VECTORS names {name}, which is no column of type array<float> of the route.",
            f"Name one of: {', '.join(column for column, kind in held.items() if kind in VECTORS) or 'none'}.",
        )
    return Field(name, name, _shown(definition), Kind(definition, frozenset({definition["type"]})))


def _shown(node: Mapping[str, Any]) -> str:
    """Return the type of a field as text, with its dimension if it is a vector."""
    dimension = node.get("dims", node.get("dimension"))
    return f"{node.get('type', 'object')}" + ("" if dimension is None else f"({dimension})")


def _kind(data_type: DataType, kinds: Mapping[str, Kind]) -> Kind:
    from pyspark.sql.types import DecimalType

    from connectors.rendering import EXACT_DIGITS

    if isinstance(data_type, DecimalType):
        numbers = WHOLE if data_type.scale == 0 and data_type.precision <= LONG_DIGITS else REAL
        # A longer number is rendered as text, which a numeric field accepts too and rounds for search.
        if data_type.precision > EXACT_DIGITS:
            return Kind({"type": "keyword"}, numbers | TEXTUAL)
        return Kind({"type": "double"}, numbers | TEXTUAL)
    return kinds.get(data_type.typeName(), AS_TEXT)


def _fault(path: str, paths: set[str]) -> str | None:
    names = path.split(".")
    if not all(name.strip() for name in names):
        return "the name, or a part of it between dots, is empty"
    if names[0] in METADATA:
        return "the name is reserved for metadata"
    above = (".".join(names[:depth]) for depth in range(1, len(names)))
    if clash := next((prefix for prefix in above if prefix in paths), None):
        return f"the dot makes it a part of {clash!r}, which is a value"
    return None


def properties_of(found: Iterable[Field], mappings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``properties`` that add these fields to ``mappings``. Objects of ``mappings`` keep their type."""
    properties: dict[str, Any] = {}
    for leaf in found:
        *above, name = leaf.path.split(".")
        node, known = properties, mappings
        for part in above:
            known = known.get("properties", {}).get(part, {})
            kept = {"type": known["type"]} if "type" in known else {}
            node = node.setdefault(part, {**kept, "properties": {}})["properties"]
        node[name] = leaf.kind.definition
    return properties


def compare(found: Iterable[Field], mappings: Mapping[str, Any]) -> MappingDiff:
    """Compare each leaf with the mapping of an index."""
    result = MappingDiff()
    for leaf in found:
        node, path, dynamic = _reach(leaf.path, mappings)
        if node is None:
            result.missing.append((leaf, dynamic))
            continue
        mapped = node.get("type", "object")
        opaque = mapped in CLOSED or node.get("enabled") is False
        takes = opaque if path != leaf.path else (node.get("enabled") is False or _accepts(leaf.kind, node))
        if not takes:
            result.conflicts.append(
                f"{path!r} is mapped as {_shown(node)}, the route sends {leaf.source}"
                + (f" for {leaf.path!r}" if path != leaf.path else "")
            )
    return result


def _accepts(kind: Kind, node: Mapping[str, Any]) -> bool:
    mapped = node.get("type", "object")
    fits = kind.accepts is None or mapped in kind.accepts
    return mapped != "alias" and fits and (mapped not in VECTOR_FIELDS or _shown(node) == _shown(kind.definition))


def _reach(path: str, mappings: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str, str]:
    """Return the mapped node at ``path``, its path, and the ``dynamic`` that applies there.

    The node is a value or an opaque object above ``path`` if that would take the value, and None if nothing is mapped.
    Under ``subobjects: false`` names contain dots. The search therefore tries the longest name first.
    """
    node: Mapping[str, Any] = mappings
    rest, dynamic = path.split("."), "true"
    walked: list[str] = []
    while rest:
        dynamic = str(node.get("dynamic", dynamic)).lower()
        properties = node.get("properties", {})
        names = (rest[:length] for length in range(len(rest), 0, -1))
        name = next((name for name in names if ".".join(name) in properties), None)
        if name is None:
            return None, path, dynamic
        node, rest, walked = properties[".".join(name)], rest[len(name) :], [*walked, *name]
        inside = node.get("type", "object") in OBJECTS - CLOSED and node.get("enabled") is not False
        if rest and not inside:
            break
    return node, ".".join(walked), dynamic
