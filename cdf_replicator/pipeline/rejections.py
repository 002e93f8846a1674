"""What becomes of the rows that a sink refuses: their keys' older entries go, they are kept, later changes close them.

A micro-batch that refuses nothing, and meets no key of an open letter, costs nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import SEVERAL_ROWS, deliver
from cdf_replicator.delivery.result import duplicate_key
from cdf_replicator.errors.conditions import RESYNC
from cdf_replicator.errors.exceptions import HaltError
from cdf_replicator.transform import change_frame
from connectors import FrameSink, change, guard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import DataFrame

    from cdf_replicator.delivery import Letter, Outcome, RetryPolicy
    from cdf_replicator.delivery.dead_letters import DeadLetters, Known
    from cdf_replicator.monitoring.reporter import Report
    from cdf_replicator.route import Route
    from cdf_replicator.settings.models import Delivery
    from connectors import Batch, Sink

ALWAYS_ALLOWED: Final = 100
"""Rejected rows of a micro-batch that never halt a route, however small the batch is."""
FEW: Final = 1_000
"""Keys that a query may list: a hundred times as many would take seconds to plan."""
MANY: Final = 100_000
"""Keys of open letters that a route remembers."""


@dataclass(slots=True)
class Rejections:
    """Of one run of a route; ``known`` is kept in step with the table of dead letters."""

    route: Route
    sink: Sink
    policy: RetryPolicy
    limits: Delivery
    letters: DeadLetters
    report: Report
    known: Known

    def check_doubled(self, keys: DataFrame, frame: DataFrame, version: int) -> DataFrame | None:
        """Return the keys that several rows of a snapshot have, None where there are none; raises ``HaltError``.

        It does where the operator wants that, and where there are more than may be refused: before anything is written.
        """
        examples = keys.orderBy(change.KEY).limit(5).collect()
        if not examples:
            return None
        keys = keys.select(change.KEY).localCheckpoint()
        found, halts = keys.count(), self.route.source.on_duplicate_keys == "halt"
        if not halts and found <= allowed(frame.count(), self.limits):
            return keys
        table, named = self.route.source.slug, ", ".join(f"{row[change.KEY]} ({row['rows']} rows)" for row in examples)
        variable = f"CDF_TABLES__{table.upper()}__"
        raised = f"set {variable}ON_DUPLICATE_KEYS=dead_letter" if halts else "raise CDF_DELIVERY__MAX_REJECTED_SHARE"
        raise HaltError(
            "duplicate_keys" if halts else "too_many_rejected",
            f"Key columns {', '.join(self.route.keys)} of table {table} do not identify a row: at version {version} there "
            f"are several rows of {found} key{'s' if found > 1 else ''}: {named}{', …' if found > len(examples) else ''}.",
            f"Correct {variable}KEYS or the data, or {raised}. Then " + RESYNC[0].lower() + RESYNC[1:],
        )

    def looked_for(self, batch: Batch) -> Collection[str]:
        """Return the keys of which a change of this batch closes a letter, as far as they are remembered."""
        return self.known.keys or () if self._closes(batch) else ()

    def settle(self, changes: Callable[[], DataFrame], outcome: Outcome, batch: Batch) -> None:
        """Keep what the sink refused, and close what later changes have settled.

        ``changes``: what the reduction was given. It is made only where rows are refused or a letter may be closed.
        """
        if outcome.rejected:
            self._keep(changes(), outcome, batch)
        if outcome.met or (self.known.keys is None and self._closes(batch)):
            self._close_superseded(changes(), outcome, batch)

    def count_letters(self) -> None:
        """Read how many letters of the route are open now, and report it."""
        self._remember(self.letters.known(self.route.name, most_known(self.sink)))

    def void_older(self, epoch: int) -> None:
        """Close the letters of older epochs: the snapshot that began this one has said all about their keys."""
        if self.known.open:
            older = F.col("guard") < guard_of(epoch, 0, upsert=False)
            self.letters.close(self.route.name, older, "void")
            self.count_letters()

    def _remember(self, known: Known) -> None:
        self.known = known
        self.report.dead_letters(known.open)

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
        rejected = self.letters.select(change_frame.reduced(changes, self.sink, batch), _single(outcome)).drop(
            change.DOUBLED
        )
        if outcome.rejected[change.DUPLICATE_KEY]:  # these rows are not among what was delivered
            several = {"code": F.lit(change.DUPLICATE_KEY), "reason": F.lit(SEVERAL_ROWS)}
            rejected = rejected.unionByName(change_frame.doubled_rows(changes).withColumns(several))
        return rejected

    def _closes(self, batch: Batch) -> bool:
        """Whether its changes close older letters: in an append sink none takes an earlier one's place.

        A bootstrap leaves them to its end, which voids those of older epochs, and a redrive closes its own.
        """
        return self.sink.mode == "upsert" and not (batch.is_bootstrap or batch.request)

    def _close_superseded(self, changes: DataFrame, outcome: Outcome, batch: Batch) -> None:
        if self.known.keys is not None and len(outcome.met) <= FEW:
            self.letters.close_superseded(self.route.name, outcome.met)
        else:  # more than a query may list: the table is asked for every key of the micro-batch
            columns = f"{change.KEY} string, {change.GUARD} long"
            named = [(letter.key, letter.guard) for letter in outcome.letters]
            refused = F.broadcast(changes.sparkSession.createDataFrame(named, columns))
            delivered = change_frame.reduced(changes, self.sink, batch).select(change.KEY, change.GUARD)
            newer = delivered.join(refused, [change.KEY, change.GUARD], "left_anti")
            self.letters.close_superseded_of(self.route.name, newer)
        self.count_letters()

    def _check_share(self, outcome: Outcome, *, asked_for: bool) -> None:
        """``asked_for``: by an operator who has letters redriven, and knows that they were refused."""
        rejected = sum(outcome.rejected.values())
        too_many = rejected > allowed(outcome.changes, self.limits) and not asked_for
        if too_many or rejected > len(outcome.letters):  # more than is named can't be kept
            example = outcome.letters[0]
            raise HaltError(
                "too_many_rejected",
                f"Sink {self.route.sink} refused {rejected} of {outcome.changes} changes of one micro-batch "
                f"({dict(outcome.rejected)}); for example key {example.key!r}: {example.reason}.",
                "Correct the sink or the data, or raise CDF_DELIVERY__MAX_REJECTED_SHARE, then restart: "
                "nothing of the batch is lost.",
            )

    def _delete_older(self, rejected: DataFrame, batch: Batch) -> None:
        """Remove the older entry of a key whose newest change was refused.

        What a sink shows must not depend on how commits were split into micro-batches (design rule 17).
        """
        # What was delivered of a key with several rows is its delete already.
        single = F.col(change.KEY).isNotNull() & (F.col("code") != change.DUPLICATE_KEY)
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


def allowed(changes: int, limits: Delivery) -> int:
    """Return how many of a micro-batch's changes, or of a snapshot's rows, may be refused."""
    return max(ALWAYS_ALLOWED, int(limits.max_rejected_share * changes))


def most_known(sink: Sink) -> int:
    """How many keys of open letters are looked out for: workers do it by a hash, a query by a list in its plan."""
    return FEW if isinstance(sink, FrameSink) else MANY


def several_rows(changes: DataFrame, doubled: DataFrame) -> list[Letter]:
    """Return the keys of which the joins and filters of a route leave several rows; ``doubled``: those that may be."""
    rows = change_frame.doubled_rows(changes.join(F.broadcast(doubled), change.KEY, "left_semi"))
    found = rows.select(change.KEY, change.GUARD).distinct().toLocalIterator()
    return [duplicate_key(key, guard) for key, guard in found]


def _single(outcome: Outcome) -> list[Letter]:
    """The refused changes that are one row each."""
    return [letter for letter in outcome.letters if letter.code != change.DUPLICATE_KEY]
