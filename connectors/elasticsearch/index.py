"""Find or create the index of a route, and read the claim that it records.

Every write goes through an alias with ``require_alias``. If the index is deleted, the server refuses the write. Without
``require_alias`` it would create an empty index with guessed types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from connectors.elasticsearch import field_limit
from connectors.elasticsearch.mapping import VECTOR_FIELDS, properties_of
from connectors.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connectors.change import RouteSpec
    from connectors.elasticsearch.client import Cluster
    from connectors.elasticsearch.mapping import Field

KEEP_VECTORS: Final = "mapping.exclude_source_vectors"
META: Final = "cdf_replicator"
WRITER: Final = "CDF-writer-"
SHORTEST_GC_DELETES: Final = 600
PIPELINES: Final = ("default_pipeline", "final_pipeline")
SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Reasons of a 400 that are faults of the index, each with the operator's next step. They never make a dead letter.
FAULTS_OF_INDEX: Final = (
    (
        re.compile(r"pipeline with id \[.*\] does not exist"),
        (
            "Create that ingest pipeline, or correct the pipelines that the index and its template name. "
            "Then run: cdf-replicator resume {route}"
        ),
    ),
    (
        re.compile("routing_missing_exception"),
        "Take _routing.required out of its template, delete the index, then run: cdf-replicator resync {route}",
    ),
    (
        re.compile(r"Limit of (total fields|nested fields|mapping depth) \["),
        (
            "Raise index.mapping.total_fields.limit, nested_fields.limit or depth.limit of the index. "
            "Then run: cdf-replicator resume {route}"
        ),
    ),
    (
        re.compile(r"Number of documents in the index can't exceed \["),
        (
            "A shard is full. Set a higher number of shards in the template of the index, delete the index, "
            "then run: cdf-replicator resync {route}"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Index:
    """A concrete index.

    ``alias`` is the name in the route's settings, if that is an alias. ``siblings`` are the alias's other indices.
    """

    name: str
    alias: str | None
    siblings: tuple[str, ...]
    aliases: Mapping[str, Any]
    mappings: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Return the ids of the index and its history; they change when it is created again or restored from a snapshot."""
        return f"{self.settings['uuid']} {self.settings.get('history', {}).get('uuid', '')}".strip()

    @property
    def write_aliases(self) -> list[str]:
        """Return the aliases of all leases that have written to the index."""
        return [alias for alias in self.aliases if alias.startswith(write_alias(self.name))]

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the sink's entry in the mapping's ``_meta``; empty before the first ``prepare``."""
        note: dict[str, Any] = self.mappings.get("_meta", {}).get(META, {})
        return note

    @property
    def managed(self) -> bool:
        """Return whether the sink created the index, and may therefore extend its mapping and set its gc_deletes."""
        return self.metadata.get("created") is True

    @property
    def is_copy(self) -> bool:
        """Return whether the identity has changed since the claim was recorded."""
        return bool(self.metadata.get("identity", self.identity) != self.identity)


def write_alias(index: str, fence: int | None = None) -> str:
    """Return the alias to write through under a lease; without a lease, the prefix of all these aliases.

    The prefix has capital letters, which the name of an index may not have. ``require_alias`` does not apply to a delete
    with an external version, which would otherwise create an index if the alias is gone. See ``bulk`` for an alias of a user.
    """
    return f"{WRITER}{index}-" + ("" if fence is None else str(fence))


def identity_of(cluster: Cluster, index: str) -> str | None:
    """Return the identity of an index by a small request; None if it is gone, also if an alias has its name."""
    names = "*.settings.index.uuid,*.settings.index.history.uuid"
    found: dict[str, Any] | None = cluster.find(f"/{quote(index)}/_settings?filter_path={names}")
    if not found or index not in found:
        return None
    return Index(index, None, (), {}, {}, found[index]["settings"]["index"]).identity


def find(cluster: Cluster, name: str) -> Index | None:
    """Return the index that writes to a name reach; None if the name is free.

    Raises:
        PermanentError: The name is a data stream, or an alias without a write index.

    """
    found: dict[str, Any] | None = cluster.find(f"/{quote(name)}")
    if found is None:
        return None
    if any("data_stream" in info for info in found.values()):
        raise PermanentError(
            f"{name!r} is a data stream, which only appends: it can't replace or delete the document of a key.",
            "Name an index, or an alias with a write index.",
        )
    if name in found:
        return _index(name, None, (), found[name])
    marks = {index: info["aliases"][name].get("is_write_index") for index, info in found.items()}
    chosen = [index for index, mark in marks.items() if mark or (mark is None and len(marks) == 1)]
    if not chosen:
        raise PermanentError(
            f"alias {name!r} has no write index among {', '.join(sorted(marks))}.",
            "Mark one of them with is_write_index: true.",
        )
    (target,) = chosen
    return _index(target, name, tuple(sorted(set(marks) - {target})), found[target])


def _index(name: str, alias: str | None, siblings: tuple[str, ...], info: Mapping[str, Any]) -> Index:
    return Index(name, alias, siblings, info["aliases"], info["mappings"], info["settings"]["index"])


def entry(route: RouteSpec) -> dict[str, Any]:
    """Return the entry of a route's claim in the mapping's ``_meta``."""
    return {"route": route.name, "owner": route.owner, "epoch": route.epoch}


def create(cluster: Cluster, name: str, found: list[Field], route: RouteSpec, gc_deletes: str) -> Index:
    """Create an index with ``dynamic: strict``, so that the schema determines the types and not the first value.

    The caller then takes ownership of the index. That maps fields that exceed the default limit, since a template may have set
    another limit, and compares the claim of an instance that created the index at the same time.
    """
    properties, vectors = properties_of(found, {}), _vector_settings(found)
    few = field_limit.total_fields({"properties": properties}) <= field_limit.DEFAULT_LIMIT
    settings = {"gc_deletes": gc_deletes, "translog": {"durability": "request"}}  # a template may have async
    body: dict[str, Any] = {
        "settings": {"index": {**settings, **vectors}},
        "aliases": {write_alias(name, route.fence): {"is_write_index": True}},
        "mappings": {
            "dynamic": "strict",
            "_meta": {META: {**entry(route), "created": True}},
            "properties": properties if few else {},
        },
    }
    try:
        cluster.create(f"/{quote(name)}", body)
    except PermanentError as error:
        if f"unknown setting [index.{KEEP_VECTORS}]" not in error.reason:
            raise
        body["settings"] = {"index": settings}  # an earlier version, which keeps them anyway
        cluster.create(f"/{quote(name)}", body)
    index = find(cluster, name)
    assert index is not None
    return index


def _vector_settings(found: list[Field]) -> dict[str, Any]:
    """Return the settings with which ``_source`` keeps vectors as they were sent, and vectors may have an index."""
    vectors = [leaf.kind.definition for leaf in found if leaf.kind.definition["type"] in VECTOR_FIELDS]
    if any("space_type" in definition for definition in vectors):
        return {"knn": True, "knn.derived_source.enabled": False}  # derived, vectors with cosine are normalized
    return {KEEP_VECTORS: False} if any(definition["type"] == "dense_vector" for definition in vectors) else {}


def leaves_out_vectors(cluster: Cluster, index: Index) -> bool:
    """Return whether ``_source`` lacks the vectors of an index, as it does by default since Elasticsearch 9.2."""
    if "'dense_vector'" not in str(index.mappings.get("properties")):
        return False
    path = f"/{quote(index.name)}/_settings/index.{KEEP_VECTORS}?include_defaults=true&flat_settings=true"
    held = cluster.request_json("GET", path).get(index.name, {})
    return {**held.get("defaults", {}), **held.get("settings", {})}.get(f"index.{KEEP_VECTORS}") == "true"


def apply_settings(cluster: Cluster, index: Index, gc_deletes: str) -> list[str]:
    """Set gc_deletes if the sink created the index; otherwise return a warning if it is too short."""
    remembered = index.settings.get("gc_deletes", "60s")
    if index.managed and remembered != gc_deletes:
        cluster.request_json("PUT", f"/{quote(index.name)}/_settings", {"index": {"gc_deletes": gc_deletes}})
        remembered = gc_deletes
    warnings = []
    if _seconds(remembered) < SHORTEST_GC_DELETES:
        warnings.append(
            f"index {index.name!r} forgets deletes after {remembered}: a write that is delayed longer could bring a "
            f"deleted row back; set index.gc_deletes to 1h"
        )
    if index.settings.get("translog", {}).get("durability", "").lower() == "async":
        warnings.append(
            f"index {index.name!r} loses acknowledged writes if a node crashes, and only verify finds that: set "
            f"index.translog.durability to request"
        )
    pipelines = {index.settings.get(name, "_none") for name in PIPELINES} - {"_none"}
    if pipelines:
        warnings.append(
            f"index {index.name!r} has an ingest pipeline ({', '.join(sorted(pipelines))}): a row that it drops, or sends to "
            f"another index, counts as applied, and verify reports a row that it changes"
        )
    if leaves_out_vectors(cluster, index):
        warnings.append(
            f"index {index.name!r} leaves vectors out of _source: verify compares rounded numbers; create it with "
            f"index.{KEEP_VECTORS}: false"
        )
    if index.siblings:
        warnings.append(
            f"alias {index.alias!r} also covers {', '.join(index.siblings)}: only {index.name!r} receives changes, "
            f"and documents of the same keys in the other indices stay"
        )
    return warnings


def _seconds(text: str) -> float:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * SECONDS.get(text[len(number) :], 0)
