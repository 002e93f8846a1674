"""Writes what dead letters are about once more: the key's present row, or its delete, never the letter's own row.

So a letter can't bring back a deleted key, and one whose row was mended in the source is settled (design rule 17). What is
refused again is a letter of its own, of the present row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cdf_replicator.delivery.dead_letters import of_ids
from cdf_replicator.errors.exceptions import HaltError
from connectors import change, guard_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from cdf_replicator.pipeline.batch_writer import Delivering
    from connectors import Batch


def redrive(rows: DataFrame, version: int, delivering: Delivering, batch: Batch, ids: Sequence[str]) -> str:
    """Of the open letters whose ids begin with these, or all; returns what was done, in words.

    ``rows``: the change frame of the source's snapshot at its newest ``version``. What is written has the guard of that version:
    what the stream has yet to deliver of these keys up to it is stale then, and what comes later wins. Raises ``HaltError``, and
    what a delivery does.
    """
    route, letters = delivering.route, delivering.rejections.letters
    if delivering.sink.mode == "append":
        raise HaltError(
            "bad_request",
            f"Sink {route.sink} keeps every change: there is no present row that could take a refused one's place.",
            f"Deliver its version again: cdf-replicator replay {route.name} --starting-version N --ending-version N",
        )
    asked = letters.open(route.name).where(of_ids(ids)).select(change.KEY).distinct().localCheckpoint()
    outcome = delivering.write(_present(rows, asked, batch.route.epoch, version), batch)
    newest = guard_of(batch.route.epoch, version, upsert=True)
    letters.close_redriven(route.name, asked, newest, outcome.letters)
    delivering.rejections.count_letters()
    refused = len({letter.key for letter in outcome.letters})
    return f"{asked.count()} keys written as of version {version}, {refused} of them refused again"


def _present(rows: DataFrame, asked: DataFrame, epoch: int, version: int) -> DataFrame:
    """The rows of these keys, those without a key if that was asked for; a delete of each key that has no row."""
    same = F.col(f"change.{change.KEY}").eqNullSafe(F.col(f"asked.{change.KEY}"))
    present = rows.alias("change").join(F.broadcast(asked).alias("asked"), same, "semi")
    gone = asked.where(F.col(change.KEY).isNotNull()).join(present.select(change.KEY), change.KEY, "anti")
    row = rows.schema[change.ROW].dataType
    assert isinstance(row, StructType)
    nothing = F.struct(*(F.lit(None).cast(field.dataType).alias(field.name) for field in row.fields))
    deletes = gone.withColumns(
        {
            change.ROW: nothing,
            change.GUARD: F.lit(guard_of(epoch, version, upsert=False)),
            change.CHANGE_TYPE: F.lit("delete"),
            change.COMMIT_VERSION: F.lit(version).cast("long"),
        }
    )
    return present.unionByName(deletes, allowMissingColumns=True)
