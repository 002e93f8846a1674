"""Handle the rows that a sink rejects: delete the older entries of their keys and record the rows as dead letters.

A later change of the key closes the dead letter. A micro-batch without a rejected row and without a key of an open dead
letter costs nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery import SEVERAL_ROWS, deliver
from cdf_replicator.delivery.letter_rows import with_twins
from cdf_replicator.delivery.result import duplicate_key
from cdf_replicator.errors.conditions import RESYNC_CLAUSE
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.transform import change_frame
from connectors import FrameSink, change, guard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import DataFrame

    from cdf_replicator.delivery import DeliveryResult, RejectedRow, RetryPolicy
    from cdf_replicator.delivery.dead_letters import DeadLetters, Known
    from cdf_replicator.delivery.driver import SinkRun
    from cdf_replicator.monitoring.reporter import RouteReporter
    from cdf_replicator.route import Route
    from cdf_replicator.settings.models import Delivery
    from connectors import Batch, Sink

ALWAYS_ALLOWED: Final = 100
"""Number of rejected rows of a micro-batch that never halts a route, whatever the size of the batch."""
FEW: Final = 1_000
"""Most keys in the text of a query. Spark takes seconds to plan a hundred times as many."""
COUNTED_UNFILTERED: Final = " Rows that fail the filter over joined columns count too, since a change of such a row deletes the entry of its key."
MANY: Final = 100_000
"""Most keys of open dead letters that a route keeps in memory."""


@dataclass(slots=True)
class Rejections:
    """The rejections of one run of a route; ``known`` always matches the table of dead letters.

    ``is_repair`` is true if an operator's command repairs entries, which another writer may have written.
    """

    route: Route
    sink: Sink
    run: SinkRun
    policy: RetryPolicy
    limits: Delivery
    dead_letters: DeadLetters
    report: RouteReporter
    known: Known
    is_repair: bool = False

    def check_doubled(self, keys: DataFrame, frame: DataFrame, version: int) -> DataFrame | None:
        """Return the keys that several rows of a snapshot have, None if there are none; raises ``RouteHaltError``.

        The route halts before the first write if ON_DUPLICATE_KEYS is ``halt``, or if more keys have several rows than
        ``allowed`` permits.
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
        unfiltered = COUNTED_UNFILTERED if self.route.filter_is_joined else ""
        raise RouteHaltError(
            "duplicate_keys" if halts else "too_many_rejected",
            f"Key columns {', '.join(self.route.keys)} of table {table} do not identify a row: at version {version} there "
            f"are several rows of {found} key{'s' if found > 1 else ''}: {named}{', …' if found > len(examples) else ''}.{unfiltered}",
            f"Correct {variable}KEYS or the data, or {raised}. Then " + RESYNC_CLAUSE,
        )

    def looked_for(self, batch: Batch) -> Collection[str]:
        """Return the keys in memory whose dead letters a change of this batch closes."""
        return self.known.keys or () if self._closes(batch) else ()

    def handle_rejected(self, changes: Callable[[], DataFrame], outcome: DeliveryResult, batch: Batch) -> None:
        """Record the rejected rows as dead letters, and close the dead letters that later changes supersede.

        Args:
            changes: Returns the input of the reduction. It is called only for a rejected row or a dead letter to close.
            outcome: The result of the delivery.
            batch: The identity of the batch.
        """
        if outcome.rejected:
            self._keep(changes(), outcome, batch)
        if outcome.met or (self.known.keys is None and self._closes(batch)):
            self._close_superseded(changes(), outcome, batch)

    def count_letters(self) -> None:
        """Read the number of the route's open dead letters, and report it."""
        self._remember(self.dead_letters.known(self.route.name, most_known(self.sink)))

    def close_letters_before_epoch(self, epoch: int) -> None:
        """Close the dead letters of older epochs: the snapshot of this epoch has rewritten their keys."""
        if self.known.open:
            older = F.col("guard") < guard_of(epoch, 0, upsert=False)
            self.dead_letters.close(self.route.name, older, "void")
            self.count_letters()

    def _remember(self, known: Known) -> None:
        self.known = known
        self.report.dead_letters(known.open)

    def _keep(self, changes: DataFrame, outcome: DeliveryResult, batch: Batch) -> None:
        """Record the rejected rows as dead letters, and delete the older entries of their keys."""
        self._check_reject_limit(outcome, is_redrive=bool(batch.request))
        rejected = self._rejected(changes, outcome, batch).persist()
        try:
            kept = rejected
            if self.sink.mode == "upsert" and any(x.key is not None for x in _single(outcome)):
                kept = _with_older_entries(rejected, self._delete_older(rejected, batch))
            lowest = 0 if outcome.rejected[change.DUPLICATE_KEY] else min(x.guard for x in outcome.letters)
            new, appends = lowest > self.known.highest, self.sink.mode == "append"
            added = self.dead_letters.add(kept, self.route, batch, new, each_row=appends)
        finally:
            rejected.unpersist()
        self._remember(self.known.with_more(added, outcome.letters, most_known(self.sink)))

    def _rejected(self, changes: DataFrame, outcome: DeliveryResult, batch: Batch) -> DataFrame:
        """Return the rejected rows, each with its ``code`` and ``reason``."""
        keys = {letter.key for letter in outcome.letters}
        if len(keys) <= FEW:  # then Spark reduces only these keys again
            named = F.col(change.KEY).isin(*(key for key in keys if key is not None))
            changes = changes.where(named | F.col(change.KEY).isNull() if None in keys else named)
        rejected = self.dead_letters.match_rejected(
            change_frame.reduced(changes, self.sink, batch), _single(outcome)
        ).drop(change.DUPLICATE_GUARD)
        if self.sink.mode == "append":
            return with_twins(rejected, outcome.letters)
        if outcome.rejected[change.DUPLICATE_KEY]:  # the sink did not receive these rows
            several = {"code": F.lit(change.DUPLICATE_KEY), "reason": F.lit(SEVERAL_ROWS)}
            rejected = rejected.unionByName(change_frame.duplicate_rows(changes).withColumns(several))
        return rejected

    def _closes(self, batch: Batch) -> bool:
        """Return whether the batch's changes close older dead letters; in an append sink no change replaces another.

        A bootstrap closes the dead letters of older epochs at its end. A redrive closes its own dead letters.
        """
        return self.sink.mode == "upsert" and not (batch.is_bootstrap or batch.request)

    def _close_superseded(self, changes: DataFrame, outcome: DeliveryResult, batch: Batch) -> None:
        if self.known.keys is not None and len(outcome.met) <= FEW:
            self.dead_letters.close_superseded(self.route.name, outcome.met)
        else:  # too many for the text of a query: join the table with every key of the micro-batch
            columns = f"{change.KEY} string, {change.GUARD} long"
            named = [(letter.key, letter.guard) for letter in outcome.letters]
            refused = F.broadcast(changes.sparkSession.createDataFrame(named, columns))
            delivered = change_frame.reduced(changes, self.sink, batch).select(change.KEY, change.GUARD)
            newer = delivered.join(refused, [change.KEY, change.GUARD], "left_anti")
            self.dead_letters.close_superseded_of(self.route.name, newer)
        self.count_letters()

    def _check_reject_limit(self, outcome: DeliveryResult, *, is_redrive: bool) -> None:
        """Raise ``RouteHaltError`` for too many rejected rows; ``is_redrive`` is true for a redrive, which has no limit."""
        rejected = sum(outcome.rejected.values())
        too_many = rejected > allowed(outcome.changes, self.limits) and not is_redrive
        if too_many or rejected > len(outcome.letters):  # a row without its ``RejectedRow`` can't be recorded
            example = outcome.letters[0]
            raise RouteHaltError(
                "too_many_rejected",
                f"Sink {self.route.sink} refused {rejected} of {outcome.changes} changes of one micro-batch "
                f"({dict(outcome.rejected)}); for example key {example.key!r}: {example.reason}.",
                "Correct the sink or the data, then run: cdf-replicator resume {route}. Or raise "
                "CDF_DELIVERY__MAX_REJECTED_SHARE, then restart, or reload a changed file: cdf-replicator reload. Nothing of the batch is lost.",
            )

    def _delete_older(self, rejected: DataFrame, batch: Batch) -> list[RejectedRow]:
        """Delete the older entry of a key whose newest change was rejected; returns the deletes that the sink rejects too.

        The content of a sink must not depend on how commits were split into micro-batches (docs/design.md, rule 17). A
        repair has the delete guard of the next version, to replace an entry that another writer wrote with the row's guard.
        A later redrive of the same version is then stale.
        """
        # For a key with several rows the sink already received a delete.
        single = F.col(change.KEY).isNotNull() & (F.col("code") != change.DUPLICATE_KEY)
        upserts = rejected.where(single & ~change.is_delete())
        deletes = upserts.drop("code", "reason").withColumns(
            {
                change.GUARD: F.col(change.GUARD) + (1 if self.is_repair else -1),
                change.CHANGE_TYPE: F.lit("delete"),
                change.DUPLICATE_GUARD: F.lit(None).cast("long"),  # already rejected
            }
        )
        outcome = deliver(deletes, self.sink, batch, self.policy, self.run)
        self.report.requests(outcome)
        outcome.raise_failure()
        if outcome.letters:
            self.report.warning(
                f"sink {self.route.sink} refused {sum(outcome.rejected.values())} deletes of older entries of refused rows, which stay "
                f"visible; for example key {outcome.letters[0].key!r}: {outcome.letters[0].reason}"
            )
        return outcome.letters


def allowed(changes: int, limits: Delivery) -> int:
    """Return how many of a micro-batch's changes, or of a snapshot's rows, the sink may reject."""
    return max(ALWAYS_ALLOWED, int(limits.max_rejected_share * changes))


def most_known(sink: Sink) -> int:
    """Return the number of keys to keep in memory: workers compare them by a hash, a query by a list in its plan."""
    return FEW if isinstance(sink, FrameSink) else MANY


def several_rows(changes: DataFrame, doubled: DataFrame) -> list[RejectedRow]:
    """Return a ``RejectedRow`` for each key of ``doubled`` that has several rows after the route's joins and filters."""
    rows = change_frame.duplicate_rows(changes.join(F.broadcast(doubled), change.KEY, "left_semi"))
    found = rows.select(change.KEY, change.GUARD).distinct().toLocalIterator()
    return [duplicate_key(key, guard) for key, guard in found]


def _with_older_entries(rejected: DataFrame, deletes: list[RejectedRow]) -> DataFrame:
    """Add the reason of each rejected delete to the reason of its key's rejected row."""
    if not deletes:
        return rejected
    texts = [(x.key, f"; the sink refused to delete an older entry, which stays visible: {x.reason}") for x in deletes]
    named = F.broadcast(rejected.sparkSession.createDataFrame(texts, f"{change.KEY} string, more string"))
    reason = F.concat("reason", F.coalesce("more", F.lit("")))
    return rejected.join(named, change.KEY, "left").withColumn("reason", reason).drop("more")


def _single(outcome: DeliveryResult) -> list[RejectedRow]:
    """Return the rejected changes that consist of a single row."""
    return [letter for letter in outcome.letters if letter.code != change.DUPLICATE_KEY]
