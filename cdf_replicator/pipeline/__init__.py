"""Run one route, from its start position to each committed micro-batch."""

from cdf_replicator.pipeline.context import RouteContext
from cdf_replicator.pipeline.route_stream import RouteStream
from cdf_replicator.pipeline.streaming_query import StreamingQueryRunner

__all__ = ["RouteContext", "RouteStream", "StreamingQueryRunner"]
