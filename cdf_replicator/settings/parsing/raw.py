"""Raw values before validation: a tree whose leaves record their origin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Union

from cdf_replicator.settings.redact import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "CDF_"
NEST: Final = "__"
ENVIRONMENT: Final = "environment"
MOUNTED: Final = "secret file"
DEFAULT: Final = "default"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawValue:
    """One raw value.

    Args:
        value: text from the environment or from a secret's file, or any YAML scalar or list.
        variable: the variable that held the value, or the variable that overrides it.
        origin: source of the value.

    """

    value: Any
    variable: str
    origin: str

    @property
    def display(self) -> str:
        """The value in a message, credentials hidden."""
        text = repr(shown(self.value)) if isinstance(self.value, str) else shown(self.value)
        return text if self.origin == ENVIRONMENT else f"{text} (in {self.origin})"


RawTree = dict[str, Union["RawTree", RawValue]]


def variable_of(path: Path) -> str:
    return PREFIX + NEST.join(part.upper() for part in path)


def leaves(tree: RawTree | RawValue, path: Path = ()) -> Iterator[tuple[Path, RawValue]]:
    """Yield every value with its path."""
    if isinstance(tree, RawValue):
        yield path, tree
        return
    for key, node in tree.items():
        yield from leaves(node, (*path, key))


def split_list(text: str) -> list[Any]:
    """Parse ``a, b`` or a JSON array; raise ``ValueError`` for anything else."""
    if text.startswith("[") and text.endswith("]"):
        value = _json(text)
        if isinstance(value, list):
            return value
    return [part for part in (part.strip() for part in text.split(",")) if part]


def split_map(text: str, *, alone: bool = False) -> dict[str, Any]:
    """Parse ``a=b, c=d``, a JSON array of the same, or a JSON object; raise ``ValueError`` for anything else.

    Args:
        text: the map as text; keys keep their case.
        alone: whether a name without a value maps to itself.

    """
    return split_object(text) if text.startswith("{") else pairs(split_list(text), alone=alone)


def split_value(given: RawValue) -> RawTree:
    """Split a map that is written as a text or a list, so that another map overrides it key by key.

    It raises ``ValueError`` as ``split_map`` and ``pairs`` do.
    """
    if not isinstance(given.value, str | list):
        raise ValueError("no text")  # noqa: TRY004 - as for a text that is no map
    split = pairs(given.value) if isinstance(given.value, list) else split_map(given.value)
    return {key: RawValue(value, given.variable, given.origin) for key, value in split.items()}


def split_object(text: str) -> dict[str, Any]:
    """Parse a JSON object, whose values may hold commas and equals signs; raise ``ValueError`` for anything else."""
    value = _json(text)
    if isinstance(value, dict):
        return value
    raise ValueError("no object")


def pairs(items: list[Any], *, alone: bool = False) -> dict[str, Any]:
    """Parse the items of a list as ``key=value``, since a YAML or JSON list means the same as the text ``a=b,c=d``.

    Args:
        items: texts; any other item and a repeated key raise ``ValueError``.
        alone: whether a name without a value maps to itself.

    """
    if not all(isinstance(item, str) for item in items):
        raise ValueError("no text")
    split = [[part.strip() for part in item.partition("=")] for item in items]
    if not all(key and (value or (alone and not separator)) for key, separator, value in split):
        raise ValueError("no pair")
    return _distinct([(key, value or key) for key, _, value in split])


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raise ``ValueError`` for a repeated key, which JSON and YAML readers hide."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result
