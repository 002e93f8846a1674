"""Validate raw values against a model, or report problems in the operator's terms."""

from __future__ import annotations

import difflib
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from cdf_replicator.settings.fields import (
    FILE,
    JsonObject,
    NamePairs,
    is_list,
    is_map,
    is_marked,
    may_be_file,
    may_be_pairs,
    may_show_secrets,
    spelling,
    submodel,
)
from cdf_replicator.settings.parsing.errors import ConfigProblem, Problems
from cdf_replicator.settings.parsing.raw import (
    ENVIRONMENT,
    MOUNTED,
    Path,
    RawTree,
    RawValue,
    leaves,
    pairs,
    split_list,
    split_map,
    split_object,
    split_value,
    variable_of,
)
from cdf_replicator.settings.redact import HIDDEN, masked, may_be_userinfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)
UNKNOWN: Final = "a value, hidden because its name is unknown"
UNPARSED: Final = object()
"""Value of a list or map whose text can't be parsed: no model accepts it."""
SECRET_LIMIT: Final = 1_000_000


def validate(
    model: type[ModelT], tree: RawTree, path: Path, problems: Problems, also: Iterable[str] = ()
) -> ModelT | None:
    """Return a validated ``model``; add problems and return None if it is not valid.

    Args:
        model: the pydantic model.
        tree: raw values; ``read_secret_files`` is applied to it.
        path: path of the tree in the configuration.
        problems: list that receives the problems.
        also: further names to suggest for an unknown one.

    """
    before = len(problems)
    read_secret_files(model, tree, path, problems)
    unread = {problem.path.removesuffix(FILE) for problem in problems[before:]}
    try:
        result = model.model_validate(_values(model, tree))
    except ValidationError as error:
        for detail in error.errors(include_context=False):
            problem = _problem(model, tree, path, detail, also)
            if detail["type"] != "missing" or problem.path not in unread:
                problems.append(problem)
        return None
    return result if len(problems) == before else None


def read_secret_files(model: type[BaseModel], tree: RawTree, path: Path, problems: Problems) -> None:
    """Replace every ``<field>_file`` of a secret in the tree by the file's content, with the file as its origin.

    The environment overrides a file named in YAML, and a file that the environment names overrides YAML: a map key by key.
    """
    for key, node in list(tree.items()):
        field, secret = model.model_fields.get(key), model.model_fields.get(key.removesuffix(FILE))
        inner = submodel(field) if field is not None else None
        if inner is not None and isinstance(node, dict):
            read_secret_files(inner, node, (*path, key), problems)
        elif field is None and secret is not None and may_be_file(secret):
            del tree[key]
            base = key.removesuffix(FILE)
            if not isinstance(node, RawValue):
                problems.add((*path, key), None, "the path of a file")
                continue
            value = tree.get(base, {})
            rival = next((leaf for _, leaf in leaves(value) if leaf.origin == node.origin), None)
            if rival is not None:
                expected = f"either this or {rival.variable}, not both"
                problems.add((*path, key), _file_shown(node), expected, node.variable)
            elif not value or is_map(secret) or node.origin == ENVIRONMENT:
                content = _secret(node, (*path, key), problems)
                if content is not None:
                    ranked = (value, content) if node.origin == ENVIRONMENT else (content, value)
                    tree[base] = _merged(*ranked) if value and is_map(secret) else content


def _merged(lower: RawTree | RawValue, upper: RawTree | RawValue) -> RawTree | RawValue:
    """Return a map that ``upper`` overrides key by key; a map that can't be parsed is returned alone, as a problem."""
    trees: list[RawTree] = []
    for given in (lower, upper):
        try:
            trees.append(given if isinstance(given, dict) else split_value(given))
        except ValueError:
            return given
    return trees[0] | trees[1]


def _secret(node: RawValue, path: Path, problems: Problems) -> RawValue | None:
    try:
        with FilePath(str(node.value)).open(encoding="utf-8-sig") as file:  # editors of Windows write a mark first
            text = file.read(SECRET_LIMIT).rstrip("\r\n")
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        shown = _file_shown(node)
        expected = "the path of a readable file, not the secret itself" if shown == HIDDEN else "a readable file"
        problems.add(path, shown, f"{expected}; {cause}", node.variable)
        return None
    if not text:
        problems.add(path, _file_shown(node), "a file that is not empty", node.variable)
        return None
    return RawValue(text, node.variable, f"{MOUNTED} {masked(str(node.value))}")


def _file_shown(node: RawValue) -> str:
    """Return the path of a secret's file for a message; hide a text that may be the secret itself."""
    is_path = str(node.value).startswith(("/", "./", "../"))
    return node.display if is_path else HIDDEN


def _values(model: type[BaseModel] | None, tree: RawTree) -> dict[str, Any]:
    """Return the values without their origins; parse lists and maps from text."""
    result: dict[str, Any] = {}
    for key, node in tree.items():
        field = model.model_fields.get(key) if model else None
        if isinstance(node, dict):
            result[key] = _values(submodel(field) if field else None, node)
        else:
            result[key] = node.value if field is None else _parsed(field, node.value)
    return result


def _parsed(field: FieldInfo, value: Any) -> Any:
    """Return the list or map that a text or a YAML list encodes."""
    alone = is_marked(field, NamePairs)
    try:
        if isinstance(value, list) and may_be_pairs(field):
            return pairs(value, alone=alone)
        if isinstance(value, str) and is_map(field):
            return split_object(value) if is_marked(field, JsonObject) else split_map(value, alone=alone)
        if isinstance(value, str) and is_list(field):
            return split_list(value)
    except ValueError:
        return UNPARSED
    return value


def _problem(
    model: type[BaseModel], tree: RawTree, path: Path, detail: ErrorDetails, also: Iterable[str]
) -> ConfigProblem:
    """Translate an error of pydantic."""
    owner, field, here, node = _located(model, tree, path, detail["loc"])
    leaf = node if isinstance(node, RawValue) else None
    variable = leaf.variable if leaf else None
    if detail["type"] == "extra_forbidden" and field is None:
        named = [*owner.model_fields, *(also if owner is model else ())]
        return ConfigProblem.at(here, UNKNOWN, unknown_expected(here, named), variable)
    given = None if node is None else "a group of values"
    if leaf is not None:
        may_hide = path[:1] == ("sinks",) and may_be_userinfo(str(leaf.value))
        given = HIDDEN if may_hide or (field is not None and may_show_secrets(field)) else leaf.display
    expected = _expected(detail, field)
    if expected == _PLAIN_WORDS["string_type"] and leaf is not None and isinstance(leaf.value, bool | int | float):
        expected += ", in quotes"
    return ConfigProblem.at(here, given, expected, variable)


def _located(
    model: type[BaseModel], tree: RawTree, path: Path, loc: tuple[int | str, ...]
) -> tuple[type[BaseModel], FieldInfo | None, Path, RawTree | RawValue | None]:
    """Return the model that owns the field at ``loc``, the field, its path and its raw value."""
    owner, field, here = model, None, path
    node: RawTree | RawValue | None = tree
    for part in map(str, loc):
        inner = submodel(field) if field is not None else None
        if field is not None and inner is None:
            break
        owner = inner or owner
        field, here = owner.model_fields.get(part), (*here, part)
        node = node.get(part) if isinstance(node, dict) else None
        if field is None:
            break
    return owner, field, here, node


def unknown_expected(path: Path, known: Iterable[str]) -> str:
    """Return the text for an unknown name: the nearest known name, or all of them."""
    names = sorted(set(known))
    near = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.6)
    if near:
        return f"no such setting; did you mean {variable_of((*path[:-1], near[0]))}?"
    return f"no such setting; known here: {', '.join(name.upper() for name in names) or 'none'}"


_PLAIN_WORDS: Final = {
    "bool": "true or false",
    "float": "a number",
    "finite_number": "a finite number",
    "int": "a whole number",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "tuple": "a list: a,b or a JSON array",
    "model": "its settings one by one",
    "list": "a list: a,b or a JSON array",
    "dict": "a map: a=b,c=d or a JSON object",
}
"""Expected values by the type of pydantic's error, or by its first word."""


def _expected(detail: ErrorDetails, field: FieldInfo | None) -> str:
    if field is not None and detail["input"] is UNPARSED:
        return spelling(field)
    if detail["type"] == "missing":
        return f"a value: {field.description}" if field is not None and field.description else "a value"
    if plain := _PLAIN_WORDS.get(detail["type"], _PLAIN_WORDS.get(detail["type"].partition("_")[0])):
        return plain
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    for start in ("Input should be ", "Input should "):
        text = text.removeprefix(start)
    return text[:1].lower() + text[1:] if text[:2].istitle() else text
