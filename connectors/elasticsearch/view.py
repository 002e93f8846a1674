"""Read the documents of an index at one moment, by a point in time (PIT): to compare, to count, and to delete orphans."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

import orjson

from connectors.elasticsearch.index import leaves_out_vectors
from connectors.errors import PermanentError, RetryableError, SinkError
from connectors.result import EntryCount
from connectors.view import BODY, ScannedView, entry_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.elasticsearch.bulk import BulkRequests
    from connectors.elasticsearch.client import Cluster
    from connectors.elasticsearch.index import Index
    from connectors.elasticsearch.settings import DocumentSettings
    from connectors.result import WriteResult

KEEP_ALIVE: Final = "5m"
PAGE: Final = 2000
SLICES: Final = 4
PAGE_OF_IDS: Final = 5000
GTE: Final = {"version_type": "external_gte"}


@dataclass(frozen=True, slots=True)
class DocumentView(ScannedView):
    """The documents of a point in time.

    Args:
        settings: The settings of the sink, by which a worker connects.
        pit: The id of the point in time. Each request extends its life, so that a long comparison keeps it.
        source: The clause ``_source`` of the searches.
    """

    consistent: ClassVar[bool] = True
    settings: DocumentSettings
    pit: str
    source: bool | Mapping[str, Any]
    parts: int = SLICES

    def scan(self, part: int) -> Iterator[pa.RecordBatch]:
        from connectors.elasticsearch.client import cluster_of

        query = {"slice": {"id": part, "max": self.parts}, "_source": self.source}
        for hits in pages(cluster_of(self.settings), self.pit, PAGE, query):
            bodies = [orjson.dumps(hit["_source"]).decode() if "_source" in hit else None for hit in hits]
            yield entry_batch([hit["_id"] for hit in hits], [hit["_version"] for hit in hits], bodies)

    def read(self, schema: StructType) -> Column:
        from connectors.rendering import parsed_row

        return parsed_row(BODY, schema)


@contextmanager
def opened(cluster: Cluster, settings: DocumentSettings, index: Index) -> Iterator[DocumentView]:
    """Refresh the index and open a point in time; close it at the end."""
    source = {"exclude_vectors": False} if leaves_out_vectors(cluster, index) else True
    pit = open_pit(cluster, quote(index.name))
    try:
        yield DocumentView(settings, pit, source)
    finally:
        close_pit(cluster, pit)


def open_pit(cluster: Cluster, index: str) -> str:
    """Make every acknowledged write visible, and return the id of a point in time. ``index`` is quoted for a URL."""
    cluster.request_json("POST", f"/{index}/_refresh")
    path = f"/{index}/{cluster.dialect.point_in_time}?keep_alive={KEEP_ALIVE}"
    return str(cluster.request_json("POST", path)[cluster.dialect.pit_key])


def close_pit(cluster: Cluster, pit: str) -> None:
    """Free a point in time. The server frees it by itself at the end of its life, so that an error has no consequence."""
    with suppress(SinkError):
        cluster.request_json("DELETE", cluster.dialect.close, cluster.dialect.pit(pit))


def pages(cluster: Cluster, pit: str, size: int, query: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the hits of a point in time in pages, with the version of each document."""
    after: dict[str, Any] = {}
    while True:
        search = {
            "pit": {"id": pit, "keep_alive": KEEP_ALIVE},
            "size": size,
            "sort": ["_shard_doc"],
            "version": True,
            "track_total_hits": False,
            **query,
            **after,
        }
        answer = cluster.request_json("POST", "/_search?allow_partial_search_results=false", search)
        pit, hits = answer["pit_id"], answer["hits"]["hits"]
        if not hits:
            return
        yield hits
        after = {"search_after": hits[-1]["sort"]}


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
            deletes = ({"delete": _address(hit) | {"version": below_guard - 1, **GTE}} for hit in orphans)
            result = _send(requests, b"".join(orjson.dumps(delete) + b"\n" for delete in deletes), len(orphans))
            swept += len(orphans) - len(result.stale) - len(result.noop)
    return swept


def _send(requests: BulkRequests, body: bytes, deletes: int) -> WriteResult:
    result = requests.send(body, deletes)
    if result is None:
        raise PermanentError(
            f"{requests.cluster.dialect.product} refuses a request of {len(body)} bytes as too large.",
            "Raise http.max_content_length.",
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
        yield from pages(cluster, pit, PAGE_OF_IDS, {"_source": False})
    finally:
        close_pit(cluster, pit)
