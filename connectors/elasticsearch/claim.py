"""Take an index for a route: claim it, map the missing fields, take its write alias, and record the watermark."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from connectors.change import Claim, Watermark
from connectors.elasticsearch import field_limit
from connectors.elasticsearch.index import META, entry, write_alias
from connectors.elasticsearch.mapping import compare, properties_of
from connectors.errors import PermanentError, claimed, fenced_off, lost, target_missing

if TYPE_CHECKING:
    from connectors.change import RouteSpec
    from connectors.elasticsearch.client import Cluster
    from connectors.elasticsearch.index import Index
    from connectors.elasticsearch.mapping import Field

MARK_INTERVAL: Final = 3600
"""Seconds between two watermarks of ``marks``."""
LONGEST_SNAPSHOT: Final = 86_400
"""Seconds that a snapshot may take. It holds the documents of its start, and the mapping, with the watermark, of its end."""


def held(index: Index, route: RouteSpec) -> Claim | None:
    """Return the claim that the index records; None if it has none."""
    note = index.metadata
    if not note:
        return None
    marks = _reached(index, route)
    mark = Watermark.parse(str(marks["mark"])) if marks else None
    claim = Claim(note["owner"], note["epoch"], mark, route=note["route"])
    batch = mark.txn_version if mark is not None and claim.is_of(route) else -1
    lacking = mark is None and route.watermark is not None
    return replace(claim, restored=index.is_copy or lacking, txn_version=batch)


def _reached(index: Index, route: RouteSpec) -> dict[str, Any]:
    """Return the recorded watermarks that the index has reached; empty if none is known.

    A copy has those that were recorded before its snapshot can have started.
    """
    note = index.metadata
    if "mark" not in note:
        return {}
    marks = _of_epoch(note, route)
    if not index.is_copy:
        return {"mark": note["mark"], "marks": marks}
    reached = [[seconds, mark] for seconds, mark in marks if seconds <= marks[-1][0] - LONGEST_SNAPSHOT]
    return {"mark": reached[-1][1], "marks": reached} if reached else {}


def _of_epoch(note: dict[str, Any], route: RouteSpec) -> list[list[Any]]:
    """Return the watermarks of the route's epoch with their times.

    A paused writer of an earlier epoch that resumes puts its own back, and an earlier release keeps those of an earlier epoch.
    """
    marks = note.get("marks", [])
    return [[seconds, mark] for seconds, mark in marks if Watermark.parse(mark).generation >= route.first_generation]


def marks_with(former: list[list[Any]], watermark: Watermark, now: int) -> list[list[Any]]:
    """Return the watermarks with their times in epoch seconds, oldest first, after the route has reached another.

    The newest time is at most ``MARK_INTERVAL`` old. The oldest watermark is the newest of those that a snapshot which ends
    now can't have passed.
    """
    if former and former[-1][0] <= now < former[-1][0] + MARK_INTERVAL:
        return former
    marks = [*(mark for mark in former if mark[0] < now), [now, str(watermark)]]
    passed = sum(seconds <= now - LONGEST_SNAPSHOT for seconds, _ in marks)
    return marks[max(passed - 1, 0) :]


def take_ownership(cluster: Cluster, index: Index, found: list[Field], route: RouteSpec) -> None:
    """Add the alias of this lease, map missing fields and record the claim. Everything else of the index stays unchanged.

    Raises:
        PermanentError: A later lease has the alias, or another route has the claim. The index is then unchanged.

    """
    claim = held(index, route)
    if claim is not None and (other := claim.other(route)) is not None:
        raise claimed(f"index {index.name!r}", other, "INDEX")
    add = _additions(index, found, route)
    if index.alias is None:
        _take(cluster, index, route)
    same_epoch = claim is not None and claim.is_of(route) and claim.epoch == route.epoch
    marks = _reached(index, route) if same_epoch else {}  # a watermark belongs to the epoch
    former = {name: value for name, value in index.metadata.items() if name not in {"mark", "marks"}}
    note = {**former, **entry(route), "identity": index.identity, **marks}
    if add or note != index.metadata:
        meta = {**index.mappings.get("_meta", {}), META: note}
        mapping = {"_meta": meta, "properties": properties_of(add, index.mappings)}
        if add:
            field_limit.make_room(cluster, index, mapping)
        cluster.request_json("PUT", f"/{quote(index.name)}/_mapping", mapping)


def _take(cluster: Cluster, index: Index, route: RouteSpec) -> None:
    """Replace the aliases of older leases and other state paths in one request, so that their writers fail from then on."""
    writer = write_alias(index.name, route.fence)
    others = [alias for alias in index.write_aliases if alias != writer]
    same = index.metadata.get("owner", route.owner) == route.owner
    if same and any(_fence_of(alias) > route.fence for alias in others):
        raise fenced_off(f"index {index.name!r}")
    if writer in index.aliases and not others:
        return
    add = {"add": {"index": index.name, "alias": writer, "is_write_index": True}}
    removals = [{"remove": {"index": index.name, "alias": alias, "must_exist": True}} for alias in others]
    cluster.request_json("POST", "/_aliases", {"actions": [add, *removals]})


def _fence_of(alias: str) -> int:
    number = alias.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def save_watermark(cluster: Cluster, index: Index, route: RouteSpec, watermark: Watermark) -> None:
    """Record the watermark in the index; raise ``SinkError`` if another index or writer has replaced the prepared index."""
    if not index.metadata:
        raise target_missing(f"index {index.name!r} has lost its claim")
    taken = (index.metadata["owner"], index.metadata["route"]) != (route.owner, route.name)
    if taken or (index.alias is None and write_alias(index.name, route.fence) not in index.aliases):
        raise fenced_off(f"index {index.name!r}")
    if index.is_copy:
        raise lost(f"index {index.name!r} was restored from a copy")
    former = index.metadata
    marks = marks_with(_of_epoch(former, route), watermark, int(time.time()))
    if (former.get("mark"), former.get("marks")) == (str(watermark), marks):
        return
    # A paused writer of an earlier epoch that resumes between its read and its write puts its note over the claim.
    note = {**former, "epoch": max(former["epoch"], route.epoch), "mark": str(watermark), "marks": marks}
    meta = {**index.mappings.get("_meta", {}), META: note}
    cluster.request_json("PUT", f"/{quote(index.name)}/_mapping", {"_meta": meta})


def _additions(index: Index, found: list[Field], route: RouteSpec) -> list[Field]:
    """Return the fields that the sink maps. In another user's index these are fields that no rule of the index covers.

    Raises:
        PermanentError: The mapping can't take the route.

    """
    result = compare(found, index.mappings)
    variable = f"CDF_ROUTES__{route.name.upper()}__"
    if result.conflicts:
        cure = (
            f"Delete the index and run `cdf-replicator resync {route.name}`, which creates it again"
            if index.managed
            else f"Map the field with another type, name another index in {variable}INDEX"
        )
        raise PermanentError(
            f"index {index.name!r} does not take the route: {'; '.join(result.conflicts)}.",
            f"{cure}, or rename or leave out the column ({variable}RENAME, {variable}COLUMNS).",
        )
    if index.managed:
        return [leaf for leaf, _ in result.missing]
    if refused := [leaf.path for leaf, dynamic in result.missing if dynamic == "strict"]:
        raise PermanentError(
            f"index {index.name!r} is strict and does not map {', '.join(refused)}.",
            f"Map these fields, or name the columns it takes in {variable}COLUMNS.",
        )
    if "dynamic_templates" in index.mappings:
        return []
    return [leaf for leaf, dynamic in result.missing if dynamic == "true"]
