"""The worker's side of delivery: a task's Arrow batches, cut into chunks, written with the retry policy.

Runs in Spark's Python workers. No metrics here, no logs: counts travel back as one ``Outcome`` a task.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cdf_replicator.delivery.outcome import Failure, Letter, Outcome, duplicate_key, null_key
from connectors import PermanentError, RetryableError
from connectors.change import CHANGE_TYPE, DOUBLED, GUARD, KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdf_replicator.delivery.policy import RetryPolicy, Sleep
    from connectors import ArrowSink, RouteSpec, WriteResult

_open_sinks: list[tuple[Any, ArrowSink]] = []
"""By identity, which is compared and not hashed: settings may hold a dict. One sink per worker process and configuration: workers outlive tasks, and connecting costs more than a small batch."""


def task(sink: ArrowSink, route: RouteSpec, policy: RetryPolicy) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    """Return the function that ``mapInArrow`` runs: it yields one row, the task's ``Outcome`` as JSON."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = write_all(_opened(sink, route), route, policy, batches)
        yield pa.RecordBatch.from_pydict({"outcome": [outcome.to_json().decode()]})

    return run


def write_all(
    sink: ArrowSink,
    route: RouteSpec,
    policy: RetryPolicy,
    batches: Iterator[pa.RecordBatch],
    sleep: Sleep = time.sleep,
) -> Outcome:
    """Write every chunk; stops at the first failure, which it returns instead of raising."""
    outcome = Outcome()
    try:
        opened = False
        for batch in batches:
            keyed = _admitted(batch, outcome) if sink.mode == "upsert" else batch
            for chunk in chunks(keyed, sink.settings.chunk_rows, sink.settings.chunk_bytes):
                if not opened:
                    policy.retrying(lambda error: _retried(outcome, error), sleep)(sink.open, route)
                    opened = True
                _write(sink, chunk, policy, outcome, sleep)
    except RetryableError as error:
        outcome.failure = Failure("retryable", error.reason, error.detail, error.retry_after)
    except PermanentError as error:
        outcome.failure = Failure("permanent", error.reason, error.hint)
    except Exception as error:  # noqa: BLE001 - a sink's bug must reach the driver as what it is
        outcome.failure = Failure("bug", f"{type(error).__name__}: {error}", traceback.format_exc())
    return outcome


def chunks(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut by rows and by average bytes, without copying."""
    if batch.num_rows == 0:
        return
    per_row = max(1, batch.nbytes // batch.num_rows)
    rows = max(1, min(most_rows, most_bytes // per_row))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _opened(sink: ArrowSink, route: RouteSpec) -> ArrowSink:
    identity = (type(sink), sink.settings, route.name, route.epoch)
    for known, opened in _open_sinks:
        if known == identity:
            return opened
    _open_sinks.append((identity, sink))
    return sink


def _write(sink: ArrowSink, chunk: pa.RecordBatch, policy: RetryPolicy, outcome: Outcome, sleep: Sleep) -> None:
    pending = chunk
    for attempt in policy.retrying(lambda error: _retried(outcome, error), sleep):
        with attempt:
            started = time.monotonic()
            try:
                result = sink.write(pending)
            finally:
                outcome.request_seconds.append(time.monotonic() - started)
            _count(outcome, pending, result)
            if result.retry:
                pending = pending.take(pa.array(result.retry, pa.int64()))
                raise RetryableError(
                    result.retry_reason, f"{len(result.retry)} changes", retry_after=result.retry_after
                )


def _count(outcome: Outcome, chunk: pa.RecordBatch, result: WriteResult) -> None:
    types = chunk.column(CHANGE_TYPE)
    applied = Counter({pair["values"]: pair["counts"] for pair in pc.value_counts(types).to_pylist()})
    rejected = [entry.position for entry in result.rejected]
    others = [*result.stale, *result.noop, *rejected, *result.retry]
    if others:
        applied.subtract(types.take(pa.array(others, pa.int64())).to_pylist())
    outcome.applied.update(applied)
    outcome.stale += len(result.stale)
    outcome.noop += len(result.noop)
    outcome.sent_bytes += result.sent_bytes
    for entry in result.rejected:
        key, guard = (chunk.column(name)[entry.position].as_py() for name in (KEY, GUARD))
        outcome.refuse(Letter(key, guard, entry.code, entry.reason))


def _admitted(batch: pa.RecordBatch, outcome: Outcome) -> pa.RecordBatch:
    """What an upsert sink is given of a batch; what it can't be is a dead letter, and the rest goes on."""
    if DOUBLED in batch.schema.names:
        several = batch.filter(pc.is_valid(batch.column(DOUBLED)))
        for key, guard in zip(*(several.column(name).to_pylist() for name in (KEY, DOUBLED)), strict=True):
            outcome.refuse(duplicate_key(key, guard))
        batch = batch.drop_columns([DOUBLED])
    if batch.column(KEY).null_count == 0:
        return batch
    null = pc.is_null(batch.column(KEY))
    for guard in batch.filter(null).column(GUARD).to_pylist():
        outcome.refuse(null_key(guard))
    return batch.filter(pc.invert(null))


def _retried(outcome: Outcome, error: RetryableError) -> None:
    outcome.retries[error.reason] += 1
