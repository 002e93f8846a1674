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
from connectors import Batch, FrameSink, RetryableError, change, guard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import Column, DataFrame

    from cdf_replicator.dead_letters import DeadLetters, Known
    from cdf_replicator.delivery import Letter, RetryPolicy
    from cdf_replicator.enrichment import Dimensions
    from cdf_replicator.report import Report
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Delivery
    from connectors import Sink

PHASES: Final = ("prepare", "write", "record")
ALWAYS_ALLOWED: Final = 100
"""Rejected rows of a micro-batch that never halt a route, however small the batch is."""
FEW: Final = 1_000
"""Keys that a query may list: a hundred times as many would take seconds to plan."""
MANY: Final = 100_000
"""Keys of open letters that a route remembers."""


@dataclass(slots=True)
class Delivering:
    """All that delivering a route's micro-batches needs; ``known`` is kept in step with the table of dead letters.

    ``dimensions``: opened, if the route joins any.
    """

    route: Route
    sink: Sink
    policy: RetryPolicy
    limits: Delivery
    letters: DeadLetters
    report: Report
    known: Known
    dimensions: Dimensions

    def write(self, frame: DataFrame, batch: Batch, *, snapshot_of: int | None = None) -> Outcome:
        """Deliver a change frame as one batch; returns what became of it, raises what kept it from being delivered.

        ``snapshot_of``: of a bootstrap, the version whose rows these are, no key twice, which somebody has seen to.
        """
        clock = [time.monotonic()]
        if self.sink.mode == "append" and not (self.route.source.include_preimages or self.sink.preimages):
            frame = feed.without_preimages(frame)
        shaped = self._shaped()
        # An append of nothing would still make a version. A reduction reads all rows to find the first: its sink counts.
        if isinstance(self.sink, FrameSink) and self.sink.mode == "append" and shaped(frame).isEmpty():
            return Outcome()
        observation = self._observation(batch)
        counted = frame if observation is None else frame.observe(observation, *_counts())
        selected = self._selected(self._moved(shaped(counted), batch), batch)
        clock.append(time.monotonic())
        outcome, delivered, interrupted = Outcome(), False, False
        versions: tuple[int, int] | None = None
        try:
            outcome = deliver(selected, self.sink, batch, self.policy, self._looked_for(batch))
            clock.append(time.monotonic())
            self.report.requests(outcome)
            if not outcome.skipped:
                versions = self._received(frame, observation, outcome, snapshot_of)
            outcome.raise_failure()
            self.report.sink_up()
            if outcome.rejected:
                self._keep(shaped(frame), outcome, batch)
            if outcome.met or (self.known.keys is None and self._closes(batch)):
                self._close_superseded(shaped(frame), outcome, batch)
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

    def _observation(self, batch: Batch) -> Observation | None:
        """What counts the changes on their way; None where the sink's own counts tell what came in.

        Each change is made as a row in between: that takes a quarter of a bootstrap's processor time.
        """
        if batch.is_bootstrap:
            return None
        by_sink = isinstance(self.sink, FrameSink) and self.sink.tells_received
        return None if by_sink and not (batch.replay or self.route.enrich) else Observation()

    def _received(
        self, frame: DataFrame, observation: Observation | None, outcome: Outcome, snapshot_of: int | None
    ) -> tuple[int, int] | None:
        """Count what came in; return its range of versions."""
        if snapshot_of is not None:
            joined = self.route.enrich and outcome.failure is None  # then a row may have failed the filter
            rows = frame.count() if joined else outcome.changes
            outcome.received.update({"snapshot": rows} if rows else {})
            return snapshot_of, snapshot_of
        if observation is None:
            outcome.received.update(+outcome.applied)  # without the types there were none of
            return outcome.versions
        seen = observation.get
        outcome.received.update({kind: seen[kind] for kind in change.CHANGE_TYPES if seen[kind]})
        return None if seen["first"] is None else (seen["first"], seen["last"])

    def _shaped(self) -> Callable[[DataFrame], DataFrame]:
        """Return what joins and filters a change frame, the same way each time it is asked."""
        join = self.dimensions.pin() if self.route.enrich else None

        def shaped(frame: DataFrame) -> DataFrame:
            return frame if join is None else feed.finished(join(frame), self.route)

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

    def _keep(self, changes: DataFrame, outcome: Outcome, batch: Batch) -> None:
        """Keep what was refused, and remove the older entry of its keys."""
        self._check_share(outcome, asked_for=bool(batch.request))
        rejected = self._rejected(changes, outcome, batch).persist()
        try:
            if self.sink.mode == "upsert" and any(x.key is not None for x in _single(outcome)):
                self._delete_older(rejected, batch)
            lowest = 0 if outcome.rejected[change.DUPLICATE_KEY] else min(x.guard for x in outcome.letters)
            added = self.letters.bury(rejected, self.route, batch, lowest > self.known.highest)
        finally:
            rejected.unpersist()
        self._remember(self.known.with_more(added, outcome.letters, most_known(self.sink)))

    def _rejected(self, changes: DataFrame, outcome: Outcome, batch: Batch) -> DataFrame:
        """Return the rows that were refused, each with its ``code`` and ``reason``."""
        keys = {letter.key for letter in outcome.letters}
        if len(keys) <= FEW:  # only these are reduced once more
            named = F.col(change.KEY).isin(*(key for key in keys if key is not None))
            changes = changes.where(named | F.col(change.KEY).isNull() if None in keys else named)
        rejected = self.letters.select(self._selected(changes, batch), _single(outcome)).drop(change.DOUBLED)
        if outcome.rejected[change.DUPLICATE_KEY]:  # these rows are not among what was delivered
            several = {"code": F.lit(change.DUPLICATE_KEY), "reason": F.lit(SEVERAL_ROWS)}
            rejected = rejected.unionByName(feed.doubled_rows(changes).withColumns(several))
        return rejected

    def _closes(self, batch: Batch) -> bool:
        """Whether its changes close older letters: in an append sink none takes an earlier one's place.

        A bootstrap leaves them to its end, which voids those of older epochs, and a redrive closes its own.
        """
        return self.sink.mode == "upsert" and not (batch.is_bootstrap or batch.request)

    def _looked_for(self, batch: Batch) -> Collection[str]:
        return self.known.keys or () if self._closes(batch) else ()

    def _close_superseded(self, changes: DataFrame, outcome: Outcome, batch: Batch) -> None:
        if self.known.keys is not None and len(outcome.met) <= FEW:
            self.letters.close_superseded(self.route.name, outcome.met)
        else:  # more than a query may list: the table is asked for every key of the micro-batch
            columns = f"{change.KEY} string, {change.GUARD} long"
            named = [(letter.key, letter.guard) for letter in outcome.letters]
            refused = F.broadcast(changes.sparkSession.createDataFrame(named, columns))
            delivered = self._selected(changes, batch).select(change.KEY, change.GUARD)
            newer = delivered.join(refused, [change.KEY, change.GUARD], "left_anti")
            self.letters.close_superseded_of(self.route.name, newer)
        self.count_letters()

    def count_letters(self) -> None:
        """Read how many letters of the route are open now, and report it."""
        self._remember(self.letters.known(self.route.name, most_known(self.sink)))

    def void_older_letters(self, epoch: int) -> None:
        """Close the letters of older epochs: the snapshot that began this one has said all about their keys."""
        if self.known.open:
            older = F.col("guard") < guard_of(epoch, 0, upsert=False)
            self.letters.close(self.route.name, older, "void")
            self.count_letters()

    def _remember(self, known: Known) -> None:
        self.known = known
        self.report.dead_letters(known.open)

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
            raise RetryableError(
                "unavailable", "the server was started anew: what it took may be lost, and is sent again"
            )

    def _delete_older(self, rejected: DataFrame, batch: Batch) -> None:
        """Remove the older entry of a key whose newest change was refused.

        What a sink shows must not depend on how commits were split into micro-batches (design rule 17).
        """
        single = F.col(change.KEY).isNotNull() & (
            F.col("code") != change.DUPLICATE_KEY
        )  # the others are deleted already
        upserts = rejected.where(single & ~change.is_delete())
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


def most_known(sink: Sink) -> int:
    """How many keys of open letters are looked out for: workers do it by a hash, a query by a list in its plan."""
    return FEW if isinstance(sink, FrameSink) else MANY


def _single(outcome: Outcome) -> list[Letter]:
    """The refused changes that are one row each."""
    return [letter for letter in outcome.letters if letter.code != change.DUPLICATE_KEY]


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


def _counts() -> list[Column]:
    by_type = [F.count_if(F.col(change.CHANGE_TYPE) == kind).alias(kind) for kind in change.CHANGE_TYPES]
    version = F.col(change.COMMIT_VERSION)
    return [*by_type, F.min(version).alias("first"), F.max(version).alias("last")]
