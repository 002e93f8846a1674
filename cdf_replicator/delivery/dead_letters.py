"""Keep rejected changes with their reasons in a Delta table under the state path.

The table has one row per dead letter. The route, the key and the guard identify it, and its row as well if several rows
have the same key and guard. A redelivered micro-batch therefore adds no dead letter twice.

Columns: id, route, table, sink, key, guard, change_type, commit_version, row (JSON), code, reason, generation, batch,
state, created_at, closed_at.

States: ``open``; ``superseded`` by a later change of the key; ``redriven``; ``discarded`` by an operator; ``void``,
closed by a resync, which rewrote every key. A ``redriven`` dead letter is opened again if the sink refuses its change
again, or if the target has lost the redrive. ``created_at`` is then the time of that.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.delivery.dead_letter_table import DeadLetterTable
from cdf_replicator.delivery.letter_rows import letter_rows
from connectors import change, guard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from cdf_replicator.delivery import RejectedRow
    from cdf_replicator.route import Route
    from cdf_replicator.state.storage_path import StoragePath
    from connectors import Batch

LETTER_SCHEMA: Final = "key string, guard long, code string, reason string"
_REASON_LENGTH: Final = 2000
_OPENED_AGAIN: Final[dict[str, str | Column]] = {"state": "'open'", "created_at": "now()", "closed_at": "NULL"}

CloseReason = Literal["superseded", "redriven", "discarded", "void"]
"""Final state of a dead letter."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Known:
    """The summary of a route's dead letters in memory, so that a micro-batch need not read the table.

    Args:
        open: Number of open dead letters.
        keys: Keys whose dead letters a later change closes; None if they are too many for the memory.
        highest: Guard of the newest dead letter ever recorded; a change above it has no dead letter yet.
    """

    open: int = 0
    keys: frozenset[str] | None = frozenset()
    highest: int = -1

    def with_more(self, kept: int, refused: Collection[RejectedRow], most: int) -> Known:
        """Return the summary after ``kept`` of the ``refused`` changes became new dead letters."""
        named = {x.key for x in refused if x.key is not None and x.code != change.DUPLICATE_KEY}
        keys = None if self.keys is None else self.keys | named
        if keys is not None and len(keys) > most:
            keys = None
        return replace(self, open=self.open + kept, keys=keys, highest=max(self.highest, *(x.guard for x in refused)))


class DeadLetters:
    """The dead letters of all routes, in a table with one partition per route."""

    def __init__(self, spark: SparkSession, path: StoragePath) -> None:
        self._spark = spark
        self._table = DeadLetterTable(spark, path)

    def known(self, route: str, most: int) -> Known:
        """Read the summary of a route, with at most ``most`` keys; does not open a table without a folder of the route."""
        if not self._table.may_hold(route):
            return Known()
        closable = F.when(_is_open() & (F.col("code") != change.DUPLICATE_KEY), F.col("key"))
        closed_later = F.slice(F.collect_set(closable), 1, most + 1)
        summary = (F.count_if(_is_open()), F.max("guard"), closed_later, F.approx_count_distinct("file"))

        def read() -> Row | None:
            rows = self._table.frame().where(_of(route)).withColumn("file", F.input_file_name())
            return rows.agg(*summary).first()

        row = self._table.recovering(read)
        assert row is not None
        count, highest, keys, self._table.files[route] = row  # the next append compacts them if they are many
        return Known(count, frozenset(keys) if len(keys) <= most else None, -1 if highest is None else highest)

    def match_rejected(self, frame: DataFrame, letters: Iterable[RejectedRow]) -> DataFrame:
        """Return the rows of a change frame that ``letters`` name, with their ``code`` and ``reason``."""
        named = {(letter.key, letter.guard): letter for letter in letters}
        rows = [(x.key, x.guard, x.code, x.reason[:_REASON_LENGTH]) for x in named.values()]
        named_rows = F.broadcast(self._spark.createDataFrame(rows, LETTER_SCHEMA)).alias("letter")
        same = F.col("letter.key").eqNullSafe(F.col("rejected.key")) & (
            F.col("letter.guard") == F.col("rejected.guard")
        )
        return frame.alias("rejected").join(named_rows, same).select("rejected.*", "letter.code", "letter.reason")

    def add(self, rejected: DataFrame, route: Route, batch: Batch, new: bool = False, *, each_row: bool = False) -> int:
        """Record rows, with the ``code`` and ``reason`` of ``match_rejected``, as open dead letters; returns the number added.

        A redriven dead letter, and in a redrive or repair a discarded one, is opened again and counts as added, unless its key is null:
        such a row has no entry to lose. ``new`` is true if none of the rows exists; then Spark need not read the table.
        ``each_row`` is that of ``letter_rows``: true for an append sink.
        """
        closed = F.col("state").isin("redriven", *(["discarded"] if batch.request else [])) & F.col("key").isNotNull()
        letters = letter_rows(rejected, route, batch, each_row)

        def add() -> int:
            fresh, added, opened = letters, Observation(), 0
            if not new:
                known = self._table.frame().where(_of(route.name))
                if not known.where(closed).isEmpty():  # else Spark need not compute the rows once more
                    opened = self._open_again(known.where(closed).join(letters, "id", "left_semi"), route.name)
                fresh = letters.join(known.select("id"), "id", "left_anti")
            self._table.append(fresh.observe(added, F.count(F.lit(1)).alias("rows")), route.name)
            return int(added.get["rows"]) + opened

        added = self._table.recovering(add)
        self._table.compact(route.name)
        return added

    def open_lost(self, route: str, epoch: int, since: float) -> int:
        """Open the dead letters again whose redrive the target has lost; returns their number.

        ``since``, in epoch seconds, is the time of the first possible loss; 0 if it is unknown, for all of the epoch.
        """
        if not self._table.may_hold(route):
            return 0
        later = F.unix_micros("closed_at") >= int(since * 1e6)
        of_epoch = F.col("guard") >= guard_of(epoch, 0, upsert=False)
        lost = _of(route) & (F.col("state") == "redriven") & (later if since > 0 else of_epoch)
        return self._table.recovering(lambda: self._open_again(self._table.frame().where(lost), route))

    def _open_again(self, closed: DataFrame, route: str) -> int:
        """Open closed dead letters again; returns their number."""
        named, began = closed.select("id").localCheckpoint(), time.time()
        if opened := named.count():
            kept, same = self._table.delta().alias("kept"), f"kept.route = '{route}' AND kept.id = lost.id"
            kept.merge(named.alias("lost"), same).whenMatchedUpdate(set=_OPENED_AGAIN).execute()
            self._table.sync(route, began)
        return opened

    def close_superseded(self, route: str, delivered: Mapping[str, int]) -> None:
        """Close open dead letters of keys with a later delivered change; ``delivered`` maps keys to guards.

        Those of a key with several rows stay open, since the other rows may still exist: only a resync closes them.
        """
        guard = F.from_json(F.lit(json.dumps(delivered)), "map<string, long>")[F.col("key")]
        self.close(route, (F.col("code") != change.DUPLICATE_KEY) & (F.col("guard") < guard), "superseded")

    def close_superseded_of(self, route: str, delivered: DataFrame) -> None:
        """Close the same dead letters for the ``key`` and ``guard`` of any number of changes."""
        same = (F.col("kept.key") == F.col("new.key")) & (F.col("kept.code") != change.DUPLICATE_KEY)
        self._close_older(delivered, route, same & (F.col("kept.guard") < F.col("new.guard")), "superseded")

    def close_redriven(self, route: str, keys: DataFrame, guard: int, refused: Iterable[RejectedRow]) -> None:
        """Close the dead letters of keys, a null key included, up to ``guard``, the highest with which they were written.

        If the sink rejected the key's change too, its new dead letter stays open and the older dead letters are closed.
        """
        lowest = {letter.key: letter.guard for letter in sorted(refused, key=lambda letter: -letter.guard)}
        again = self._spark.createDataFrame(list(lowest.items()), "again string, refused long")
        written = keys.join(F.broadcast(again), F.col("key").eqNullSafe(F.col("again")), "left")
        newest = F.coalesce(F.col("refused") - 1, F.lit(guard))
        same = F.col("kept.key").eqNullSafe(F.col("new.key")) & (F.col("kept.guard") <= F.col("new.guard"))
        self._close_older(written.select("key", newest.alias("guard")), route, same, "redriven")

    def _close_older(self, newer: DataFrame, route: str, same: Column, state: CloseReason) -> None:
        ours = (F.col("kept.route") == route) & (F.col("kept.state") == "open")

        def merge() -> None:
            builder = self._table.delta().alias("kept").merge(newer.alias("new"), ours & same)
            builder.whenMatchedUpdate(set=_closed(state)).execute()

        self._table.recovering(merge)

    def close(self, route: str, which: Column, state: CloseReason) -> None:
        """Close the open dead letters of a route that match ``which``."""
        self._table.recovering(lambda: self._table.delta().update(_of(route) & _is_open() & which, _closed(state)))

    def open(self, route: str) -> DataFrame:
        """Return the open dead letters of a route."""
        return self._table.recovering(self._table.frame).where(_of(route) & _is_open())

    def read_open(self, route: str) -> DataFrame:
        """Return the open dead letters of a route for a command that must not recover a damaged table."""
        return self.read(lambda rows: rows.where(_of(route) & _is_open()))

    def count(self, route: str, which: Column) -> tuple[int, int]:
        """Return the number of the open dead letters of a route that match ``which``, and the number of all that match."""

        def count() -> tuple[int, int]:
            counts = F.count_if(_is_open()), F.count(F.lit(1))
            ((opened, all_),) = self._table.frame().where(_of(route) & which).agg(*counts).collect()
            return opened, all_

        return self._table.recovering(count)

    def read(self, work: Callable[[DataFrame], Result]) -> Result:
        """Return the result of ``work`` on all dead letters, open and closed; the service never removes any."""
        return self._table.naming(lambda: work(self._table.frame()))


def id_filter(ids: Iterable[str]) -> Column:
    """Return the condition that an id starts with one of ``ids``; it is always true if ``ids`` is empty."""
    named = [F.col("id").startswith(each) for each in ids]
    return reduce(lambda one, other: one | other, named, F.lit(not named))


def _of(route: str) -> Column:
    return F.col("route") == route


def _is_open() -> Column:
    return F.col("state") == "open"


def _closed(state: CloseReason) -> dict[str, str | Column]:
    return {"state": F.lit(state), "closed_at": F.current_timestamp()}
