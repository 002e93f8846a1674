"""Counting and removing what an earlier epoch, or somebody else, left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from connectors.result import Held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connectors.elasticsearch.client import Cluster
    from connectors.result import WriteResult

PAGE: Final = 5000
KEEP_ALIVE: Final = "5m"
GTE: Final = {"version_type": "external_gte"}


def count(cluster: Cluster, index: str, below_guard: int) -> Held:
    """Look at the version of every document: versions can't be searched for."""
    held = Held()
    for page in _pages(cluster, index):
        versions = [hit["_version"] for hit in page]
        held += Held(len(versions), sum(version < below_guard for version in versions), max(versions))
    return held


def sweep(cluster: Cluster, index: str, below_guard: int, bulk: Callable[[bytes, int], WriteResult]) -> int:
    """Delete every document whose version is below the guard; ``bulk`` sends a body of so many actions.

    ``external_gte`` at the guard just below beats every orphan, also one that has that very guard, and loses to
    whatever the new epoch writes meanwhile. A document that somebody else wrote has version 1, or one more than it had
    from us, and perhaps a routing, without which it would not be found.
    """
    swept = 0
    for page in _pages(cluster, index):
        orphans = [hit for hit in page if hit["_version"] < below_guard]
        if orphans:
            deletes = ({"delete": _address(hit) | {"version": below_guard - 1, **GTE}} for hit in orphans)
            result = bulk(b"".join(orjson.dumps(delete) + b"\n" for delete in deletes), len(orphans))
            swept += len(orphans) - len(result.stale) - len(result.noop)
    return swept


def _address(hit: dict[str, Any]) -> dict[str, Any]:
    address = {"_id": hit["_id"]}
    return address | {"routing": hit["_routing"]} if "_routing" in hit else address


def _pages(cluster: Cluster, index: str) -> Iterator[list[dict[str, Any]]]:
    cluster.ask("POST", f"/{index}/_refresh")
    pit = cluster.ask("POST", f"/{index}/_pit?keep_alive={KEEP_ALIVE}")["id"]
    after: dict[str, Any] = {}
    try:
        while True:
            query = {
                "pit": {"id": pit, "keep_alive": KEEP_ALIVE},
                "size": PAGE,
                "sort": ["_shard_doc"],
                "version": True,
                "_source": False,
                "track_total_hits": False,
                **after,
            }
            answer = cluster.ask("POST", "/_search?allow_partial_search_results=false", query)
            pit, hits = answer["pit_id"], answer["hits"]["hits"]
            if not hits:
                return
            yield hits
            after = {"search_after": hits[-1]["sort"]}
    finally:
        cluster.ask("DELETE", "/_pit", {"id": pit})
