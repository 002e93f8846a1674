"""Elasticsearch: one document per key."""

from connectors.elasticsearch.sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]
