"""Writes one change frame to one sink: the driver's side.

For an ``ArrowSink``: rendering in the JVM, chunks in the workers, one action. For a ``FrameSink``: its own action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import worker
from cdf_replicator.delivery.result import SEVERAL_ROWS, DeliveryBugError, Letter, Outcome, duplicate_key, null_key
from cdf_replicator.delivery.retry import RetryPolicy
from connectors import ArrowSink, FrameSink, change

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

    from connectors import Batch, Sink

__all__ = ["SEVERAL_ROWS", "DeliveryBugError", "Letter", "Outcome", "RetryPolicy", "deliver", "duplicate_key"]


def deliver(frame: DataFrame, sink: Sink, batch: Batch, policy: RetryPolicy, known: Collection[str] = ()) -> Outcome:
    """Write the frame; a failure is in ``Outcome.failure``, so that its counts are not lost.

    ``known``: keys to look out for, which costs next to nothing: ``Outcome.met`` has those that came, and were not refused.
    """
    if isinstance(sink, FrameSink):
        return _deliver_frame(frame, sink, batch, policy, known)
    assert isinstance(sink, ArrowSink)
    row: Any = frame.schema[change.ROW].dataType
    told = [name for name in (change.KEY, change.GUARD, change.CHANGE_TYPE, change.DOUBLED) if name in frame.columns]
    rendered = frame.select(*told, *sink.render(row, batch.route))
    unopened = type(sink)(sink.settings)  # the driver's own may hold a connection, and those don't pickle
    tasks = rendered.mapInArrow(worker.task(unopened, batch.route, policy, known), "outcome string").toArrow()
    total = Outcome()
    for text in tasks.column("outcome").to_pylist():
        total.add(Outcome.from_json(text))
    return total


def _deliver_frame(
    frame: DataFrame, sink: FrameSink, batch: Batch, policy: RetryPolicy, known: Collection[str]
) -> Outcome:
    key, doubled = F.col(change.KEY), F.col(change.DOUBLED)
    outcome, refused, seen = Outcome(), key.isNull() | doubled.isNotNull(), Observation()
    told = refused | key.isin(*known) if known else refused
    # A snapshot's rows are soon counted, and its sink may read them by a query that can't be observed.
    observed = sink.mode == "upsert" and not batch.is_bootstrap
    given = frame.observe(seen, F.count_if(told).alias("told")) if observed else frame
    if sink.mode == "upsert":  # what it can't be given is refused here, as ``worker`` does for the others
        given = given.where(key.isNotNull()).drop(change.DOUBLED)
    retrying = policy.retrying(lambda error: outcome.retries.update({error.reason: 1}))
    result = retrying(sink.write, given, batch)
    outcome.applied.update(result.applied)
    outcome.stale, outcome.noop, outcome.skipped = result.stale, result.noop, result.skipped
    outcome.versions = result.versions
    # Of a batch the sink holds already, the letters may not have been kept: a kill can come between.
    if sink.mode == "upsert" and (
        result.skipped or (seen.get["told"] if observed else frame.count() != outcome.changes)
    ):
        rows = frame.where(told).select(key, change.GUARD, doubled)
        for name, guard, several in rows.toLocalIterator():
            if name is None:
                outcome.refuse(null_key(guard))
            elif several is not None:
                outcome.refuse(duplicate_key(name, several))
            else:
                outcome.met[name] = guard
        if result.skipped and outcome.rejected:
            outcome.held = given.count()
    return outcome
