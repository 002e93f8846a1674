"""Write a change frame to a sink, from the driver.

For an ``ArrowSink``, a single Spark action renders the rows in the JVM and writes chunks in the workers. A
``FrameSink`` runs its own action.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import worker
from cdf_replicator.delivery.result import DeliveryResult, Failure, duplicate_key, null_key
from connectors import ArrowSink, FrameSink, RetryableError, change

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from cdf_replicator.delivery.retry import RetryPolicy
    from connectors import Batch, RouteSpec, Sink


_numbers = count()


@dataclass(slots=True)
class SinkRun:
    """A number, and the columns that the sink renders: all deliveries to one open sink of the driver share them.

    A worker keeps its connection while the number is the same. Building the columns takes a hundred requests to the JVM, a tenth of
    the time of a small micro-batch.
    """

    number: int = field(default_factory=lambda: next(_numbers), init=False)
    _built: tuple[StructType, RouteSpec, list[Column]] | None = field(default=None, init=False)

    def columns(self, sink: ArrowSink, row: StructType, route: RouteSpec) -> list[Column]:
        """Return the rendered columns. They may depend on all of the route but its watermark, which every micro-batch moves."""
        route = replace(route, watermark=None)
        if self._built is None or self._built[:2] != (row, route):
            self._built = row, route, sink.render(row, route)
        return self._built[2]


def deliver(
    frame: DataFrame,
    sink: Sink,
    batch: Batch,
    policy: RetryPolicy,
    run: SinkRun,
    known: Collection[str] = (),
    snapshot_guard: int | None = None,
) -> DeliveryResult:
    """Write the frame. ``DeliveryResult.failure`` is a failure of an ``ArrowSink``, or a retryable one of a ``FrameSink``.

    The counts are not lost then.

    ``run`` belongs to ``sink``. ``known`` holds keys to watch for. ``DeliveryResult.met`` returns those that the frame has and
    the sink did not reject. ``snapshot_guard`` is the guard of every row of a bootstrap: Spark measures each column of each row
    that it sends to a worker, so that it does not send what all rows share.
    """
    if isinstance(sink, FrameSink):
        return _deliver_frame(frame, sink, batch, policy, known)
    assert isinstance(sink, ArrowSink)
    row: Any = frame.schema[change.ROW].dataType
    varying = [change.KEY]
    if snapshot_guard is None:
        varying += [change.GUARD, change.CHANGE_TYPE, change.DUPLICATE_GUARD]
    columns = [name for name in varying if name in frame.columns]
    rendered = frame.select(*columns, *run.columns(sink, row, batch.route))
    unopened = type(sink)(sink.settings)  # the driver's sink may hold a connection, which can't be pickled
    tasks = rendered.mapInArrow(
        worker.partition_function(unopened, batch.route, policy, run.number, known, snapshot_guard), "outcome string"
    ).toArrow()
    total = DeliveryResult()
    for text in tasks.column("outcome").to_pylist():
        total.add(DeliveryResult.from_json(text))
    return total


def _deliver_frame(
    frame: DataFrame, sink: FrameSink, batch: Batch, policy: RetryPolicy, known: Collection[str]
) -> DeliveryResult:
    key, doubled = F.col(change.KEY), F.col(change.DUPLICATE_GUARD)
    outcome, refused, seen = DeliveryResult(), key.isNull() | doubled.isNotNull(), Observation()
    counted = refused | key.isin(*known) if known else refused
    # The rows of a snapshot are cheap to count, and its sink may read them by a query that Spark can't observe.
    observed = sink.mode == "upsert" and not batch.is_bootstrap
    given = frame.observe(seen, F.count_if(counted).alias("rows")) if observed else frame
    if sink.mode == "upsert":  # removes the rows that ``worker`` rejects for an ArrowSink
        given = given.where(key.isNotNull()).drop(change.DUPLICATE_GUARD)
    retrying = policy.retrying(lambda error: outcome.retries.update({error.reason: 1}), waits_only=True)
    try:
        result = retrying(sink.write, given, batch)
    except RetryableError as error:
        outcome.failure = Failure("retryable", error.reason, error.detail, error.retry_after)
        return outcome
    outcome.applied.update(result.applied)
    outcome.stale, outcome.noop, outcome.skipped = result.stale, result.noop, result.skipped
    outcome.versions, outcome.commit_times = result.versions, result.commit_times
    # If the sink already holds the batch, a kill may have prevented the record of its dead letters.
    if sink.mode == "upsert" and (
        result.skipped or (seen.get["rows"] if observed else frame.count() != outcome.changes)
    ):
        rows = frame.where(counted).select(key, change.GUARD, doubled)
        for name, guard, several in rows.toLocalIterator():
            if name is None:
                outcome.reject(null_key(guard))
            elif several is not None:
                outcome.reject(duplicate_key(name, several))
            else:
                outcome.met[name] = guard
        if result.skipped and outcome.rejected:
            outcome.already_written = given.count()
    return outcome
