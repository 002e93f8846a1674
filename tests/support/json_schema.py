"""Match a document against a JSON Schema, as far as ours go: no validator is among the tests' packages."""

from __future__ import annotations

import re
from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
WITHOUT_EFFECT = {"$schema", "$defs", "title", "description", "default", "format", "writeOnly"}
BOUNDS = {
    "minimum": lambda value, said: value >= said,
    "maximum": lambda value, said: value <= said,
    "exclusiveMinimum": lambda value, said: value > said,
    "exclusiveMaximum": lambda value, said: value < said,
}
LENGTHS = {
    "minLength": lambda value, said: len(value) >= said,
    "maxLength": lambda value, said: len(value) <= said,
    "pattern": lambda value, said: re.search(said, value) is not None,
}


def matches(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    """Return whether the schema takes the value; a keyword that is not known here is an error."""
    if isinstance(schema, bool):
        return schema
    rest = dict(schema)
    properties = rest.pop("properties", {})
    if isinstance(value, dict):
        fitting = (
            all(matches(value[key], properties[key], root) for key in value.keys() & properties)
            and all(
                matches(value[key], rest.get("additionalProperties", True), root) for key in value.keys() - properties
            )
            and all(matches(key, rest.get("propertyNames", True), root) for key in value)
        )
    else:
        fitting = not isinstance(value, list) or all(matches(item, rest.get("items", True), root) for item in value)
    for name in ("additionalProperties", "propertyNames", "items"):
        rest.pop(name, None)
    return fitting and all(_says(name, said, value, root) for name, said in rest.items() if name not in WITHOUT_EFFECT)


def _says(name: str, said: Any, value: Any, root: dict[str, Any]) -> bool:
    if name == "$ref":
        return matches(value, root["$defs"][said.rpartition("/")[2]], root)
    if name == "anyOf":
        return any(matches(value, one, root) for one in said)
    if name in ("const", "enum"):
        return value in (said if name == "enum" else [said])
    if name == "type":
        return any(_is(value, kind) for kind in ([said] if isinstance(said, str) else said))
    if name in LENGTHS:
        return not isinstance(value, str) or LENGTHS[name](value, said)
    return not _is(value, "number") or BOUNDS[name](value, said)


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
    return isinstance(value, TYPES[kind])
