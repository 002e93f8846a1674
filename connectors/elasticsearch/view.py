"""Read the documents of an index at one moment, by a point in time (PIT): to compare, to count, and to delete orphans."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

import orjson

from connectors.elasticsearch.bulk import merge
from connectors.elasticsearch.index import leaves_out_vectors
from connectors.errors import PermanentError, RetryableError, SinkError
from connectors.result import EntryCount
from connectors.view import BODY, FIRST_PAGE, ScannedView, entry_batch, next_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.elasticsearch.bulk import BulkRequests
    from connectors.elasticsearch.client import Cluster, Reply
    from connectors.elasticsearch.index import Index
    from connectors.elasticsearch.settings import DocumentSettings
    from connectors.result import WriteResult

KEEP_ALIVE: Final = "5m"
RENEW_SECONDS: Final = 60.0
PAGE: Final = 2000
SLICES: Final = 4
PAGE_OF_IDS: Final = 5000
GTE: Final = {"version_type": "external_gte"}


@dataclass(frozen=True, slots=True)
class DocumentView(ScannedView):
    """The documents of a point in time.

    Args:
        settings: The settings of the sink, by which a worker connects.
        pit: The id of the point in time. Each request extends its life.
        source: The clause ``_source`` of the searches.
        exact: Whether a document may have numbers that a double can't hold, as only those of a variant. ``entries`` sets it.
    """

    consistent: ClassVar[bool] = True
    settings: DocumentSettings
    pit: str
    source: bool | Mapping[str, Any]
    exact: bool = False
    parts: int = SLICES

    def entries(self, spark: SparkSession, schema: StructType) -> DataFrame:
        from connectors.rendering import has_variant

        return ScannedView.entries(replace(self, exact=has_variant(schema)), spark, schema)

    def scan(self, part: int) -> Iterator[pa.RecordBatch]:
        from connectors.elasticsearch.client import cluster_of

        query = {"slice": {"id": part, "max": self.parts}, "_source": self.source}
        for hits in pages(cluster_of(self.settings), self.pit, PAGE, query, exact=self.exact):
            bodies = [orjson.dumps(hit["_source"]).decode() if "_source" in hit else None for hit in hits]
            yield entry_batch([hit["_id"] for hit in hits], [hit["_version"] for hit in hits], bodies)

    def read(self, schema: StructType) -> Column:
        from connectors.rendering import parsed_row

        return parsed_row(BODY, schema)


@contextmanager
def opened(cluster: Cluster, settings: DocumentSettings, index: Index) -> Iterator[DocumentView]:
    """Refresh the index and open a point in time; keep it alive, and close it at the end."""
    source = {"exclude_vectors": False} if leaves_out_vectors(cluster, index) else True
    pit = open_pit(cluster, quote(index.name))
    closed = threading.Event()
    renewing = threading.Thread(target=_keep_alive, args=(cluster, pit, closed), name="point-in-time", daemon=True)
    renewing.start()
    try:
        yield DocumentView(settings, pit, source)
    finally:
        closed.set()
        close_pit(cluster, pit)


def _keep_alive(cluster: Cluster, pit: str, closed: threading.Event) -> None:
    """Extend the life of a point in time while a comparison reads the source table alone."""
    while not closed.wait(RENEW_SECONDS):
        with suppress(SinkError):
            _search(cluster, pit, {"size": 1, "_source": False})


def open_pit(cluster: Cluster, index: str) -> str:
    """Make every acknowledged write visible, and return the id of a point in time. ``index`` is quoted for a URL."""
    _post(cluster, f"/{index}/_refresh")
    return str(_post(cluster, f"/{index}/{cluster.dialect.point_in_time}{KEEP_ALIVE}")[cluster.dialect.pit_key])


def _post(cluster: Cluster, path: str) -> Any:
    """Return the answer; raise ``RetryableError`` if it names failed shards, also of a request that succeeded."""
    answer = cluster.request_json("POST", path)
    if failed := answer.get("_shards", {}).get("failed"):
        raise RetryableError("unavailable", f"POST {path}: it failed on {failed} shards")
    return answer


def close_pit(cluster: Cluster, pit: str) -> None:
    """Free a point in time. The server frees it by itself at the end of its life, so that an error has no consequence."""
    with suppress(SinkError):
        cluster.request_json("DELETE", cluster.dialect.close, cluster.dialect.pit(pit))


def pages(
    cluster: Cluster, pit: str, size: int, query: Mapping[str, Any], *, exact: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Yield the hits of a point in time in pages, with the version of each document.

    A page has ``size`` hits at most, and about ``PAGE_BYTES``. With ``exact`` a number that orjson
    would round is an ``orjson.Fragment``.
    """
    after: dict[str, Any] = {}
    hits_wanted = min(FIRST_PAGE, size)
    while True:
        page = {"size": hits_wanted, "sort": ["_shard_doc"], "version": True, **query, **after}
        reply = _search(cluster, pit, page)
        answer = reply.json(_exact) if exact else reply.json()
        pit, hits = answer["pit_id"], answer["hits"]["hits"]
        if not hits:
            return
        yield hits
        after = {"search_after": hits[-1]["sort"]}
        hits_wanted = next_page(len(hits), len(reply.body), size)


def _exact(body: bytes) -> Any:
    return json.loads(body, parse_float=orjson.Fragment, parse_int=_whole)


def _whole(text: str) -> int | orjson.Fragment:
    number = int(text)
    return number if -(2**63) <= number < 2**63 else orjson.Fragment(text)


def _search(cluster: Cluster, pit: str, search: Mapping[str, Any]) -> Reply:
    body = {"pit": {"id": pit, "keep_alive": KEEP_ALIVE}, "track_total_hits": False, **search}
    return cluster.request("POST", "/_search?allow_partial_search_results=false", body)


def count(cluster: Cluster, index: str, below_guard: int) -> EntryCount:
    """Read the version of every document and count, since no query finds versions."""
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
            deletes = [_delete(hit, below_guard - 1) for hit in orphans]
            result = _send(requests, deletes)
            swept += len(orphans) - len(result.stale) - len(result.noop)
    return swept


def _delete(hit: dict[str, Any], guard: int) -> bytes:
    return orjson.dumps({"delete": _address(hit) | {"version": guard, **GTE}}) + b"\n"


def _send(requests: BulkRequests, deletes: list[bytes]) -> WriteResult:
    """Send deletes; halve them as often as the server, or a proxy before it, refuses the request as too large."""
    body = b"".join(deletes)
    result = requests.send(body, len(deletes))
    if result is None:
        if half := len(deletes) // 2:
            return merge(_send(requests, deletes[:half]), _send(requests, deletes[half:]), half)
        raise PermanentError(
            f"{requests.cluster.dialect.product} refuses a request of {len(body)} bytes as too large.",
            "Raise http.max_content_length.",
        )
    if result.retry:
        raise RetryableError(result.retry_reason, f"{len(result.retry)} of {len(deletes)} deletes")
    if result.rejected:
        raise PermanentError(
            f"{requests.cluster.dialect.product} refuses {len(result.rejected)} of {len(deletes)} deletes of documents that the "
            f"table does not have: {result.rejected[0].reason}",
            f"Correct the index or its alias, or delete these documents. Then run: cdf-replicator resume {requests.route}",
        )
    return result


def _address(hit: dict[str, Any]) -> dict[str, Any]:
    address = {"_id": hit["_id"]}
    return address | {"routing": hit["_routing"]} if "_routing" in hit else address


def _pages(cluster: Cluster, index: str) -> Iterator[list[dict[str, Any]]]:
    pit = open_pit(cluster, index)
    try:
        yield from pages(cluster, pit, PAGE_OF_IDS, {"_source": False})
    finally:
        close_pit(cluster, pit)
