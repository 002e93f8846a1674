"""Compute the expected content of the sinks by engines that share no code with the service.

(a) Spark's own SELECT of the newest version; (b) the sum of the differences between consecutive snapshots; (c) a fold
of the change feed as ``deltalake`` reads it, another implementation of Delta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.oracle.table import Row, Table

REMOVALS = ("delete", "update_preimage")


def selected(table: Table) -> dict[int, Row]:
    frame = table.spark.read.format("delta").load(table.path)
    return {row["id"]: row.asDict(recursive=True) for row in frame.collect()}


def summed(table: Table, pinned: int) -> dict[int, Row]:
    """The snapshot at ``pinned`` and every difference after it."""
    state = dict(table.versions[pinned]) if pinned >= 0 else {}
    for before, after in zip(table.versions[max(pinned, 0) :], table.versions[max(pinned, 0) + 1 :], strict=False):
        for number in before.keys() - after.keys():
            del state[number]
        state.update({number: row for number, row in after.items() if before.get(number) != row})
    return state


def folded(feed: Iterable[Row], base: dict[int, Row], after: int) -> dict[int, Row]:
    """The changes of the versions after ``after``, oldest first; in one version removals first."""
    state = dict(base)
    newer = [change for change in feed if change["_commit_version"] > after]
    for change in sorted(newer, key=lambda one: (one["_commit_version"], one["_change_type"] not in REMOVALS)):
        if change["_change_type"] in REMOVALS:
            state.pop(change["id"], None)
        else:
            state[change["id"]] = {name: value for name, value in change.items() if not name.startswith("_c")}
    return state


def spark_feed(table: Table, first: int, last: int) -> list[Row]:
    reader = table.spark.read.format("delta").option("readChangeFeed", "true")
    frame = reader.option("startingVersion", first).option("endingVersion", last).load(table.path)
    return [row.asDict(recursive=True) for row in frame.drop("_commit_timestamp").collect()]


def other_feed(table: Table, first: int, last: int) -> list[Row]:
    reader = deltalake.DeltaTable(table.path).load_cdf(starting_version=first, ending_version=last)
    found = pa.RecordBatchReader.from_stream(reader).read_all()
    return found.drop_columns(["_commit_timestamp"]).to_pylist()
