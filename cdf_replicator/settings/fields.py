"""Describe what a field of the models accepts, and in which spelling."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

FILE: Final = "_file"
"""Ending of the setting that names the file of a secret."""


class MayHoldSecrets:
    """Marks a field other than ``SecretStr`` that may hold secrets and may therefore be given as ``..._FILE``."""


class JsonObject:
    """Marks a map whose text must be a JSON object."""


class NamePairs:
    """Marks a map of names that may be given as names alone: ``a,b=c``."""


class AnyCase:
    """Marks a choice of words in any case."""


def parts(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, without ``Annotated`` and ``Optional``."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for arm in get_args(annotation) if arm is not type(None) for part in parts(arm)]
    if hasattr(annotation, "__metadata__"):
        return parts(annotation.__origin__)
    return [annotation]


def classes(field: FieldInfo) -> list[type]:
    """Return those of ``parts`` that are classes, without their arguments: ``tuple`` for ``tuple[str, ...]``."""
    kinds = [get_origin(part) or part for part in parts(field.annotation)]
    return [kind for kind in kinds if isinstance(kind, type)]


def is_secret(field: FieldInfo) -> bool:
    return any(issubclass(kind, SecretStr | SecretBytes) for kind in classes(field))


def may_be_file(field: FieldInfo) -> bool:
    return is_secret(field) or is_marked(field, MayHoldSecrets)


def is_marked(field: FieldInfo, mark: type) -> bool:
    return any(isinstance(item, mark) for item in field.metadata)


def spelling(field: FieldInfo) -> str:
    """Return the accepted spelling of a list or a map."""
    if not is_map(field):
        return "a,b or a JSON array"
    if not may_be_pairs(field):
        return "a JSON object"
    return "a,b=c or a JSON object" if is_marked(field, NamePairs) else "a=b,c=d or a JSON object"


def may_be_pairs(field: FieldInfo) -> bool:
    """Return whether a map may be written as ``a=b``, item by item."""
    return is_map(field) and not is_marked(field, JsonObject) and not may_be_file(field)


def may_show_secrets(field: FieldInfo) -> bool:
    """Return whether a value may hold a secret, as a text in the place of a group may."""
    return may_be_file(field) or submodel(field) is not None


def submodel(field: FieldInfo) -> type[BaseModel] | None:
    found = [kind for kind in classes(field) if issubclass(kind, BaseModel)]
    return found[0] if len(found) == 1 else None


def is_map(field: FieldInfo) -> bool:
    return any(kind in (dict, Mapping) for kind in classes(field))


def is_list(field: FieldInfo) -> bool:
    kinds = classes(field)
    if any(kind is str or issubclass(kind, BaseModel) for kind in kinds):
        return False
    return any(issubclass(kind, Iterable) and kind not in (dict, Mapping, bytes) for kind in kinds)


def check_token(value: SecretStr) -> SecretStr:
    """Raise ``ValueError`` for a token that no client can send in a header."""
    if re.search(r"[^!-~]", value.get_secret_value()):
        raise ValueError("a token of printable ASCII characters without blanks")
    return value


def parse_timestamp(text: str) -> datetime | None:
    """Parse a text such as ``2026-01-31`` or ``2026-01-31T12:00:00.5+02:00``; return None if it is no date or time.

    The time is UTC unless the text has an offset.
    """
    match = re.fullmatch(
        r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?(?: ?(?:Z|UTC|([+-]\d{2}):?(\d{2})))?",
        text,
        re.ASCII,
    )
    if match is None:
        return None
    day, minute, second, fraction, hours, minutes = match.groups()
    offset = f"{hours}:{minutes}" if hours else "+00:00"
    try:
        return datetime.fromisoformat(
            f"{day}T{minute or '00:00'}:{second or '00'}.{(fraction or '0').ljust(6, '0')}{offset}"
        )
    except ValueError:
        return None
