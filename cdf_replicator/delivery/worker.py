"""Cut a task's Arrow batches into chunks and write them with the retry policy.

This code runs in Spark's Python workers. It writes no metrics and no logs: each task returns an ``DeliveryResult``.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cdf_replicator.delivery.back_pressure import BackPressure, rate_limit_delay
from cdf_replicator.delivery.result import DeliveryResult, Failure, RejectedRow, duplicate_key, null_key
from connectors import PermanentError, RetryableError
from connectors.change import CHANGE_TYPE, DUPLICATE_GUARD, GUARD, KEY, SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tenacity import BaseRetrying

    from cdf_replicator.delivery.retry import RetryPolicy, Sleep
    from connectors import ArrowSink, RouteSpec, WriteResult

_open_sinks: dict[tuple[type[ArrowSink], str], OpenSink] = {}
"""The open sinks of this worker process, one per type of sink and route.

Worker processes outlive tasks, and a connection costs more than a small batch.
"""


@dataclass(frozen=True, slots=True)
class OpenSink:
    """A sink that writes for one run of a route. ``route`` has no watermark here, since that changes with each batch."""

    run_number: int
    route: RouteSpec
    sink: ArrowSink
    pressure: BackPressure


def partition_function(
    sink: ArrowSink,
    route: RouteSpec,
    policy: RetryPolicy,
    run_number: int,
    known: Collection[str] = (),
    snapshot_guard: int | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    """Return the function that ``mapInArrow`` runs: it yields one row, the task's ``DeliveryResult`` as JSON.

    ``run_number`` differs for each sink that the driver opens. ``known`` holds the keys to watch for. ``snapshot_guard`` is the
    guard of every row of a bootstrap, whose batches lack the guard and the type of the change.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if snapshot_guard is not None:
            batches = (_of_snapshot(batch, snapshot_guard) for batch in batches)
        opened = _opened(sink, route, run_number)
        outcome = write_partition(opened.sink, opened.pressure, route, policy, batches, known=known)
        _freeze_modules()
        yield pa.RecordBatch.from_pydict({"outcome": [outcome.to_json().decode()]})

    return run


@cache
def _freeze_modules() -> None:
    """Exclude the objects of all modules from collections, once a process: PySpark collects garbage after each task, in 22 ms."""
    gc.freeze()


def write_partition(
    sink: ArrowSink,
    pressure: BackPressure,
    route: RouteSpec,
    policy: RetryPolicy,
    batches: Iterator[pa.RecordBatch],
    sleep: Sleep = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    known: Collection[str] = (),
) -> DeliveryResult:
    """Write every chunk; stops at the first failure and returns it in the outcome."""
    outcome = DeliveryResult()
    looked_for = pa.array(known, pa.string())
    writing = ChunkWriter(sink, pressure, policy, outcome, sleep, clock)
    try:
        opened = False
        for batch in batches:
            keyed = _reject_invalid_keys(batch, outcome) if sink.mode == "upsert" else batch
            if keyed.num_rows == 0:
                continue
            if not opened:
                writing.retrying()(sink.open, route)
                opened = True
            _meet(keyed, looked_for, outcome)
            writing.write(keyed)
        refused = {letter.key for letter in outcome.letters}
        outcome.met = {key: guard for key, guard in outcome.met.items() if key not in refused}
    except RetryableError as error:
        outcome.failure = Failure("retryable", error.reason, error.detail, error.retry_after)
    except PermanentError as error:
        outcome.failure = Failure("permanent", error.reason, error.hint)
    except Exception as error:  # noqa: BLE001 - the driver must learn of a sink's bug
        outcome.failure = Failure("bug", f"{type(error).__name__}: {error}", traceback.format_exc())
    return outcome


def _of_snapshot(batch: pa.RecordBatch, guard: int) -> pa.RecordBatch:
    """Return the rows of a snapshot with the columns in which they are the same."""
    same = {GUARD: pa.scalar(guard, pa.int64()), CHANGE_TYPE: pa.scalar(SNAPSHOT)}
    (key, *rendered), (_, *names) = batch.columns, batch.schema.names
    repeated = [pa.repeat(value, batch.num_rows) for value in same.values()]
    return pa.RecordBatch.from_arrays([key, *repeated, *rendered], names=[KEY, *same, *names])


def _opened(sink: ArrowSink, route: RouteSpec, run_number: int) -> OpenSink:
    """Return the open sink of this run, at first ``sink``; closes that of a former run.

    A connection of a former run may still lead to a server that is no longer the master, while the driver of this run has
    connected to the new one: what the worker writes there is lost.
    """
    place, route = (type(sink), route.name), replace(route, watermark=None)
    former = _open_sinks.get(place)
    if former is not None and (former.run_number, former.route) == (run_number, route):
        return former
    pressure = BackPressure(sink.settings)
    if former is not None:
        del _open_sinks[place]
        with suppress(Exception):  # the server may have failed
            former.sink.close()
        if former.sink.settings == sink.settings:
            pressure = former.pressure
    _open_sinks[place] = OpenSink(run_number, route, sink, pressure)
    return _open_sinks[place]


@dataclass(frozen=True, slots=True)
class ChunkWriter:
    """The writes of a task to its sink."""

    sink: ArrowSink
    pressure: BackPressure
    policy: RetryPolicy
    outcome: DeliveryResult
    sleep: Sleep
    clock: Callable[[], float]

    def retrying(self) -> BaseRetrying:
        return self.policy.retrying(lambda error: self.outcome.retries.update({error.reason: 1}), self.sleep)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch in pieces of the present size, each with its own retry budget; copies only a repeated piece."""
        pending = deque([batch])
        while pending:
            if seconds := rate_limit_delay(self.sink, self.pressure.batch_rows(pending[0]), self.clock):
                self.sleep(seconds)
            for attempt in self.retrying():
                with attempt:
                    self._write_some(pending)

    def _write_some(self, pending: deque[pa.RecordBatch]) -> None:
        piece = pending.popleft()
        if (rows := self.pressure.batch_rows(piece)) < piece.num_rows:
            pending.appendleft(piece.slice(rows))
            piece = piece.slice(0, rows)
        try:
            result = self._sent(piece)
        except RetryableError as refusal:
            error = refusal
        else:
            if not result.retry:
                return
            piece = piece.take(pa.array(result.retry, pa.int64()))
            error = RetryableError(result.retry_reason, f"{len(result.retry)} changes", retry_after=result.retry_after)
        pending.appendleft(piece)
        self.pressure.on_refused(error)
        raise error

    def _sent(self, piece: pa.RecordBatch) -> WriteResult:
        with self.pressure.slot(self.sink):
            began = self.clock()
            try:
                result = self.sink.write(piece)
            finally:
                seconds = self.clock() - began
                self.outcome.request_seconds.append(seconds)
        _count(self.outcome, piece, result)
        if not result.retry:
            self.pressure.on_success(seconds)
        return result


def _count(outcome: DeliveryResult, chunk: pa.RecordBatch, result: WriteResult) -> None:
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
        outcome.reject(RejectedRow(key, guard, entry.code, entry.reason))


def _meet(batch: pa.RecordBatch, looked_for: pa.Array, outcome: DeliveryResult) -> None:
    """Record the watched keys of a batch; the caller removes the rejected keys after the last write."""
    if len(looked_for):
        found = batch.filter(pc.is_in(batch.column(KEY), value_set=looked_for))
        outcome.met.update(zip(found.column(KEY).to_pylist(), found.column(GUARD).to_pylist(), strict=True))


def _reject_invalid_keys(batch: pa.RecordBatch, outcome: DeliveryResult) -> pa.RecordBatch:
    """Return the rows of a batch that an upsert sink can store, and reject the others."""
    if DUPLICATE_GUARD in batch.schema.names:
        several = batch.filter(pc.is_valid(batch.column(DUPLICATE_GUARD)))
        for key, guard in zip(*(several.column(name).to_pylist() for name in (KEY, DUPLICATE_GUARD)), strict=True):
            outcome.reject(duplicate_key(key, guard))
        batch = batch.drop_columns([DUPLICATE_GUARD])
    if batch.column(KEY).null_count == 0:
        return batch
    null = pc.is_null(batch.column(KEY))
    for guard in batch.filter(null).column(GUARD).to_pylist():
        outcome.reject(null_key(guard))
    return batch.filter(pc.invert(null))
