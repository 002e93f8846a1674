"""Deliver one micro-batch of one route and record the rows that the sink rejected.

The order of the steps makes the guarantee: write to the sink, delete the older entries of rejected keys, record the
dead letters, return. Only then Spark commits the batch. After a kill between two steps Spark repeats the batch, so that
every step may run twice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import DeliveryResult, deliver
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.conditions import INTERRUPTED
from cdf_replicator.monitoring.totals import PHASES
from cdf_replicator.pipeline.rejections import several_rows
from cdf_replicator.transform import change_frame
from connectors import Batch, FrameSink, Watermarked, change
from connectors.errors import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from cdf_replicator.delivery import RejectedRow, RetryPolicy
    from cdf_replicator.delivery.driver import SinkRun
    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.monitoring.totals import BatchOutcome
    from cdf_replicator.pipeline.rejections import Rejections
    from cdf_replicator.route import Route
    from cdf_replicator.transform.enrichment import Dimensions
    from connectors import Sink


@dataclass(slots=True)
class BatchWriter:
    """The parts that deliver a route's micro-batches. ``dimensions`` are open if the route joins tables."""

    route: Route
    sink: Sink
    run: SinkRun
    policy: RetryPolicy
    report: RouteReporter
    rejections: Rejections
    dimensions: Dimensions

    def write(
        self,
        frame: DataFrame,
        batch: Batch,
        *,
        snapshot_version: int | None = None,
        doubled: DataFrame | None = None,
        followed_since: float = math.inf,
    ) -> DeliveryResult:
        """Deliver a change frame as one batch; returns its counts, and raises the error that prevented the delivery.

        Args:
            frame: The change frame.
            batch: The identity of the batch.
            snapshot_version: The version of a bootstrap's snapshot; None for changes of the feed.
            doubled: The keys that several rows of the snapshot have; None if there are none.
            followed_since: Time in epoch seconds from which on commits are timed until their delivery.
        """
        clock = [time.monotonic()]
        if self.sink.mode == "append" and not (self.route.source.include_preimages or self.sink.capabilities.preimages):
            frame = change_frame.without_preimages(frame)
        shaped = self._transform()
        # An append of zero rows would still create a Delta version. For an upsert sink, isEmpty would read all rows.
        if isinstance(self.sink, FrameSink) and self.sink.mode == "append" and shaped(frame).isEmpty():
            return DeliveryResult()
        observation = self._observation(batch)
        given = shaped(frame)
        counted = given if observation is None else given.observe(observation, *_counts())
        selected = change_frame.reduced(self._drop_unused_rows(counted, batch), self.sink, batch)
        outcome, delivered, interrupted = DeliveryResult(), False, False
        try:
            several = [] if doubled is None else several_rows(shaped(frame), doubled)
            clock.append(time.monotonic())
            outcome = self._delivered(selected, several, batch, snapshot_version)
            clock.append(time.monotonic())
            self.report.requests(outcome)
            if isinstance(self.sink, FrameSink):
                outcome.raise_failure()  # a failed write may have run no query that ``_received`` would wait for
            if not outcome.skipped:
                self._received(observation, outcome, snapshot_version)
            outcome.raise_failure()
            self.report.sink_up()
            self.rejections.handle_rejected(lambda: shaped(frame), outcome, batch)
            self._check_server_restart()
            delivered = True
        except Exception as error:
            interrupted = classify_error(error, route=self.route.name).reason == INTERRUPTED
            if (joined := self.dimensions.read_failure(error, batch.table_id)) is not None:
                raise joined from error
            raise
        finally:
            clock.append(time.monotonic())
            seconds = {name: end - start for name, start, end in zip(PHASES, clock, clock[1:], strict=False)}
            if (outcome.received or not delivered) and not interrupted:
                ended: BatchOutcome = "delivered" if delivered else "failed"
                self.report.batch(
                    batch.number,
                    outcome,
                    versions=outcome.versions,
                    seconds=seconds,
                    ended=ended,
                    followed_since=followed_since,
                )
        return outcome

    def _delivered(
        self, selected: DataFrame, several: list[RejectedRow], batch: Batch, snapshot_version: int | None
    ) -> DeliveryResult:
        """Write the changes to the sink, except those of the keys in ``several``, which become rejected."""
        if several:
            keys = selected.sparkSession.createDataFrame([(x.key,) for x in several], f"{change.KEY} string")
            selected = selected.join(F.broadcast(keys), change.KEY, "left_anti")
        guard = None
        if batch.is_bootstrap and snapshot_version is not None:
            guard = change.guard_of(batch.route.epoch, snapshot_version, upsert=True)
        known = self.rejections.looked_for(batch)
        outcome = deliver(selected, self.sink, batch, self.policy, self.run, known, guard)
        for letter in several:
            outcome.reject(letter)
        if several and outcome.skipped:
            outcome.already_written = selected.count()
        return outcome

    def _observation(self, batch: Batch) -> Observation | None:
        """Return the observation that counts the changes; None if the counts of the sink suffice.

        Spark materializes each change as a row to observe it, which takes a quarter of a bootstrap's processor time.
        """
        if batch.is_bootstrap:
            return None
        by_sink = isinstance(self.sink, FrameSink) and self.sink.capabilities.exact_counts
        return None if by_sink and not batch.may_exist else Observation()

    def _received(self, observation: Observation | None, outcome: DeliveryResult, snapshot_version: int | None) -> None:
        """Set the numbers of received changes, and their first and last commit."""
        if snapshot_version is not None:
            outcome.received.update({change.SNAPSHOT: outcome.changes} if outcome.changes else {})
            outcome.versions = snapshot_version, snapshot_version
            return
        if observation is None:
            outcome.received.update(+outcome.applied)  # without the types that have no change
            return
        seen = observation.get
        outcome.received.update({kind: seen[kind] for kind in change.CHANGE_TYPES if seen[kind]})
        if self.sink.mode == "upsert":
            outcome.noop += seen["keyless"]
        if seen["first"] is not None:
            outcome.versions = seen["first"], seen["last"]
        outcome.commit_times = change.commit_times(seen)  # a delete of a redrive has no commit

    def _transform(self) -> Callable[[DataFrame], DataFrame]:
        """Return the function that joins and filters a change frame; every call reads the same dimension versions."""
        if not self.route.enrich:
            return lambda frame: frame
        join = self.dimensions.snapshot_join()
        return lambda frame: change_frame.project_joined(join(frame), self.route)

    def _drop_unused_rows(self, changes: DataFrame, batch: Batch) -> DataFrame:
        """Return the changes that the reduction shuffles; deletes lose their ``row`` if the sink does not read it."""
        if self.sink.mode == "append" or self.sink.capabilities.deleted_rows or batch.is_bootstrap:
            return changes
        return changes.withColumn(change.ROW, F.when(~change.is_delete(), F.col(change.ROW)))

    def _check_server_restart(self) -> None:
        if isinstance(self.sink, Watermarked) and self.sink.lost_acknowledged_writes():
            raise lost("the server was restarted, failed over or restored")


def _counts() -> list[Column]:
    keyless = f"count_if({change.KEY} IS NULL AND {change.is_delete_sql()})"  # the reduction drops them
    return [*change.counts(), F.expr(f"{keyless} AS keyless")]
