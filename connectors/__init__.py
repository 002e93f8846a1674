"""Define the sink contract, the built-in sinks, and the contract suite that every sink passes.

A *connector* is the integration package around a system. The *sink* is the class in it. To write a sink in about thirty
lines, subclass ``RowSink``, register the class in the entry-point group ``cdf_replicator.sinks``, and run
``connectors.testing.SinkContract`` on it. docs/writing-a-sink.md has an example that a test runs.

Another distribution with a top-level package named ``connectors`` can't be installed beside this package.
"""

from connectors.change import Batch, Change, Claim, RouteSpec, Watermark, guard_of
from connectors.errors import PermanentError, RetryableError, SinkError
from connectors.registry import SinkNotFoundError, installed, load
from connectors.result import EntryCount, FrameResult, Rejected, WriteResult
from connectors.sink import ArrowSettings, ArrowSink, FrameSink, RouteOptions, RowSink, Sink, SinkSettings

__all__ = [
    "ArrowSettings",
    "ArrowSink",
    "Batch",
    "Change",
    "Claim",
    "EntryCount",
    "FrameResult",
    "FrameSink",
    "PermanentError",
    "Rejected",
    "RetryableError",
    "RouteOptions",
    "RouteSpec",
    "RowSink",
    "Sink",
    "SinkError",
    "SinkNotFoundError",
    "SinkSettings",
    "Watermark",
    "WriteResult",
    "guard_of",
    "installed",
    "load",
]
