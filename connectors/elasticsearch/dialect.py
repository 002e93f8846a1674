"""Name what differs between the two products that take the same documents: Elasticsearch and OpenSearch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDER: Final = re.compile(rb'\s*\{.*("root_cause":|"user_?name":|no handler found for uri )', re.DOTALL)
"""Matches the answer to ``who`` of a version, of either product, that does not name itself in a header."""
VERSION: Final = re.compile(r"/(\d+)\.(\d+)")
LONGEST_TERM: Final = 4096  # characters; Lucene refuses terms above 32766 bytes


@dataclass(frozen=True, slots=True)
class Dialect:
    """One product's way to say what both can do.

    Args:
        type: The sink type.
        product: The name of the product.
        oldest: The oldest supported version.
        header: The header in which the product names itself in every answer. Its value begins with the name.
        who: The path that returns the user of a request. Every user may read it.
        accept: The media type of that answer.
        point_in_time: The path, below an index, that opens a point in time of every shard; the time of its life completes it.
        pit_key: The name of its id in the answer.
        close: The path that frees points in time.
        map_field: The field of a map with any keys.
        vector: The type of a field that holds a vector.
        dimension: The parameter with the number of its numbers.
        similarity: The parameter with the metric of its index.
        metrics: The value of that parameter for each metric.
        unindexed: The parameters of a vector without an index.
        privileges: The rights that a user of the sink needs.
    """

    type: str
    product: str
    oldest: str
    header: str
    who: str
    accept: str
    point_in_time: str
    pit_key: str
    close: str
    map_field: Mapping[str, Any]
    vector: str
    dimension: str
    similarity: str
    metrics: Mapping[str, str]
    unindexed: Mapping[str, Any]
    privileges: str

    def identifies(self, headers: Mapping[str, str]) -> bool:
        """Return whether the product sent an answer with these headers. A proxy's own answer lacks them."""
        return headers.get(self.header, "").startswith(self.product)

    def outdated(self, headers: Mapping[str, str]) -> bool:
        """Return whether the header names a version below the oldest. That of Elasticsearch names no version."""
        found = VERSION.search(headers.get(self.header, ""))
        return found is not None and [int(part) for part in found.groups()] < [int(x) for x in self.oldest.split(".")]

    def vector_field(self, dimension: int, metric: str | None) -> dict[str, Any]:
        """Return the field of a vector, with an HNSW index if it has a metric."""
        index = self.unindexed if metric is None else {self.similarity: self.metrics[metric]}
        return {"type": self.vector, self.dimension: dimension, **index}

    def pit(self, identity: str) -> dict[str, Any]:
        """Return the body that frees a point in time."""
        return {self.pit_key: [identity] if self.pit_key == "pit_id" else identity}


ELASTICSEARCH: Final = Dialect(
    type="elasticsearch",
    product="Elasticsearch",
    oldest="8",
    header="x-elastic-product",
    who="/_security/_authenticate",
    accept="application/vnd.elasticsearch+json; compatible-with=8",  # an older version refuses it
    point_in_time="_pit?keep_alive=",
    pit_key="id",
    close="/_pit",
    map_field={"type": "flattened", "ignore_above": LONGEST_TERM},
    vector="dense_vector",
    dimension="dims",
    similarity="similarity",
    metrics={"cosine": "cosine", "l2": "l2_norm", "ip": "max_inner_product"},
    unindexed={"index": False},
    privileges="view_index_metadata, create_index, manage, read and write on the index",
)
OPENSEARCH: Final = Dialect(
    type="opensearch",
    product="OpenSearch",
    oldest="3.3",  # the first that sorts by _shard_doc
    header="x-opensearch-version",  # an older version has no such header
    who="/_plugins/_security/authinfo",
    accept="application/json",
    # By default it takes the shards that it finds, and replicas, which lack the newest writes with index.replication.type: SEGMENT.
    point_in_time="_search/point_in_time?allow_partial_pit_creation=false&preference=_primary&keep_alive=",
    pit_key="pit_id",
    close="/_search/point_in_time",
    map_field={"type": "flat_object"},
    vector="knn_vector",  # of the plugin k-NN
    dimension="dimension",
    similarity="space_type",
    metrics={"cosine": "cosinesimil", "l2": "l2", "ip": "innerproduct"},
    unindexed={},
    privileges="indices_all on the index and cluster_composite_ops",
)
DIALECTS: Final = (ELASTICSEARCH, OPENSEARCH)
