"""Take the groups of the configuration apart: fixed groups, and groups by slug."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from cdf_replicator.settings.fields import FILE, may_be_file
from cdf_replicator.settings.models import (
    FIXED_GROUPS,
    SLUG_EXPECTED,
    Enrichment,
    General,
    Group,
    RouteFields,
    Table,
    is_slug,
)
from cdf_replicator.settings.parsing.errors import ConfigProblem, Problems
from cdf_replicator.settings.parsing.raw import ENVIRONMENT, NEST, PREFIX, Path, RawTree, RawValue, leaves, variable_of
from cdf_replicator.settings.parsing.sources import DICT_GROUPS, GROUPS
from cdf_replicator.settings.parsing.validation import UNKNOWN, validate
from cdf_replicator.settings.redact import HIDDEN, SECRET_GROUPS, shown
from cdf_replicator.settings.reference import kinds
from cdf_replicator.settings.unsupported import unsupported_option

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from pydantic import BaseModel

ENRICH: Final = "_enrich_"
TWO_UNDERSCORES: Final = "two underscores between the parts of its name; did you mean {}?"


def general(tree: RawTree, problems: Problems) -> General | None:
    """Return the settings outside of groups; add a problem for each value of an unknown name."""
    for name, node in tree.items():
        if name not in General.model_fields and name not in GROUPS:
            problems.extend(_unknown(path, given) for path, given in leaves(node, tuple(name.split(NEST))))
    own: RawTree = {name: node for name, node in tree.items() if name in General.model_fields}
    return validate(General, own, (), problems)


def _unknown(path: Path, given: RawValue) -> ConfigProblem:
    """Return the problem of an unknown first name; the nearest name may nest differently (``CDF_LOG_LEVEL``)."""
    if (meant := _nested(given.variable)) is not None:
        return ConfigProblem.at(path, UNKNOWN, TWO_UNDERSCORES.format(meant), given.variable)
    first = difflib.get_close_matches(path[0], GROUPS, n=1)
    if first and len(path) > 1:
        near = [variable_of((first[0], *path[1:]))]
    else:
        fields = [(group, field) for group, model in FIXED_GROUPS.items() for field in model.model_fields]
        candidates = {
            variable_of(names) for names in [*((name,) for name in (*General.model_fields, *GROUPS)), *fields]
        }
        near = difflib.get_close_matches(given.variable.upper(), sorted(candidates), n=1)
    remedy = f"did you mean {near[0]}?" if near else "see: cdf-replicator config env"
    return ConfigProblem.at(path, UNKNOWN, f"no such setting; {remedy}", given.variable)


def fixed_group(name: str, model: type[Group], tree: RawTree, problems: Problems) -> Group | None:
    node = tree.get(name, {})
    if isinstance(node, RawValue):
        problems.append(_not_a_group((name,), node, next(iter(model.model_fields))))
        return None
    return validate(model, node, (name,), problems)


def groups_by_slug(node: RawTree | RawValue | None, path: Path, example: str, problems: Problems) -> dict[str, RawTree]:
    """Return the trees of tables, sinks, routes or joined tables by slug.

    Args:
        node: raw value at ``path``.
        path: path of all these groups.
        example: name of a setting of one group, for a problem.
        problems: list that receives the problems.

    """
    if isinstance(node, RawValue):
        name = f"<{path[-1][:-1]}>" if len(path) == 1 else "<name>"
        problems.append(_not_a_group(path, node, f"{name}{NEST}{example}"))
        return {}
    result: dict[str, RawTree] = {}
    for slug, below in (node or {}).items():
        if not is_slug(slug):
            first = next((given.variable for _, given in leaves(below)), None)
            problems.add((*path, slug), repr(shown(slug)), SLUG_EXPECTED, first)
        elif isinstance(below, RawValue):
            problems.append(_not_a_group((*path, slug), below, example))
        else:
            result[slug] = below
    return result


def _not_a_group(path: Path, node: RawValue, example: str) -> ConfigProblem:
    """Return the problem of a value in the place of a group, such as ``CDF_TABLES__ORDERS_PATH``."""
    given = HIDDEN if path[0] in SECRET_GROUPS else node.display
    meant = _nested(node.variable) if node.origin == ENVIRONMENT and len(path) > 1 else None
    if meant is None or meant.endswith(">"):
        expected = f"its settings one by one: {variable_of((*path, example))}=..."
    else:
        expected = TWO_UNDERSCORES.format(meant)
    return ConfigProblem.at(path, given, expected, node.variable)


def supported(tree: RawTree, path: Path, problems: Problems, own: Container[str] = ()) -> RawTree:
    """Return the options that the service does not refuse; it refuses none of the sink's ``own``."""
    result: RawTree = {}
    for name, node in tree.items():
        reason = None if name in own else unsupported_option(name)
        if reason is None:
            result[name] = node
        else:
            first = next((given for _, given in leaves(node)), None)
            shown_value, variable = (first.display, first.variable) if first else (None, None)
            problems.add((*path, name), shown_value, f"not set: {reason}", variable)
    return result


def need_one_location(table: Table | Enrichment, path: Path, problems: Problems) -> None:
    if (table.path is None) == (table.name is None):
        expected = "exactly one of PATH (a location) and NAME (in the catalog)"
        problems.add((*path, "path"), table.path and repr(shown(table.path)), expected)


def _nested(variable: str) -> str | None:
    """Return ``CDF_TABLES__ORDERS__PATH`` for ``CDF_TABLES_ORDERS_PATH``; None if no such group exists.

    Single underscores between the parts are a frequent mistake. Slugs and settings may contain single underscores, so the
    longest setting that the name ends with decides.
    """
    words = [word for word in variable[len(PREFIX) :].lower().split("_") if word]
    group, rest = words[0] if words else "", "_".join(words[1:])
    if group not in DICT_GROUPS or not rest:
        return None
    route, found, joined = rest.partition(ENRICH)
    if group == "routes" and found:
        parts = _parted(joined, _names([Enrichment]))
        return variable_of((group, route, "enrich", *parts)) if parts else None
    parts = _parted(rest, _names(_models(group)))
    return variable_of((group, *parts)) if parts else f"{variable_of((group,))}__<{group[:-1].upper()}>__<SETTING>"


def _parted(text: str, names: Iterable[str]) -> tuple[str, str] | None:
    """Split ``text`` into slug and setting; return None if it ends with no known setting."""
    ends = [name for name in names if text.endswith(f"_{name}")]
    name = max(ends, key=len, default=None)
    return None if name is None else (text[: -len(name) - 1], name)


def _models(group: str) -> list[type[BaseModel]]:
    if group == "tables":
        return [Table]
    if group == "sinks":
        return [kind.Settings for kind in kinds().values()]
    return [RouteFields, *(kind.Options for kind in kinds().values())]


def _names(models: Iterable[type[BaseModel]]) -> Iterator[str]:
    for model in models:
        for name, field in model.model_fields.items():
            yield name
            if may_be_file(field):
                yield name + FILE
