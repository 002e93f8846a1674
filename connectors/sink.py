"""What a sink must do: the contract.

    Sink                 settings, check, claim, prepare, target, count, sweep, upkeep, close
    ├── FrameSink        write(frame, batch): for sinks that speak DataFrame; runs on the driver
    └── ArrowSink        render(...) builds the bytes in the JVM; open, write(chunk) run in Spark's Python workers
        └── RowSink      write_rows(changes): the thirty-line sink

Promise to a sink: at least once. Promise from a sink: writing twice leaves one truth, and a lower guard never
overwrites a higher one. ``connectors.testing.SinkContract`` holds a sink to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from connectors.change import CHANGE_TYPE, GUARD, KEY, Change
from connectors.result import Held

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch, Claim, RouteSpec, Watermark
    from connectors.result import FrameResult, WriteResult

Mode = Literal["append", "upsert"]


class SinkSettings(BaseModel):
    """What every sink's ``Settings`` derives from: frozen, and a misspelt option is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: str


class RouteOptions(BaseModel):
    """What a route may say to its sink (``CDF_ROUTES__<ROUTE>__<OPTION>``); none unless a sink declares some."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ArrowSettings(SinkSettings):
    """Bounds of one ``write``, whichever is reached first; a sink short of something is sent less for a while."""

    chunk_rows: int = Field(5000, ge=1, le=10_000, description="most changes in one request")
    chunk_bytes: int = Field(8_000_000, ge=1_000, description="most bytes in one request, about")
    rows_per_second: int | None = Field(
        None, ge=1, description="most changes a second to this server, of all routes of one machine (default: no limit)"
    )


class Sink(ABC):
    """A destination that accepts changes. Derive from ``FrameSink``, ``ArrowSink`` or ``RowSink``, not from this.

    The constructor takes settings only and does no I/O, so a sink pickles. ``mode``: an *append* sink gets every
    change, an *upsert* sink the last change per key of the micro-batch.
    """

    Settings: ClassVar[type[SinkSettings]]
    Options: ClassVar[type[RouteOptions]] = RouteOptions
    mode: ClassVar[Mode]

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    @property
    def endpoint(self) -> str:
        """Where the sink is, for people, without credentials; empty where there is nothing to say."""
        return ""

    @abstractmethod
    def target(self, route: RouteSpec) -> str:
        """Where this route's changes end up, as text, without credentials: ``index orders``, ``/lake/audit/orders``.

        Part of the route's identity. Two routes of one sink may not share it, nor may one begin with the other
        where ``targets_are_prefixes``.
        """

    targets_are_prefixes: ClassVar[bool] = False

    def places(self, route: RouteSpec) -> frozenset[str]:  # noqa: ARG002
        """Return every address of the route's target, each in one spelling (``connectors.place``), without credentials.

        Two routes with an address in common share a target, whatever else their sinks are configured with. Where the set is
        empty, ``target`` is compared instead, between sinks of equal settings.
        """
        return frozenset()

    rejection_codes: ClassVar[tuple[str, ...]] = ()
    """Codes of ``Rejected`` that it gives, so that each is counted from 0 before the first row is refused."""

    preimages: ClassVar[bool] = False
    """An append sink that needs the image before an update, whether or not INCLUDE_PREIMAGES asks for it."""

    @property
    def reads_deleted_rows(self) -> bool:
        """Of an upsert sink: whether it looks at the row of a change that deletes. If not, that row may be null: it is not moved."""
        return True

    @abstractmethod
    def check(self) -> None:
        """Reachable and allowed, without changing anything; raises ``RetryableError`` or ``PermanentError``."""

    @abstractmethod
    def claim(self, route: RouteSpec) -> Claim | None:
        """Who fills the route's target, as ``prepare`` recorded it there; None if the target is absent or unclaimed."""

    fences: ClassVar[bool] = False
    """Refuses writes of a route whose ``fence`` is lower than the one ``prepare`` was last given."""

    def mark(self, route: RouteSpec, watermark: Watermark) -> None:
        """Replace the target's watermark, which has to reach ``route.mark``, by another one; ``claim`` returns it.

        So that a target which was brought back from a copy is noticed. Called on the driver after each micro-batch and before
        each change of a route's phase, then with the watermark that the target should have already. May put off all but the
        first of an epoch; does nothing where the target has no room for it. Raises ``RetryableError`` (reason ``lost``) where
        the target is an older one, or another one than ``claim`` saw.
        """

    def kept(self) -> bool:
        """Return whether all that was acknowledged since ``claim`` is surely still there. On the driver, after each batch.

        False: the server was restarted, failed over or restored, so that the route starts again from what it holds.
        """
        return True

    @abstractmethod
    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        """Create the target or see that it takes ``schema`` (of ``row``), then record the route's claim. On the driver.

        Idempotent. Called before the first write of a run and when the schema has changed. Returns warnings for the
        operator. Raises ``PermanentError`` if the target can't take the route.
        """

    def count(self, route: RouteSpec, below_guard: int) -> Held:  # noqa: ARG002
        """Count the target's entries, those under a guard lower than ``below_guard`` or under none, and change nothing.

        Asked before a sweep, which is refused where it would remove too much. Append sinks hold no entries.
        """
        return Held()

    def sweep(self, route: RouteSpec, below_guard: int) -> int:  # noqa: ARG002
        """Remove what the target holds under a guard lower than ``below_guard``, or under none; returns how many entries.

        Ends a resync: what the new epoch has not written is an orphan, whoever wrote it. Append sinks have none.
        """
        return 0

    def next_upkeep(self, route: RouteSpec) -> float | None:  # noqa: ARG002
        """When the target next wants ``upkeep``, in epoch seconds, after a restart too; None: never."""
        return None

    def upkeep(self, route: RouteSpec) -> str:  # noqa: ARG002
        """Look after the target while changes go on arriving; returns what was done, in words.

        May be cancelled at any point. Whatever it raises is a warning and stops no route.
        """
        return ""

    def close(self) -> None:
        """Release connections; may be called twice, and on a sink never opened."""


class FrameSink(Sink):
    """A sink that speaks DataFrame."""

    tells_received: ClassVar[bool] = False
    """Of an append sink: what it applies is all it was given, and results tell the ``versions``, so that nobody else counts."""

    @abstractmethod
    def write(self, frame: DataFrame, batch: Batch) -> FrameResult:
        """Write the change frame; a no-op for a batch identity the target already holds. The frame may have no rows.

        The first thing done with it must be an action of a DataFrame in the frame's own session, not of an RDD: the service
        counts on the way, a bootstrap excepted. What is returned must be exact: what is not told of was refused.
        """


class ArrowSink(Sink):
    """A sink whose request bytes Spark renders in the JVM, and whose Python only moves Arrow buffers."""

    settings: ArrowSettings

    @abstractmethod
    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        """Columns over the change frame, each aliased, that build the bytes this sink sends. ``schema``: of ``row``."""

    @abstractmethod
    def open(self, route: RouteSpec) -> None:
        """Connect. Idempotent; called in each worker process before the first ``write`` of a task."""

    @abstractmethod
    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        """Write now; return only when the sink has taken it.

        The chunk's columns: ``key``, ``guard``, ``change_type``, then what ``render`` named. Its keys are distinct
        in upsert mode.
        """


class RowSink(ArrowSink):
    """A sink that is content with Python objects: simple, not fast."""

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:  # noqa: ARG002
        from connectors.render import json_row

        return [json_row(schema).alias("json")]

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        columns = (chunk.column(name).to_pylist() for name in (KEY, GUARD, CHANGE_TYPE, "json"))
        return self.write_rows([Change(k, g, t, orjson.loads(j)) for k, g, t, j in zip(*columns, strict=True)])

    @abstractmethod
    def write_rows(self, changes: Sequence[Change]) -> WriteResult:
        """Write now; return only when the sink has taken them."""
