"""Write to Elasticsearch and OpenSearch: one document per key."""

from connectors.elasticsearch.sink import ElasticsearchSink, OpenSearchSink
from connectors.registry import require

__all__ = ["ElasticsearchSink", "OpenSearchSink"]

require("elastic_transport")
