"""List every variable with type, default and meaning, generated from the models."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import NoneType
from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

from pydantic_core import PydanticUndefined

import connectors
from cdf_replicator.settings.fields import (
    JsonObject,
    NamePairs,
    is_list,
    is_map,
    is_marked,
    is_secret,
    may_be_file,
    parts,
    submodel,
)
from cdf_replicator.settings.models import FIXED_GROUPS, Enrichment, General, RouteFields, Table
from cdf_replicator.settings.parsing.raw import Path, variable_of
from cdf_replicator.settings.parsing.sources import CONFIG_FILE
from cdf_replicator.settings.redact import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from connectors import Sink

_WORDS: Final = {bool: "true or false", int: "whole number", float: "number", str: "text", FilePath: "text"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One variable.

    Args:
        group: heading in the documentation.
        default: the default as text; empty if there is none, ``required`` if a value must be given.

    """

    group: str
    variable: str
    type: str
    default: str
    meaning: str


def reference() -> list[Entry]:
    """Return the service's variables, then those of each installed sink type, each followed by its route options."""
    entries = list(_entries("Service", General, ()))
    config = "YAML file of the same shape; the environment overrides it key by key."
    entries.append(Entry("Service", CONFIG_FILE, "text", "", config))
    entries += _entries("Tables", Table, ("tables", "<table>"))
    entries += _entries("Routes", RouteFields, ("routes", "<route>"))
    entries += _entries("Routes", Enrichment, ("routes", "<route>", "enrich", "<name>"))
    for name, kind in kinds().items():
        entries += _entries(f"Sinks of type {name}", kind.Settings, ("sinks", "<sink>"), name)
        entries += _entries(f"Routes to sinks of type {name}", kind.Options, ("routes", "<route>"))
    for slug, model in FIXED_GROUPS.items():
        entries += _entries(slug.upper() if slug == "http" else slug.capitalize(), model, (slug,))
    return entries


def kinds() -> dict[str, type[Sink]]:
    """Return every sink type that can be loaded; a type whose client library is missing is left out."""
    result = {}
    for name in connectors.installed():
        with suppress(connectors.SinkNotFoundError):
            result[name] = connectors.load(name)
    return result


def _entries(group: str, model: type[BaseModel], path: Path, type_name: str | None = None) -> Iterator[Entry]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        inner = submodel(field)
        if inner is not None:
            yield from _entries(group, inner, here)
        elif type_name is not None and name == "type":
            yield Entry(group, variable_of(here), type_name, "required", "Makes the sink one of this type.")
        else:
            yield Entry(group, variable_of(here), _type(field), _default(field), field.description or "")


def _type(field: FieldInfo) -> str:
    kinds = parts(field.annotation)
    choices = [str(value) for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if choices:
        return " or ".join(choices)
    if is_secret(field):
        return "secret, or its file as ..._FILE"
    if is_map(field):
        return _map_type(field)
    if is_list(field):
        return "list: a,b or JSON"
    return " or ".join(_WORDS.get(kind, getattr(kind, "__name__", "text")) for kind in kinds if kind is not NoneType)


def _map_type(field: FieldInfo) -> str:
    if may_be_file(field):
        return "JSON object, or its file as ..._FILE"
    if is_marked(field, JsonObject):
        return "JSON object"
    return "list: a,b=c or JSON" if is_marked(field, NamePairs) else "map: a=b,c=d or JSON"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True) if not field.default_factory_takes_validated_data else None
    return "" if value in (None, (), {}, PydanticUndefined) else shown(value)
