"""Run one route, from its start position to each committed micro-batch."""

from cdf_replicator.pipeline.context import Service
from cdf_replicator.pipeline.route_stream import Stream
from cdf_replicator.pipeline.streaming_query import Query

__all__ = ["Query", "Service", "Stream"]
