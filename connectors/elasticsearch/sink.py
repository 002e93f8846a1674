"""Write whole documents with external versions to Elasticsearch and OpenSearch, in bulk requests that the JVM builds.

Functions import the modules that need Spark or the client, so that a configuration is validated without them.
"""

from __future__ import annotations

import math
import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

from connectors.change import GUARD, KEY, is_delete
from connectors.elasticsearch import claim
from connectors.elasticsearch import settings as configuration
from connectors.elasticsearch.bulk import REJECTION_CODES, BulkRequests, merge, too_large
from connectors.elasticsearch.index import apply_settings, create, find, identity_of, write_alias
from connectors.elasticsearch.mapping import leaves
from connectors.errors import lost, target_missing
from connectors.protocols import Addressed, Capabilities, Repairable, Resyncable, Watermarked
from connectors.result import EntryCount, WriteResult
from connectors.sink import ArrowSink
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.change import Claim, RouteSpec, Watermark
    from connectors.elasticsearch.client import Cluster
    from connectors.elasticsearch.index import Index
    from connectors.sink import Mode
    from connectors.view import View

BODY: Final = "ndjson"
MARK_SECONDS: Final = 60.0
LONGEST_ID: Final = 512  # bytes
EMPTY_ID: Final = "%"  # there is no empty id; a key text never is a lone %


class DocumentSink(ArrowSink, Resyncable, Watermarked, Addressed, Repairable):
    """A sink that keeps one document per key.

    ``_id`` is the key text, or its SHA-256 if the key text is longer than 512 bytes. ``_version`` is the guard. An upsert
    may have the guard of the document (``external_gte``); a delete must have a higher guard (``external``). A repeated
    delivery therefore changes nothing, and an upsert beats a delete of the same commit.
    """

    Options = configuration.Options
    mode: ClassVar[Mode] = "upsert"
    capabilities = Capabilities(rejection_codes=REJECTION_CODES, deleted_rows=False, fencing=True)
    settings: configuration.DocumentSettings

    def __init__(self, settings: configuration.DocumentSettings) -> None:
        super().__init__(settings)
        self._cluster: Cluster | None = None
        self._requests: BulkRequests | None = None
        self._marked: tuple[float, object] = (-math.inf, None)
        self._index: Index | None = None

    def __reduce__(self) -> tuple[type[DocumentSink], tuple[configuration.DocumentSettings]]:
        """Pickle the settings only: a copy is not open, since connections stay in their process."""
        return type(self), (self.settings,)

    @property
    def endpoint(self) -> str:
        return ", ".join(self.settings.hosts)

    def target(self, route: RouteSpec) -> str:
        return f"index {_name(route)}"

    def places(self, route: RouteSpec) -> frozenset[str]:
        """Return an address for each node, since every node of a cluster leads to the same index."""
        kind = self.settings.dialect.type
        return frozenset(f"{kind} {node} {_name(route)}" for node in configuration.nodes(self.settings.hosts))

    def check(self) -> None:
        self._connected().check()

    def read_claim(self, route: RouteSpec) -> Claim | None:
        self._index = self._find(route)
        return claim.held(self._index, route) if self._index else None

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        vectors = _options(route).parsed_vectors
        fields = leaves(schema, route.name, self.settings.dialect, vectors)
        cluster, name = self._connected(), _name(route)
        index = find(cluster, name)
        if self._index is not None and not _is_same(index, self._index):
            raise lost(f"index {name!r} was replaced by another index")
        if index is None:
            index = create(cluster, name, fields, route, self.settings.gc_deletes)
        self._index = index
        claim.take_ownership(cluster, index, fields, route)
        return apply_settings(cluster, index, self.settings.gc_deletes)

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        from pyspark.sql import functions as F  # noqa: N812

        from connectors.rendering import json_row

        identity = self.identity(route)

        def header(action: str, version_type: str) -> Column:
            fields = F.struct(
                identity.alias("_id"), F.col(GUARD).alias("version"), F.lit(version_type).alias("version_type")
            )
            return F.to_json(F.struct(fields.alias(action)))

        upsert = F.concat(header("index", "external_gte"), F.lit("\n"), json_row(schema), F.lit("\n"))
        delete = F.concat(header("delete", "external"), F.lit("\n"))
        return [F.when(is_delete(), delete).otherwise(upsert).alias(BODY)]

    def identity(self, route: RouteSpec) -> Column:  # noqa: ARG002 - the index is in the URL
        """Return the ``_id`` of the document of a change."""
        from pyspark.sql import functions as F  # noqa: N812

        key = F.col(KEY)
        return F.when(key == "", EMPTY_ID).when(F.octet_length(key) > LONGEST_ID, F.sha2(key, 256)).otherwise(key)

    def key(self, route: RouteSpec) -> Column:  # noqa: ARG002 - the index is in the URL
        """Return a key text whose document has this ``_id``: for a SHA-256, not the key text that the document had."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.when(F.col(IDENTITY) == EMPTY_ID, "").otherwise(F.col(IDENTITY))

    def view(self, route: RouteSpec) -> AbstractContextManager[View]:
        from connectors.elasticsearch import view

        return view.opened(self._connected(), self.settings, self._prepared(route))

    def open(self, route: RouteSpec) -> None:
        if self._requests is not None:
            return
        name = _name(route)
        alias = self._connected().find(f"/_alias/{quote(name)}") is not None
        writer = name if alias else write_alias(name, route.fence)
        self._requests = BulkRequests(self._connected(), quote(writer), route.name)

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        if chunk.num_rows == 0:
            return WriteResult()
        assert self._requests is not None
        result = self._requests.send(body_of(chunk.column(BODY)), chunk.num_rows)
        if result is not None:
            return result
        if chunk.num_rows == 1:
            return too_large(0)
        half = chunk.num_rows // 2
        return merge(self.write(chunk.slice(0, half)), self.write(chunk.slice(half)), half)

    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        """Write the watermark into the mapping's ``_meta``, at most once a minute, since that updates the cluster state."""
        marked_at, of = self._marked
        if of == (replace(route, watermark=None), watermark.generation) and time.monotonic() - marked_at < MARK_SECONDS:
            return
        claim.save_watermark(self._connected(), self._prepared(route), route, watermark)
        self._marked = time.monotonic(), (replace(route, watermark=None), watermark.generation)

    def lost_acknowledged_writes(self) -> bool:
        """Return whether writes reach another index than the claim's. A restore from a snapshot changes the identity too.

        An alias of the user may move to another index, and back before the next watermark.
        """
        known = self._index
        if known is None:
            return False
        if known.alias is None:
            return identity_of(self._connected(), known.name) != known.identity
        return not _is_same(find(self._connected(), known.alias), known)

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        from connectors.elasticsearch import view

        index = self._find(route)
        return view.count(self._connected(), quote(index.name), below_guard) if index else EntryCount()

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        from connectors.elasticsearch import view

        self.open(route)
        assert self._requests is not None
        index = self._find(route)
        if index is None:
            return 0
        return view.sweep(self._connected(), quote(index.name), below_guard, self._requests)

    def close(self) -> None:
        """Forget the target. The connections stay open for the next sink of these settings in the process."""
        self._cluster = self._requests = None

    def _connected(self) -> Cluster:
        from connectors.elasticsearch.client import cluster_of

        if self._cluster is None:
            self._cluster = cluster_of(self.settings)
        return self._cluster

    def _find(self, route: RouteSpec) -> Index | None:
        return find(self._connected(), _name(route))

    def _prepared(self, route: RouteSpec) -> Index:
        index = self._find(route)
        if index is None:
            raise target_missing(f"index {_name(route)!r} is gone")
        return index


class ElasticsearchSink(DocumentSink):
    Settings = configuration.ElasticsearchSettings


class OpenSearchSink(DocumentSink):
    Settings = configuration.OpenSearchSettings


def body_of(column: pa.Array) -> bytes:
    """Return the concatenated text of all rows, by one copy of the values buffer and without work per row."""
    layout = "<q" if column.type == "large_string" else "<i"
    _, offsets, values = column.buffers()
    width = struct.calcsize(layout)
    (start,) = struct.unpack_from(layout, offsets, column.offset * width)
    (end,) = struct.unpack_from(layout, offsets, (column.offset + len(column)) * width)
    body: bytes = values.slice(start, end - start).to_pybytes()
    return body


def _options(route: RouteSpec) -> configuration.Options:
    assert isinstance(route.options, configuration.Options)
    return route.options


def _name(route: RouteSpec) -> str:
    return _options(route).index or route.table


def _is_same(index: Index | None, known: Index) -> bool:
    return index is not None and (index.name, index.identity) == (known.name, known.identity)
