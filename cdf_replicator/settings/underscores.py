"""Find the intended variable if its parts are joined by single underscores, a frequent mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.settings.models import Enrichment, RouteFields, Table
from cdf_replicator.settings.parsing.raw import PREFIX, variable_of
from cdf_replicator.settings.parsing.sources import DICT_GROUPS
from cdf_replicator.settings.parsing.validation import FILE, may_be_file
from cdf_replicator.settings.reference import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import BaseModel

ENRICH = "_enrich_"


def nested(variable: str) -> str | None:
    """Return ``CDF_TABLES__ORDERS__PATH`` for ``CDF_TABLES_ORDERS_PATH``; None if no such group exists.

    Slugs and settings may contain single underscores, so the longest setting that the name ends with decides.
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
