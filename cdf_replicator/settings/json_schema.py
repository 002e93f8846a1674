"""Generate the JSON Schema of the YAML file, so that an editor accepts every value that the service accepts.

The pydantic models describe a value after its text was parsed. A list, a map or a number may also be written as text, as in
a variable. A key without a value counts as not set. This module adds both to the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from cdf_replicator.settings.fields import (
    FILE,
    AnyCase,
    NamePairs,
    classes,
    is_list,
    is_map,
    is_marked,
    may_be_file,
    may_be_pairs,
    parts,
    submodel,
)
from cdf_replicator.settings.models import FIXED_GROUPS, SLUG_PATTERN, Enrichment, General, RouteFields, Table
from cdf_replicator.settings.reference import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    Schema = dict[str, Any]

TEXT: Final = {"type": "string"}
PAIR: Final = {"type": "string", "pattern": "^[^=]+=.+$"}
SCALARS: Final = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
UNSET: Final = {"type": "null"}
GROUP: Final = ["object", "null"]
ANNOTATIONS: Final = ("title", "description", "default")
NUMBER: Final = r"^\s*[+-]?[0-9._]+([eE][+-]?[0-9]+)?\s*$"
TRUE_OR_FALSE: Final = ("true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0")


def json_schema() -> Schema:
    """Return a JSON Schema (2020-12) without required properties, since the environment may supply any value."""
    definitions: Schema = {}
    sinks, routes = [], _schema(RouteFields, "route", definitions)
    routes["properties"]["enrich"] = _by_slug(_schema(Enrichment, "enrichment", definitions))
    for name, kind in kinds().items():
        sink = _schema(kind.Settings, f"sink_{name}", definitions)
        sink["properties"]["type"] = {"const": name, "description": "Makes the sink one of this type."}
        sinks.append(sink)
        for option, schema in _schema(kind.Options, f"route_{name}", definitions).get("properties", {}).items():
            known = routes["properties"].get(option)
            routes["properties"][option] = schema if known is None else {"anyOf": [known, schema]}
    root = _schema(General, "service", definitions)
    root |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "cdf-replicator"}
    root["properties"] |= {
        "tables": _by_slug(_schema(Table, "table", definitions)),
        "sinks": _by_slug({"anyOf": sinks}),
        "routes": _by_slug(routes),
        **{slug: _schema(model, slug, definitions) for slug, model in FIXED_GROUPS.items()},
    }
    return root | {"$defs": definitions}


def _schema(model: type[BaseModel], prefix: str, definitions: Schema) -> Schema:
    """Return the schema of one model with a property for each secret's file.

    Schemas of nested models are added to ``definitions`` under names that start with ``prefix``.
    """
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}_{{model}}")
    for name, inner in schema.pop("$defs", {}).items():
        definitions.setdefault(f"{prefix}_{name}", inner)
    schema.pop("required", None)
    schema["type"] = GROUP
    properties: Schema = schema.setdefault("properties", {})
    for name, field in model.model_fields.items():
        inner_model = submodel(field)
        if inner_model is not None:
            definitions[f"{prefix}_{inner_model.__name__}"] = _schema(inner_model, prefix, definitions)
        properties[name] = _accepted(field, properties[name])
        if may_be_file(field):
            properties[name + FILE] = {"type": ["string", "null"], "description": f"File that holds {name}."}
    return schema


def _accepted(field: FieldInfo, schema: Schema) -> Schema:
    """Widen a field's schema to every spelling that the service parses."""
    noted: Schema = {name: schema[name] for name in ANNOTATIONS if name in schema}
    plain = {name: value for name, value in schema.items() if name not in noted}
    if is_map(field) and isinstance(plain.get("additionalProperties"), dict):
        plain["additionalProperties"] = {"anyOf": [plain["additionalProperties"], UNSET]}
    noted["anyOf"] = [*plain.pop("anyOf", [plain]), *_spellings(field), UNSET]
    return noted


def _spellings(field: FieldInfo) -> list[Schema]:
    """Return the schemas of a value's other spellings in YAML."""
    kinds_of = classes(field)
    if may_be_pairs(field):
        return [TEXT, {"type": "array", "items": TEXT if is_marked(field, NamePairs) else PAIR}]
    if is_map(field):
        return [TEXT, SCALARS] if may_be_file(field) else [TEXT]
    if is_list(field):
        return [TEXT]
    if is_marked(field, AnyCase):
        choices = [value for part in parts(field.annotation) if get_origin(part) is Literal for value in get_args(part)]
        return [{"type": "string", "pattern": _any_case(choices)}]
    if bool in kinds_of:
        return [{"type": "string", "pattern": _any_case(TRUE_OR_FALSE)}, {"enum": [0, 1]}]
    return [{"type": "string", "pattern": NUMBER}] if int in kinds_of or float in kinds_of else []


def _any_case(words: Iterable[str]) -> str:
    """Return a pattern that matches these words in any case, since JSON Schema patterns have no flags."""
    spelled = ("".join(f"[{letter.lower()}{letter.upper()}]" for letter in word) for word in words)
    return f"^({'|'.join(spelled)})$"


def _by_slug(schema: Schema) -> Schema:
    names = {"pattern": SLUG_PATTERN.removesuffix(r"\Z") + "$"}
    return {"type": GROUP, "propertyNames": names, "additionalProperties": schema}
