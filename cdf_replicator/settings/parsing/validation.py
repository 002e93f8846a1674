"""Validate raw values against a model, or report problems in the operator's terms."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from cdf_replicator.settings.models import JsonObject, MayHoldSecrets, NamePairs
from cdf_replicator.settings.parsing.errors import ConfigProblem
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
    split_names,
    split_object,
    variable_of,
)
from cdf_replicator.settings.redact import HIDDEN, masked

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)
FILE: Final = "_file"
UNKNOWN: Final = "a value, hidden because its name is unknown"
SECRET_LIMIT: Final = 1_000_000


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


def map_expected(field: FieldInfo) -> str:
    """Return the accepted spelling of a map."""
    if is_marked(field, JsonObject) or may_be_file(field):
        return "a JSON object"
    return "a,b=c or a JSON object" if is_marked(field, NamePairs) else "a=b,c=d or a JSON object"


def may_be_pairs(field: FieldInfo) -> bool:
    """Return whether a map may be written as ``a=b``, item by item."""
    return is_map(field) and not is_marked(field, JsonObject) and not may_be_file(field)


def _may_tell_secrets(field: FieldInfo) -> bool:
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


def with_secret_files(model: type[BaseModel], tree: RawTree, path: Path, problems: list[ConfigProblem]) -> RawTree:
    """Return the tree with every ``<field>_file`` of a secret replaced by the file's content."""
    result: RawTree = {}
    for key, node in tree.items():
        base = key.removesuffix(FILE)
        field = model.model_fields.get(key)
        secret = model.model_fields.get(base)
        if field is None and key.endswith(FILE) and secret is not None and may_be_file(secret):
            if not isinstance(node, RawValue):
                problems.append(ConfigProblem.at((*path, key), None, "the path of a file"))
            elif _outranks(tree.get(base), node, (*path, base), problems):
                content = _secret(node, (*path, key), problems)
                if content is not None:
                    result[base] = content
        elif key not in result:
            inner = submodel(field) if field is not None else None
            is_group = inner is not None and isinstance(node, dict)
            result[key] = with_secret_files(inner, node, (*path, key), problems) if is_group else node  # type: ignore[arg-type]
    return result


def _outranks(value: RawTree | RawValue | None, file: RawValue, path: Path, problems: list[ConfigProblem]) -> bool:
    """Return whether the file is used: a value of the environment overrides a file named in YAML, and vice versa.

    Both from the same source are a problem.
    """
    if value is None:
        return True
    rival = value if isinstance(value, RawValue) else next((leaf for _, leaf in leaves(value)), file)
    if rival.origin != file.origin:
        return file.origin == ENVIRONMENT
    problems.append(ConfigProblem.at(path, None, f"either this or {rival.variable}, not both", file.variable))
    return False


def _secret(node: RawValue, path: Path, problems: list[ConfigProblem]) -> RawValue | None:
    try:
        with FilePath(str(node.value)).open(encoding="utf-8") as file:
            text = file.read(SECRET_LIMIT).rstrip("\r\n")
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        problems.append(ConfigProblem.at(path, node.display, f"a readable file; {cause}", node.variable))
        return None
    if not text:
        problems.append(ConfigProblem.at(path, node.display, "a file that is not empty", node.variable))
        return None
    return RawValue(text, node.variable, f"{MOUNTED} {masked(str(node.value))}")


def parse_values(
    model: type[BaseModel] | None, tree: RawTree, path: Path, problems: list[ConfigProblem]
) -> dict[str, Any]:
    """Return the values without their origins; parse lists and maps from text."""
    result: dict[str, Any] = {}
    for key, node in tree.items():
        field = model.model_fields.get(key) if model else None
        if isinstance(node, dict):
            result[key] = parse_values(submodel(field) if field else None, node, (*path, key), problems)
        elif field is None or not isinstance(node.value, str | list):
            result[key] = node.value
        else:
            try:
                result[key] = _read(field, node.value)
            except ValueError:
                given = HIDDEN if may_be_file(field) else node.display
                expected = map_expected(field) if is_map(field) else "a,b or a JSON array"
                problems.append(ConfigProblem.at((*path, key), given, expected, node.variable))
    return result


def _read(field: FieldInfo, value: str | list[Any]) -> Any:
    """Return the list or map that a text or a YAML list encodes; raise ``ValueError`` if it can't be parsed."""
    if isinstance(value, list):
        return pairs(value, alone=is_marked(field, NamePairs)) if may_be_pairs(field) else value
    if is_map(field):
        if is_marked(field, JsonObject):
            return split_object(value)
        return split_names(value) if is_marked(field, NamePairs) else split_map(value)
    return split_list(value) if is_list(field) else value


def validate(
    model: type[ModelT], tree: RawTree, path: Path, problems: list[ConfigProblem], also: Iterable[str] = ()
) -> ModelT | None:
    """Return a validated ``model``; add problems and return None if it is not valid.

    Args:
        model: the pydantic model.
        tree: raw values.
        path: path of the tree in the configuration.
        problems: list that receives the problems.
        also: further names to suggest for an unknown one.

    """
    before = len(problems)
    tree = with_secret_files(model, tree, path, problems)
    values = parse_values(model, tree, path, problems)
    failed = {problem.path for problem in problems[before:]}
    try:
        result = model.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False, include_context=False):
            problem = _judgement(model, tree, path, detail, also)
            if not any(problem.path == other or problem.path + FILE == other for other in failed):
                problems.append(problem)
        return None
    return result if len(problems) == before else None


def _judgement(
    model: type[BaseModel], tree: RawTree, path: Path, detail: ErrorDetails, also: Iterable[str]
) -> ConfigProblem:
    owner, field, here, node = _located(model, tree, path, detail["loc"])
    leaf = node if isinstance(node, RawValue) else None
    variable = leaf.variable if leaf else None
    if detail["type"] == "extra_forbidden" and field is None:
        named = list(owner.model_fields) + (list(also) if owner is model else [])
        return ConfigProblem.at(here, UNKNOWN, unknown_expected(here, named), variable)
    given = None
    if leaf is not None:
        given = HIDDEN if field is not None and _may_tell_secrets(field) else leaf.display
    elif node is not None:
        given = "a group of values"
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
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_type": "a whole number",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "tuple_type": "a list: a,b or a JSON array",
    "model_type": "its settings one by one",
    "list_type": "a list: a,b or a JSON array",
    "dict_type": "a map: a=b,c=d or a JSON object",
}


def _expected(detail: ErrorDetails, field: FieldInfo | None) -> str:
    if detail["type"] == "missing":
        return f"a value: {field.description}" if field is not None and field.description else "a value"
    if detail["type"] in _PLAIN_WORDS:
        return _PLAIN_WORDS[detail["type"]]
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    for start in ("Input should be ", "Input should "):
        text = text.removeprefix(start)
    return text[:1].lower() + text[1:] if text[:2].istitle() else text
