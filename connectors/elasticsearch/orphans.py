"""Count and delete the documents of an earlier epoch or of another writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from connectors.elasticsearch.view import close_pit, open_pit, pages
from connectors.errors import PermanentError, RetryableError
from connectors.result import EntryCount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.elasticsearch.bulk import BulkRequests
    from connectors.elasticsearch.client import Cluster
    from connectors.result import WriteResult

PAGE: Final = 5000
GTE: Final = {"version_type": "external_gte"}


def count(cluster: Cluster, index: str, below_guard: int) -> EntryCount:
    """Read the version of every document and count, since Elasticsearch can't search for versions."""
    held = EntryCount()
    for page in _pages(cluster, index):
        versions = [hit["_version"] for hit in page]
        held += EntryCount(len(versions), sum(version < below_guard for version in versions), max(versions))
    return held


def sweep(cluster: Cluster, index: str, below_guard: int, requests: BulkRequests) -> int:
    """Delete every document whose version is below the guard, and return their number.

    A delete has the guard just below and the version type ``external_gte``. It beats every orphan, and loses to every
    concurrent write of the new epoch. A document of another writer has version 1, or the version after the sink's last one.
    It may have a routing value, which the delete must contain.

    Args:
        cluster: The cluster.
        index: The name of the index, quoted for a URL.
        below_guard: The lowest guard of the new epoch.
        requests: The bulk requests of the writer.

    """
    swept = 0
    for page in _pages(cluster, index):
        orphans = [hit for hit in page if hit["_version"] < below_guard]
        if orphans:
            deletes = ({"delete": _address(hit) | {"version": below_guard - 1, **GTE}} for hit in orphans)
            result = _send(requests, b"".join(orjson.dumps(delete) + b"\n" for delete in deletes), len(orphans))
            swept += len(orphans) - len(result.stale) - len(result.noop)
    return swept


def _send(requests: BulkRequests, body: bytes, deletes: int) -> WriteResult:
    result = requests.send(body, deletes)
    if result is None:
        raise PermanentError(
            f"Elasticsearch refuses a request of {len(body)} bytes as too large.", "Raise http.max_content_length."
        )
    if result.retry:
        raise RetryableError(result.retry_reason, f"{len(result.retry)} of {deletes} deletes")
    return result


def _address(hit: dict[str, Any]) -> dict[str, Any]:
    address = {"_id": hit["_id"]}
    return address | {"routing": hit["_routing"]} if "_routing" in hit else address


def _pages(cluster: Cluster, index: str) -> Iterator[list[dict[str, Any]]]:
    pit = open_pit(cluster, index)
    try:
        yield from pages(cluster, pit, PAGE, {"_source": False})
    finally:
        close_pit(cluster, pit)
