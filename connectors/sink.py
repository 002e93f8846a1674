"""Define the contract between the service and a sink.

    Sink                 settings, check, claim, prepare, target, count_entries, delete_orphans, run_maintenance, close
    ├── FrameSink        write(frame, batch): for sinks that speak DataFrame; runs on the driver
    └── ArrowSink        render(...) builds the bytes in the JVM; open, write(chunk) run in Spark's Python workers
        └── RowSink      write_rows(changes): the thirty-line sink

Promise to a sink: at least once. Promise from a sink: writing twice leaves one truth, and a lower guard never
overwrites a higher one. ``connectors.testing.SinkContract`` tests both promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from connectors.change import CHANGE_TYPE, GUARD, KEY, Change
from connectors.result import EntryCount

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, Claim, RouteSpec, Watermark
    from connectors.result import FrameResult, WriteResult

Mode = Literal["append", "upsert"]


class SinkSettings(BaseModel):
    """Base of every sink's ``Settings``: frozen, and an unknown option is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: str


class RouteOptions(BaseModel):
    """Options of a route for its sink (``CDF_ROUTES__<ROUTE>__<OPTION>``). A sink without a subclass has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ArrowSettings(SinkSettings):
    """Bounds of one ``write``; the first bound that is reached counts. Back-pressure lowers them for a while."""

    chunk_rows: int = Field(5000, ge=1, le=10_000, description="most changes in one request")
    chunk_bytes: int = Field(8_000_000, ge=1_000, description="most bytes in one request, about")
    rows_per_second: int | None = Field(
        None, ge=1, description="most changes a second to this server, of all routes of one machine (default: no limit)"
    )


class Sink(ABC):
    """A destination that accepts changes. Subclass ``FrameSink``, ``ArrowSink`` or ``RowSink`` instead of this class.

    The constructor takes settings only and does no I/O, so that a sink can be pickled. An *append* sink (``mode``)
    receives every change. An *upsert* sink receives the last change per key of the micro-batch.
    """

    Settings: ClassVar[type[SinkSettings]]
    Options: ClassVar[type[RouteOptions]] = RouteOptions
    mode: ClassVar[Mode]

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    @property
    def endpoint(self) -> str:
        """Return the address of the sink for logs and pages, without credentials; empty if there is none."""
        return ""

    @abstractmethod
    def target(self, route: RouteSpec) -> str:
        """Return the route's target as text, without credentials: ``index orders``, ``/lake/audit/orders``.

        The target is part of the route's identity. Two routes never share a target. If ``targets_are_prefixes`` is
        true, a target may not be a prefix of another target either.
        """

    targets_are_prefixes: ClassVar[bool] = False

    def places(self, route: RouteSpec) -> frozenset[str]:  # noqa: ARG002
        """Return every address of the route's target, each in one spelling (``connectors.place``), without credentials.

        Two routes with a common address share a target, whatever the other settings of their sinks. If the set is empty,
        the service compares ``target`` instead, between sinks of equal settings.
        """
        return frozenset()

    rejection_codes: ClassVar[tuple[str, ...]] = ()
    """Every code of ``Rejected`` that the sink returns. The metric of each code starts at 0."""

    preimages: ClassVar[bool] = False
    """True if an append sink receives ``update_preimage`` rows regardless of INCLUDE_PREIMAGES."""

    @property
    def reads_deleted_rows(self) -> bool:
        """Return whether an upsert sink reads the row of a delete. If not, the service sends null to save the transfer."""
        return True

    @abstractmethod
    def check(self) -> None:
        """Check that the sink is reachable and allows access, without a change; raises ``RetryableError`` or ``PermanentError``."""

    @abstractmethod
    def claim(self, route: RouteSpec) -> Claim | None:
        """Return the claim that ``prepare`` recorded in the target; None if the target is absent or unclaimed."""

    fences: ClassVar[bool] = False
    """True if the target refuses writes with a lower ``fence`` than the last ``prepare`` recorded."""

    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        """Replace the target's watermark if the present one reaches ``route.watermark``; ``claim`` returns the new one later.

        The watermark reveals a target that was restored from a copy. The driver calls this after each micro-batch. It also
        calls it before each change of a route's phase, with the watermark that the target already has. A sink may defer
        every watermark except the first of an epoch. A sink whose target has no place for a watermark does nothing.
        Raises ``RetryableError`` (reason ``lost``) if the target is older than ``route.watermark`` or was replaced.
        """

    def kept(self) -> bool:
        """Return False if the server restarted and may have lost acknowledged writes. The driver calls this after each batch.

        After a restart, a fail-over or a restore of the server, the route restarts from the watermark in the target.
        """
        return True

    @abstractmethod
    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the target, or check that it accepts ``schema`` (of ``row``), then record the route's claim.

        Idempotent. The driver calls this before the first write of a run and after a schema change. Returns warnings for
        the operator. Raises ``PermanentError`` if the target can't take the route.
        """

    def count_entries(self, route: RouteSpec, below_guard: int) -> EntryCount:  # noqa: ARG002
        """Count the target's entries, and those with no guard or a guard lower than ``below_guard``. Changes nothing.

        The driver calls this before a sweep and refuses a sweep that would remove too much. Append sinks hold no entries.
        """
        return EntryCount()

    def delete_orphans(self, route: RouteSpec, below_guard: int) -> int:  # noqa: ARG002
        """Delete the entries with no guard or a guard lower than ``below_guard``; returns their number.

        This ends a resync: an entry that the new epoch did not write is an orphan. Append sinks have no orphans.
        """
        return 0

    def next_maintenance_at(self, route: RouteSpec) -> float | None:  # noqa: ARG002
        """Return the time of the next ``run_maintenance`` in epoch seconds; None if the target needs none."""
        return None

    def run_maintenance(self, route: RouteSpec) -> str:  # noqa: ARG002
        """Maintain the target while changes arrive; returns a sentence that says what was done.

        The driver may cancel this at any point. An exception becomes a warning and halts no route.
        """
        return ""

    def close(self) -> None:
        """Release connections. The service may call this twice, and on a sink that was never opened."""


class FrameSink(Sink):
    """A sink that speaks DataFrame."""

    tells_received: ClassVar[bool] = False
    """True if an append sink applies every row it receives and returns their ``versions``, so that the service counts no rows."""

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
        """Return aliased columns over the change frame that build the bytes the sink sends. ``schema`` is the type of ``row``."""

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

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:  # noqa: ARG002
        from connectors.rendering import json_row

        return [json_row(schema).alias("json")]

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        columns = (chunk.column(name).to_pylist() for name in (KEY, GUARD, CHANGE_TYPE, "json"))
        return self.write_rows([Change(k, g, t, orjson.loads(j)) for k, g, t, j in zip(*columns, strict=True)])

    @abstractmethod
    def write_rows(self, changes: Sequence[Change]) -> WriteResult:
        """Write the changes; return after the sink acknowledged them."""
