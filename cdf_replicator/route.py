"""A route: one source table to one sink, and the definition that identifies it after a restart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from connectors import RouteSpec
from connectors.names import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connectors import RouteOptions

ENTRY_NAMES: Final = "entry names"
"""A property of ``Route.identity`` that the states of older releases lack."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Delta table whose change feed is read; exactly one of ``path`` and ``name`` is set.

    At most one of ``starting_version`` and ``starting_timestamp`` is set. Without both, the route bootstraps from the current
    snapshot.
    """

    slug: str
    path: str | None = None
    name: str | None = None
    starting_version: int | None = None
    starting_timestamp: str | None = None
    max_files_per_trigger: int = 1000
    max_bytes_per_trigger: str | None = None
    include_preimages: bool = False
    on_duplicate_keys: Literal["dead_letter", "halt"] = "dead_letter"
    allow_schema_change: int | Literal["always"] | None = None

    @property
    def location(self) -> str:
        """Path or catalog name, for messages."""
        return self.path or self.name or ""

    @property
    def identifier(self) -> str:
        """Name of the table in SQL."""
        if self.path is None:
            return self.name or ""
        return f"delta.{quote_identifier(self.path)}"


@dataclass(frozen=True, slots=True)
class Dimension:
    """A Delta table that a route joins to its rows; exactly one of ``path`` and ``name`` is set.

    Args:
        slug: name of the joined table in the configuration.
        path: location of the table.
        name: name of the table in the catalog.
        on: source column -> column of the joined table.
        columns: column of the joined table -> its name in the row.

    """

    slug: str
    path: str | None
    name: str | None
    on: Mapping[str, str]
    columns: Mapping[str, str]

    @property
    def location(self) -> str:
        """Path or catalog name, for messages."""
        return self.path or self.name or ""

    @property
    def identity(self) -> dict[str, Any]:
        return {"table": self.location, "on": dict(sorted(self.on.items())), "columns": dict(self.columns)}


@dataclass(frozen=True, slots=True)
class Route:
    """The definition of a route.

    Args:
        name: name of the route.
        source: the source table.
        sink: slug of the sink.
        keys: key columns of the source table.
        filter: SQL condition on the row.
        columns: columns to deliver; None delivers all.
        rename: source column -> name in the sink.
        options: an instance of the sink's ``Options``.
        computed: name in the sink -> SQL expression.
        enrich: joined tables.
        schema_changes: handling of columns that the table gets later.

    """

    name: str
    source: Source
    sink: str
    keys: tuple[str, ...]
    filter: str | None
    columns: tuple[str, ...] | None
    rename: Mapping[str, str]
    options: RouteOptions
    computed: Mapping[str, str] = field(default_factory=dict)
    enrich: tuple[Dimension, ...] = ()
    schema_changes: Literal["fail", "ignore", "add"] = "add"

    @property
    def joined_columns(self) -> list[str]:
        """Names, in the row, of the columns of joined tables."""
        return [name for dimension in self.enrich for name in dimension.columns.values()]

    @property
    def filter_is_joined(self) -> bool:
        """True if the filter may name a column of a joined table, and so must run after the join.

        A false positive gives the same result and is slower.
        """
        return self.may_name_joined(self.filter or "")

    def may_name_joined(self, expression: str) -> bool:
        """Return whether an SQL expression may name a column of a joined table, in any case, as a whole word.

        The check compares text only. A name within a literal, a comment or a longer name in backticks counts too.
        """
        names = (re.escape(name.replace("`", "``")) for name in self.joined_columns)
        return any(re.search(rf"(?<!\w){name}(?!\w)", expression, re.IGNORECASE) for name in names)

    def spec(self, *, owner: str, epoch: int, fence: int = 0) -> RouteSpec:
        """Return the part of the definition that the sink receives."""
        return RouteSpec(
            self.name,
            self.source.slug,
            self.keys,
            self.options,
            owner,
            epoch,
            self.source.identifier,
            self.filter,
            (*self.rename.values(), *self.computed, *self.joined_columns),
            fence,
        )

    def identity(self, sink_target: str) -> dict[str, Any]:
        """Return the properties that may not change under a checkpoint, by name, so that messages can name the difference.

        A property of a later release is included only if it is set, so that older states stay valid.
        """
        later: dict[str, Any] = {
            "computed": dict(sorted(self.computed.items())),
            "enrich": {dimension.slug: dimension.identity for dimension in self.enrich},
            ENTRY_NAMES: self.options.entry_names(self.source.slug, self.keys),
        }
        return {
            "keys": list(self.keys),
            "filter": self.filter,
            "columns": None if self.columns is None else list(self.columns),
            "rename": dict(sorted(self.rename.items())),
            "target": sink_target,
            **{name: value for name, value in later.items() if value},
        }
