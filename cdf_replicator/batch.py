"""Delivers one micro-batch of one route, and settles what the sink refused. The order here is the guarantee:

write to the sink -> delete the older entry of refused keys -> keep the letters -> return, and Spark commits.
A kill between any two steps redelivers the same batch, and every step may run twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator import feed
from cdf_replicator.conditions import INTERRUPTED, RESYNC
from cdf_replicator.delivery import SEVERAL_ROWS, Outcome, deliver
from cdf_replicator.verdict import HaltError, judge
from connectors import Batch, FrameSink, change, guard_of
from connectors.errors import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from cdf_replicator.dead_letters import DeadLetters
    from cdf_replicator.delivery import RetryPolicy
    from cdf_replicator.enrichment import Dimensions
    from cdf_replicator.report import Report
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Delivery
    from connectors import Sink

PHASES: Final = ("prepare", "write", "record")
ALWAYS_ALLOWED: Final = 100
"""Rejected rows of a micro-batch that never halt a route, however small the batch is."""


@dataclass(slots=True)
class Delivering:
    """All that delivering a route's micro-batches needs; ``open_letters`` is kept in step with the table.

    ``dimensions``: opened, if the route joins any.
    """

    route: Route
    sink: Sink
    policy: RetryPolicy
    limits: Delivery
    letters: DeadLetters
    report: Report
    open_letters: int
    dimensions: Dimensions

    def write(
        self, frame: DataFrame, batch: Batch, *, no_ops_above: int | None = None, snapshot_of: int | None = None
    ) -> Outcome:
        """Deliver a change frame as one batch; returns what became of it, raises what kept it from being delivered.

        ``no_ops_above``: updates of later versions that change nothing are left out; None leaves out none.
        ``snapshot_of``: of a bootstrap, the version whose rows these are, no key twice, which somebody has seen to.
        """
        clock = [time.monotonic()]
        if no_ops_above is not None:
            frame = feed.no_ops_marked(frame, no_ops_above)
        if self.sink.mode == "append" and not (self.route.source.include_preimages or self.sink.preimages):
            frame = feed.without_preimages(frame)
        shaped = self._shaped()
        # An append of nothing would still make a version. A reduction reads all rows to find the first: its sink counts.
        if isinstance(self.sink, FrameSink) and self.sink.mode == "append" and shaped(frame).isEmpty():
            return Outcome()
        observation = self._observation(batch, marked=no_ops_above is not None)
        counted = frame if observation is None else frame.observe(observation, *_counts(frame))
        selected = self._selected(self._moved(shaped(counted), batch), batch)
        clock.append(time.monotonic())
        outcome, unchanged, delivered, interrupted = Outcome(), 0, False, False
        versions: tuple[int, int] | None = None
        try:
            outcome = deliver(selected, self.sink, batch, self.policy)
            clock.append(time.monotonic())
            self.report.requests(outcome)
            if not outcome.skipped:
                versions, unchanged = self._received(frame, observation, outcome, snapshot_of)
            outcome.raise_failure()
            self.report.sink_up()
            if outcome.rejected or self.open_letters:
                self._settle(shaped(frame), outcome, batch)
            outcome.noop += unchanged  # the sink has not seen these
            self._check_kept()
            delivered = True
        except Exception as error:
            interrupted = judge(error, route=self.route.name).reason == INTERRUPTED
            raise
        finally:
            clock.append(time.monotonic())
            seconds = {name: end - start for name, start, end in zip(PHASES, clock, clock[1:], strict=False)}
            if (outcome.received or not delivered) and not interrupted:
                ended: Literal["delivered", "failed"] = "delivered" if delivered else "failed"
                self.report.batch(batch.number, outcome, versions=versions, seconds=seconds, ended=ended)
        return outcome

    def _observation(self, batch: Batch, *, marked: bool) -> Observation | None:
        """What counts the changes on their way; None where the sink's own counts tell what came in.

        Each change is made as a row in between: that takes a quarter of a bootstrap's processor time.
        """
        if batch.is_bootstrap:
            return None
        by_sink = isinstance(self.sink, FrameSink) and self.sink.tells_received
        return None if by_sink and not (marked or batch.replay or self.route.enrich) else Observation()

    def _received(
        self, frame: DataFrame, observation: Observation | None, outcome: Outcome, snapshot_of: int | None
    ) -> tuple[tuple[int, int] | None, int]:
        """Count what came in; return its range of versions, and how many updates changed nothing."""
        if snapshot_of is not None:
            joined = self.route.enrich and outcome.failure is None  # then a row may have failed the filter
            rows = frame.count() if joined else outcome.changes
            outcome.received.update({"snapshot": rows} if rows else {})
            return (snapshot_of, snapshot_of), 0
        if observation is None:
            outcome.received.update(+outcome.applied)  # without the types there were none of
            return outcome.versions, 0
        seen = observation.get
        outcome.received.update({kind: seen[kind] for kind in change.CHANGE_TYPES if seen[kind]})
        return None if seen["first"] is None else (seen["first"], seen["last"]), seen["unchanged"]

    def _shaped(self) -> Callable[[DataFrame], DataFrame]:
        """Return what joins and filters a change frame, the same way each time it is asked."""
        join = self.dimensions.pin() if self.route.enrich else None

        def shaped(frame: DataFrame) -> DataFrame:
            frame = feed.without_no_ops(frame)
            if join is not None:
                frame = feed.finished(join(frame), self.route)
            return frame

        return shaped

    def _selected(self, changes: DataFrame, batch: Batch) -> DataFrame:
        if self.sink.mode == "append":
            return changes
        return feed.none_doubled(changes) if batch.is_bootstrap else feed.latest_per_key(changes)

    def _moved(self, changes: DataFrame, batch: Batch) -> DataFrame:
        """What the reduction shuffles: without the rows that the sink does not look at."""
        if self.sink.mode == "append" or self.sink.reads_deleted_rows or batch.is_bootstrap:
            return changes
        return changes.withColumn(change.ROW, F.when(~change.is_delete(), F.col(change.ROW)))

    def _settle(self, changes: DataFrame, outcome: Outcome, batch: Batch) -> None:
        delivered = self._selected(changes, batch)
        if outcome.rejected:
            self._check_share(outcome, asked_for=bool(batch.request))
            rejected = self.letters.select(delivered, outcome.letters)
            if self.sink.mode == "upsert":
                self._delete_older(rejected, batch)
            self.letters.bury(rejected, self.route, batch)
        if outcome.rejected[change.DUPLICATE_KEY]:  # these rows are not among what was delivered
            several = {"code": F.lit(change.DUPLICATE_KEY), "reason": F.lit(SEVERAL_ROWS)}
            self.letters.bury(feed.doubled_rows(changes).withColumns(several), self.route, batch)
        # In an append sink a later change takes no earlier one's place.
        if self.open_letters and self.sink.mode == "upsert" and not batch.request:
            self.letters.close_superseded(delivered, self.route, outcome.letters)
        self.count_letters()

    def count_letters(self) -> None:
        """Tell how many letters of the route are open now."""
        self.open_letters = self.letters.open_count(self.route.name)
        self.report.dead_letters(self.open_letters)

    def void_older_letters(self, epoch: int) -> None:
        """Close the letters of older epochs: the snapshot that began this one has said all about their keys."""
        if self.open_letters:
            older = F.col("guard") < guard_of(epoch, 0, upsert=False)
            self.letters.close(self.route.name, older, "void")
            self.count_letters()

    def _check_share(self, outcome: Outcome, *, asked_for: bool) -> None:
        """``asked_for``: by an operator who has letters redriven, and knows that they were refused."""
        rejected = sum(outcome.rejected.values())
        allowed = max(ALWAYS_ALLOWED, int(self.limits.max_rejected_share * outcome.changes))
        if (rejected > allowed and not asked_for) or rejected > len(
            outcome.letters
        ):  # more than is named can't be kept
            example = outcome.letters[0]
            raise HaltError(
                "too_many_rejected",
                f"Sink {self.route.sink} refused {rejected} of {outcome.changes} changes of one micro-batch "
                f"({dict(outcome.rejected)}); for example key {example.key!r}: {example.reason}.",
                "Correct the sink or the data, or raise CDF_DELIVERY__MAX_REJECTED_SHARE, then restart: "
                "nothing of the batch is lost.",
            )

    def _check_kept(self) -> None:
        if not self.sink.kept():
            raise lost("the server was restarted, failed over or restored")

    def _delete_older(self, rejected: DataFrame, batch: Batch) -> None:
        """Remove the older entry of a key whose newest change was refused.

        What a sink shows must not depend on how commits were split into micro-batches (design rule 17).
        """
        upserts = rejected.where(F.col(change.KEY).isNotNull() & ~change.is_delete())
        deletes = upserts.drop("code", "reason").withColumns(
            {
                change.GUARD: F.col(change.GUARD) - 1,
                change.CHANGE_TYPE: F.lit("delete"),
                change.DOUBLED: F.lit(None).cast("long"),  # told already
            }
        )
        outcome = deliver(deletes, self.sink, batch, self.policy)
        self.report.requests(outcome)
        outcome.raise_failure()


def check_duplicates(snapshot: DataFrame, route: Route, version: int) -> None:
    """See that the key columns identify the rows of a snapshot; raises ``HaltError`` naming keys that do not."""
    doubled = feed.doubled_keys(snapshot, route).orderBy(change.KEY).limit(5).collect()
    if doubled:
        examples = ", ".join(f"{row[change.KEY]} ({row['rows']} rows)" for row in doubled)
        raise HaltError(
            "duplicate_keys",
            f"Key columns {', '.join(route.keys)} of table {route.source.slug} do not identify a row: at version "
            f"{version} there are several rows of key {examples}.",
            f"Correct CDF_TABLES__{route.source.slug.upper()}__KEYS or the data. Then "
            + RESYNC[0].lower()
            + RESYNC[1:],
        )


def _counts(frame: DataFrame) -> list[Column]:
    by_type = [F.count_if(F.col(change.CHANGE_TYPE) == kind).alias(kind) for kind in change.CHANGE_TYPES]
    version = F.col(change.COMMIT_VERSION)
    no_op = F.col(feed.NO_OP) if feed.NO_OP in frame.columns else F.lit(False)
    unchanged = F.count_if(no_op & (F.col(change.CHANGE_TYPE) == "update_postimage"))  # an update is a pair
    return [*by_type, unchanged.alias("unchanged"), F.min(version).alias("first"), F.max(version).alias("last")]
