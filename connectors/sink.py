"""Define the contract between the service and a sink: what every sink has.

    Sink                 target, check, prepare, read_claim, close
    ├── FrameSink        write(frame, batch): for sinks that speak DataFrame; runs on the driver
    └── ArrowSink        render(...) builds the bytes in the JVM; open, write(chunk) run in Spark's Python workers
        └── RowSink      write_rows(changes): the forty-line sink

``connectors.protocols`` has what a sink declares, and what it may support beyond this.

Promise to a sink: at least once. Promise from a sink: writing twice leaves one truth, and a lower guard never
overwrites a higher one. ``connectors.testing.SinkContract`` tests both promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import orjson

from connectors.change import CHANGE_TYPE, GUARD, KEY, Change
from connectors.protocols import Capabilities
from connectors.settings import RouteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, Claim, RouteSpec
    from connectors.result import FrameResult, WriteResult
    from connectors.settings import ArrowSettings, SinkSettings

Mode = Literal["append", "upsert"]


class Sink(ABC):
    """A destination that accepts changes. Subclass ``FrameSink``, ``ArrowSink`` or ``RowSink`` instead of this class.

    The constructor takes settings only and does no I/O, so that a sink can be pickled. An *append* sink (``mode``)
    receives every change. An *upsert* sink receives the last change per key of the micro-batch.
    """

    Settings: ClassVar[type[SinkSettings]]
    Options: ClassVar[type[RouteOptions]] = RouteOptions
    mode: ClassVar[Mode]
    capabilities: Capabilities = Capabilities()
    """A class sets the value. The constructor may replace ``deleted_rows`` if that depends on the settings."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    @abstractmethod
    def target(self, route: RouteSpec) -> str:
        """Return the route's target as text, without credentials: ``index orders``, ``/lake/audit/orders``.

        The target is part of the route's identity. Two routes never share a target.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that the sink is reachable and allows access, without a change; raises ``RetryableError`` or ``PermanentError``."""

    @abstractmethod
    def read_claim(self, route: RouteSpec) -> Claim | None:
        """Return the claim that ``prepare`` recorded in the target; None if the target is absent or unclaimed."""

    @abstractmethod
    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the target, or check that it accepts ``schema`` (of ``row``), then record the route's claim.

        Idempotent. The driver calls this before the first write of a run and after a schema change. Returns warnings for
        the operator. Raises ``PermanentError`` if the target can't take the route.
        """

    def close(self) -> None:
        """Release connections. The service may call this twice, and on a sink that was never opened."""


class FrameSink(Sink):
    """A sink that speaks DataFrame."""

    @abstractmethod
    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Write the change frame; does nothing if the target already holds the batch's identity. The frame may be empty.

        The sink's first action must be a DataFrame action in the frame's own session and not an RDD action: except for a
        bootstrap, the service counts rows during that action. The result must be exact: the service treats a row that the
        result does not count as rejected.
        """


class ArrowSink(Sink):
    """A sink whose request bytes Spark renders in the JVM. Its Python code only moves Arrow buffers."""

    settings: ArrowSettings

    @abstractmethod
    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        """Return aliased columns over the change frame that build the bytes the sink sends. ``schema`` is the type of ``row``.

        The service keeps the columns from one micro-batch to the next. ``route`` has no watermark here.
        """

    @abstractmethod
    def open(self, route: RouteSpec) -> None:
        """Connect to the sink. Idempotent; each worker process calls this before the first ``write`` of a task."""

    @abstractmethod
    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        """Write the chunk; return after the sink acknowledged it.

        The chunk has the columns ``key``, ``guard``, ``change_type`` and those of ``render``. In upsert mode its keys are
        distinct.
        """


class RowSink(ArrowSink):
    """A sink that receives Python objects: simple to write, and slower than an ``ArrowSink``."""

    route: RouteSpec

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:  # noqa: ARG002
        from connectors.rendering import json_row

        return [json_row(schema).alias("json")]

    def open(self, route: RouteSpec) -> None:
        """Remember the route for ``write_rows``. A sink with a connection overrides this."""
        self.route = route

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        columns = (chunk.column(name).to_pylist() for name in (KEY, GUARD, CHANGE_TYPE, "json"))
        return self.write_rows([Change(k, g, t, orjson.loads(j)) for k, g, t, j in zip(*columns, strict=True)])

    @abstractmethod
    def write_rows(self, changes: Sequence[Change]) -> WriteResult:
        """Write the changes; return after the sink acknowledged them."""
