"""Count the fields of an index as the server does, and raise the index's field limit if the mapping needs more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from connectors.errors import RECONFIGURE, PermanentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from connectors.elasticsearch.client import Cluster
    from connectors.elasticsearch.index import Index

SETTING: Final = "index.mapping.total_fields.limit"
DEFAULT_LIMIT: Final = 1000


def make_room(cluster: Cluster, index: Index, mapping: Mapping[str, Any]) -> None:
    """Raise the field limit of an index that the sink created; raise ``PermanentError`` if another user created the index."""
    limit = int(index.settings.get("mapping", {}).get("total_fields", {}).get("limit", DEFAULT_LIMIT))
    needed = total_fields(index.mappings, mapping)
    if needed <= limit:
        return
    if not index.managed:
        raise PermanentError(
            f"index {index.name!r} takes {limit} fields, objects and sub-fields included, and would have {needed}.",
            f"Raise {SETTING} of the index to {needed}, then run: cdf-replicator resume {{route}}. Or name fewer columns in "
            f"COLUMNS, then {RECONFIGURE}",
        )
    cluster.request_json("PUT", f"/{quote(index.name)}/_settings", {SETTING: needed})


def total_fields(*mappings: Mapping[str, Any]) -> int:
    """Count the fields that the mappings define together, as ``index.mapping.total_fields.limit`` does.

    Each field, sub-field, alias, object and runtime field counts once.
    """
    return len({path for each in mappings for path in _defined(each)})


def _defined(mappings: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"runtime {name}" for name in mappings.get("runtime", {}))
    for part in ("properties", "fields"):
        for name, node in mappings.get(part, {}).items():
            yield name
            yield from (f"{name}.{path}" for path in _defined(node))
