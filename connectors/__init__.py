"""Define the sink contract, the built-in sinks, and the contract suite that every sink passes.

A *connector* is the integration package around a system. The *sink* is the class in it. To write a sink in about forty
lines, subclass ``RowSink``, register the class in the entry-point group ``cdf_replicator.sinks``, and run
``connectors.testing.SinkContract`` on it. docs/writing-a-sink.md has an example that a test runs.

Another distribution with a top-level package named ``connectors`` can't be installed beside this package.
"""

from connectors.change import Batch, Change, Claim, RouteSpec, Watermark, guard_of
from connectors.errors import PermanentError, RetryableError, SinkError
from connectors.protocols import (
    Addressed,
    Aggregated,
    Auditable,
    Capabilities,
    Maintained,
    Repairable,
    Resyncable,
    Verifiable,
    Watermarked,
)
from connectors.registry import SinkNotFoundError, installed, load
from connectors.result import EntryCount, FrameResult, Rejected, WriteResult
from connectors.settings import ArrowSettings, RouteOptions, SinkSettings
from connectors.sink import ArrowSink, FrameSink, RowSink, Sink
from connectors.view import ScannedView, View

__all__ = [
    "Addressed",
    "Aggregated",
    "ArrowSettings",
    "ArrowSink",
    "Auditable",
    "Batch",
    "Capabilities",
    "Change",
    "Claim",
    "EntryCount",
    "FrameResult",
    "FrameSink",
    "Maintained",
    "PermanentError",
    "Rejected",
    "Repairable",
    "Resyncable",
    "RetryableError",
    "RouteOptions",
    "RouteSpec",
    "RowSink",
    "ScannedView",
    "Sink",
    "SinkError",
    "SinkNotFoundError",
    "SinkSettings",
    "Verifiable",
    "View",
    "Watermark",
    "Watermarked",
    "WriteResult",
    "guard_of",
    "installed",
    "load",
]
