"""Write whole documents with external versions to Elasticsearch, in bulk requests that the JVM builds.

Functions import the modules that need Spark or the client, so that a configuration is validated without them.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

from connectors.change import GUARD, KEY, is_delete
from connectors.elasticsearch import settings as configuration
from connectors.elasticsearch.bulk import (
    ANSWER,
    PROBE,
    REJECTION_CODES,
    all_applied,
    body_of,
    merge,
    refused_alike,
    result_of,
    too_large,
)
from connectors.elasticsearch.index import apply_settings, create, find, identity_of, mark, take_ownership, write_alias
from connectors.elasticsearch.mapping import leaves
from connectors.elasticsearch.orphans import count, sweep
from connectors.errors import PermanentError, RetryableError, lost, target_missing
from connectors.protocols import IDENTITY, Addressed, Capabilities, Resyncable, Verifiable, Watermarked
from connectors.result import EntryCount, WriteResult
from connectors.sink import ArrowSink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors.change import Claim, RouteSpec, Watermark
    from connectors.elasticsearch.client import Cluster
    from connectors.protocols import View
    from connectors.sink import Mode

BODY: Final = "ndjson"
MARK_SECONDS: Final = 60.0
LONGEST_ID: Final = 512  # bytes
EMPTY_ID: Final = "%"  # Elasticsearch has no empty id; a key text never is a lone %


class ElasticsearchSink(ArrowSink, Resyncable, Watermarked, Addressed, Verifiable):
    """A sink that keeps one document per key.

    ``_id`` is the key text, or its SHA-256 if the key text is longer than 512 bytes. ``_version`` is the guard. An upsert
    may have the guard of the document (``external_gte``); a delete must have a higher guard (``external``). A repeated
    delivery therefore changes nothing, and an upsert beats a delete of the same commit.
    """

    Settings = configuration.Settings
    Options = configuration.Options
    mode: ClassVar[Mode] = "upsert"
    capabilities = Capabilities(rejection_codes=REJECTION_CODES, deleted_rows=False, fencing=True)
    settings: configuration.Settings

    def __init__(self, settings: configuration.Settings) -> None:
        super().__init__(settings)
        self._cluster: Cluster | None = None
        self._route = ""
        self._target = ""
        self._marked: tuple[float, object] = (-math.inf, None)
        self._index: tuple[str, str] | None = None

    def __reduce__(self) -> tuple[type[ElasticsearchSink], tuple[configuration.Settings]]:
        """Pickle the settings only: a copy is not open, since connections stay in their process."""
        return type(self), (self.settings,)

    @property
    def endpoint(self) -> str:
        return ", ".join(self.settings.hosts)

    def target(self, route: RouteSpec) -> str:
        return f"index {_name(route)}"

    def places(self, route: RouteSpec) -> frozenset[str]:
        """Return an address for each node, since every node of a cluster leads to the same index."""
        return frozenset(f"elasticsearch {node} {_name(route)}" for node in configuration.nodes(self.settings.hosts))

    def check(self) -> None:
        self._connected().check()

    def read_claim(self, route: RouteSpec) -> Claim | None:
        index = find(self._connected(), _name(route))
        self._index = (index.name, index.identity) if index else None
        return index.claim(route) if index else None

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        fields = leaves(schema, route.name)
        cluster, name = self._connected(), _name(route)
        index = find(cluster, name)
        if self._index is not None and (index is None or (index.name, index.identity) != self._index):
            raise lost(f"index {name!r} was replaced by another index")
        if index is None:
            index = create(cluster, name, fields, route, self.settings.gc_deletes)
            self._index = (index.name, index.identity)
            return []
        self._index = (index.name, index.identity)
        take_ownership(cluster, index, fields, route)
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

        index = find(self._connected(), _name(route))
        if index is None:
            raise target_missing(f"index {_name(route)!r} is gone")
        return view.opened(self._connected(), self.settings, index)

    def open(self, route: RouteSpec) -> None:
        if self._target:
            return
        name = _name(route)
        alias = self._connected().exists(f"/_alias/{quote(name)}")
        writer = name if alias else write_alias(name, route.fence)
        self._target = f"/{quote(writer)}/_bulk?require_alias=true&{ANSWER}"
        self._route = route.name

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        if chunk.num_rows == 0:
            return WriteResult()
        result = self._bulk(body_of(chunk.column(BODY)), chunk.num_rows)
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
        index = find(self._connected(), _name(route))
        if index is None:
            raise target_missing(f"index {_name(route)!r} is gone")
        mark(self._connected(), index, route, watermark)
        self._marked = time.monotonic(), (replace(route, watermark=None), watermark.generation)

    def lost_acknowledged_writes(self) -> bool:
        """Return whether the identity of the index has changed since the claim. A restore from a snapshot changes it."""
        return self._index is not None and identity_of(self._connected(), self._index[0]) != self._index[1]

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:
        index = find(self._connected(), _name(route))
        return count(self._connected(), quote(index.name), below_guard) if index else EntryCount()

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:
        self.open(route)
        index = find(self._connected(), _name(route))
        if index is None:
            return 0
        return sweep(self._connected(), quote(index.name), below_guard, self._swept)

    def close(self) -> None:
        """Forget the target. The connections stay open for the next sink of these settings in the process."""
        self._cluster, self._target = None, ""

    def _connected(self) -> Cluster:
        from connectors.elasticsearch.client import cluster_of

        if self._cluster is None:
            self._cluster = cluster_of(self.settings)
        return self._cluster

    def _bulk(self, body: bytes, changes: int) -> WriteResult | None:
        """Send one bulk request; return None if it is larger than the server accepts."""
        from connectors.elasticsearch.client import NDJSON, TOO_LARGE, refusal

        reply = self._connected().send("PUT", self._target, body, NDJSON)
        if reply.status == TOO_LARGE:
            return None
        if not reply.ok:
            raise refusal(reply, "bulk")
        if reply.from_elasticsearch and all_applied(reply.body, changes):
            return WriteResult(sent_bytes=len(body))
        items = reply.json()["items"]
        result = result_of(items, changes=changes, route=self._route, sent_bytes=len(body))
        if kind := refused_alike(items):
            self._check_rows_are_to_blame(kind)
        return result

    def _check_rows_are_to_blame(self, kind: str) -> None:
        """Send an empty document after the index refused every row for one reason; raise ``PermanentError`` if it is refused too.

        Without this check a fault of the index would turn all rows into dead letters, and delete the documents of their keys.
        """
        from connectors.elasticsearch.client import NDJSON, refusal

        reply = self._connected().send("PUT", self._target, PROBE, NDJSON)
        if not reply.ok:
            raise refusal(reply, "bulk")
        (item,) = reply.json()["items"]
        error = item["index"].get("error") or {}
        if error.get("type") == kind:
            raise PermanentError(
                f"the index refuses every document, even an empty document: {kind}: {error.get('reason')}.",
                "Correct the settings, the template or the pipelines of the index, then restart. No document was deleted.",
            )

    def _swept(self, body: bytes, deletes: int) -> WriteResult:
        result = self._bulk(body, deletes)
        if result is None:
            raise PermanentError(
                f"Elasticsearch refuses a request of {len(body)} bytes as too large.", "Raise http.max_content_length."
            )
        if result.retry:
            raise RetryableError(result.retry_reason, f"{len(result.retry)} of {deletes} deletes")
        return result


def _name(route: RouteSpec) -> str:
    options = route.options
    assert isinstance(options, configuration.Options)
    return options.index or route.table
