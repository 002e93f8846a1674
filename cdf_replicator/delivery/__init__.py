"""Writes one change frame to one sink: the driver's side.

For an ``ArrowSink``: rendering in the JVM, chunks in the workers, one action. For a ``FrameSink``: its own action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import worker
from cdf_replicator.delivery.outcome import DeliveryBugError, Letter, Outcome
from cdf_replicator.delivery.policy import RetryPolicy
from connectors import ArrowSink, FrameSink, change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from connectors import Batch, Sink

__all__ = ["DeliveryBugError", "Letter", "Outcome", "RetryPolicy", "deliver"]


def deliver(frame: DataFrame, sink: Sink, batch: Batch, policy: RetryPolicy) -> Outcome:
    """Write the frame; a failure is in ``Outcome.failure``, so that its counts are not lost."""
    if isinstance(sink, FrameSink):
        return _deliver_frame(frame, sink, batch, policy)
    assert isinstance(sink, ArrowSink)
    row: Any = frame.schema[change.ROW].dataType
    rendered = frame.select(change.KEY, change.GUARD, change.CHANGE_TYPE, *sink.render(row, batch.route))
    unopened = type(sink)(sink.settings)  # the driver's own may hold a connection, and those don't pickle
    tasks = rendered.mapInArrow(worker.task(unopened, batch.route, policy), "outcome string").toArrow()
    total = Outcome()
    for text in tasks.column("outcome").to_pylist():
        total.add(Outcome.from_json(text))
    return total


def _deliver_frame(frame: DataFrame, sink: FrameSink, batch: Batch, policy: RetryPolicy) -> Outcome:
    outcome, without_key, seen = Outcome(), F.col(change.KEY).isNull(), Observation()
    keyed = frame
    if sink.mode == "upsert":
        keyed = frame.observe(seen, F.count_if(without_key).alias("without_key")).where(~without_key)
    retrying = policy.retrying(lambda error: outcome.retries.update({error.reason: 1}))
    result = retrying(sink.write, keyed, batch)
    outcome.applied.update(result.applied)
    outcome.stale, outcome.noop, outcome.skipped = result.stale, result.noop, result.skipped
    # Of a batch the sink holds already, the letters may not have been kept: a kill can come between.
    if sink.mode == "upsert" and (result.skipped or seen.get["without_key"]):
        outcome.reject_null_keys(row[0] for row in frame.where(without_key).select(change.GUARD).toLocalIterator())
        if result.skipped and outcome.rejected:
            outcome.held = keyed.count()
    return outcome
