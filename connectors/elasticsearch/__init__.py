"""Write to Elasticsearch: one document per key."""

from connectors.elasticsearch.sink import ElasticsearchSink
from connectors.registry import require

__all__ = ["ElasticsearchSink"]

require("elasticsearch")
