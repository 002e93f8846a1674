"""What a sink is, the sinks we ship, and the suite every sink passes.

A *connector* is the integration around a system; the *sink* is the class you write. Thirty lines are enough: derive
from ``RowSink``, name the class in the entry-point group ``cdf_replicator.sinks``, and hold it to
``connectors.testing.SinkContract``. The README shows one, and a test runs it.

Not for co-installation with another distribution that has a top-level package named ``connectors``.
"""

from connectors.change import Batch, Change, Claim, RouteSpec, Watermark, guard_of
from connectors.errors import PermanentError, RetryableError, SinkError
from connectors.registry import SinkNotFoundError, installed, load
from connectors.result import FrameResult, Held, Rejected, WriteResult
from connectors.sink import ArrowSettings, ArrowSink, FrameSink, RouteOptions, RowSink, Sink, SinkSettings

__all__ = [
    "ArrowSettings",
    "ArrowSink",
    "Batch",
    "Change",
    "Claim",
    "FrameResult",
    "FrameSink",
    "Held",
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
