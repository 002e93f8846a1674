"""Check the names, expressions and joined tables of a route, as far as possible without reading the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.route import Dimension
from cdf_replicator.settings.groups import groups_by_slug, need_one_location
from cdf_replicator.settings.models import Enrichment, RouteFields
from cdf_replicator.settings.parsing.validation import validate
from connectors.change import FEED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cdf_replicator.settings.parsing.errors import Problems
    from cdf_replicator.settings.parsing.raw import Path, RawTree, RawValue
    from connectors.sink import Mode


def dimensions(node: RawTree | RawValue | None, path: Path, problems: Problems) -> tuple[Dimension, ...]:
    """Return the tables that a route joins; those with a problem are left out."""
    trees = groups_by_slug(node, path, "path", problems)
    found = [_dimension(slug, tree, (*path, slug), problems) for slug, tree in trees.items()]
    return tuple(dimension for dimension in found if dimension is not None)


def _dimension(slug: str, tree: RawTree, path: Path, problems: Problems) -> Dimension | None:
    before = len(problems)
    given = validate(Enrichment, tree, path, problems)
    if given is not None:
        need_one_location(given, path, problems)
    if given is None or len(problems) > before:
        return None
    return Dimension(slug, given.path, given.name, given.on, given.columns)


def check_projection(
    path: Path, fields: RouteFields, joined: Sequence[Dimension], mode: Mode, problems: Problems
) -> None:
    """Add a problem for each definition that no table could satisfy."""
    _refuse_names(path, fields, joined, problems)
    _refuse_idle(path, fields, joined, problems)
    if joined and mode != "upsert":
        expected = (
            "no ENRICH: a sink that keeps every change keeps the table's values, and joined values would be those at the "
            "time of delivery; join in queries instead"
        )
        problems.add((*path, "enrich"), joined[0].slug, expected)


def _refuse_names(path: Path, fields: RouteFields, joined: Sequence[Dimension], problems: Problems) -> None:
    """Add a problem if two columns would have one name in the sink; Spark's column names ignore case."""
    before = len(problems)
    for name in ("keys", "columns", "rename", "computed"):
        if twice := _twice(getattr(fields, name) or ()):
            problems.add((*path, name), repr(twice), "each column once (case does not count)")
    added = [name for dimension in joined for name in dimension.columns.values()]
    for dimension in joined:
        where = (*path, "enrich", dimension.slug, "columns")
        if wrong := [name for name in dimension.columns.values() if name.lower() in FEED_COLUMNS]:
            problems.add(where, repr(wrong[0]), "another name (column=name): the feed has one of that")
        elif twice := _twice(added, within=dimension.columns.values()):
            problems.add(where, repr(twice), "another name (column=name): two columns would share it")
    if len(problems) > before:
        return
    names = {column.lower(): new for column, new in fields.rename.items()}
    chosen = [column.lower() for column in fields.columns or (*fields.rename, *added)]
    absent = [column for column in names if column not in chosen]
    if absent:
        problems.add((*path, "rename"), repr(absent[0]), f"columns of COLUMNS only: {', '.join(chosen)}")
        return
    chosen = list(dict.fromkeys(chosen))
    renamed = [names.get(column, column) for column in chosen]
    if twice := _twice(renamed):
        problems.add((*path, "rename"), repr(twice), "another name, since two columns would share it")
    elif twice := _twice([*renamed, *fields.computed]):
        expected = "another name, or COLUMNS without that column: two columns would share it"
        problems.add((*path, "computed"), repr(twice), expected)


def _refuse_idle(path: Path, fields: RouteFields, joined: Sequence[Dimension], problems: Problems) -> None:
    """Add a problem for a joined table without a delivered column: COLUMNS probably misses its columns."""
    text = " ".join([fields.filter or "", *fields.computed.values()]).lower()
    for dimension in joined:
        names = list(dimension.columns.values())
        used = fields.columns is None or any(name in fields.columns or name.lower() in text for name in names)
        if not used:
            expected = f"some of {', '.join(names)} as well: the columns of {dimension.slug!r} are delivered nowhere"
            problems.add((*path, "columns"), repr(",".join(fields.columns or ())), expected)


def _twice(names: Iterable[str], within: Iterable[str] | None = None) -> str | None:
    """Return the first name that occurs twice, or None; with ``within``, only a name that is in it."""
    wanted = None if within is None else {name.lower() for name in within}
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen and (wanted is None or name.lower() in wanted):
            return name
        seen.add(name.lower())
    return None
