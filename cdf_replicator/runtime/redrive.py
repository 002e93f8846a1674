"""Redrive dead letters: write the present row of their keys, or a delete, never the row that the dead letter keeps.

A redrive therefore can't restore a deleted key. If the row was corrected in the source table, the redrive closes the
dead letter. A row that the sink rejects again becomes a dead letter of the present row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cdf_replicator.delivery.dead_letters import id_filter
from cdf_replicator.errors.exceptions import RouteHaltError
from connectors import change, guard_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from cdf_replicator.pipeline.batch_writer import BatchWriter
    from connectors import Batch


def redrive(rows: DataFrame, version: int, writer: BatchWriter, batch: Batch, ids: Sequence[str]) -> str:
    """Redrive the open dead letters whose ids start with one of ``ids``, or all; returns a sentence for the operator.

    The entries get the guard of the snapshot's version. Undelivered changes up to that version are then stale;
    later changes win. Raises ``RouteHaltError`` and the errors of a delivery.

    Args:
        rows: The change frame of the source table's newest snapshot.
        version: The version of that snapshot.
        writer: The route's delivery.
        batch: The identity under which the rows are written.
        ids: Starts of the ids of dead letters; empty for all.
    """
    route, dead_letters = writer.route, writer.rejections.dead_letters
    if writer.sink.mode == "append":
        raise RouteHaltError(
            "bad_request",
            f"Sink {route.sink} keeps every change: a present row can't replace a refused change.",
            f"Deliver its version again: cdf-replicator replay {route.name} --starting-version N --ending-version N",
        )
    keys = dead_letters.open(route.name).where(id_filter(ids)).select(change.KEY).distinct().localCheckpoint()
    outcome = writer.write(_present(rows, keys, batch.route.epoch, version), batch)
    newest = guard_of(batch.route.epoch, version, upsert=True)
    dead_letters.close_redriven(route.name, keys, newest, outcome.letters)
    writer.rejections.count_letters()
    refused = len({letter.key for letter in outcome.letters})
    return f"{keys.count()} keys written as of version {version}, {refused} of them refused again"


def _present(rows: DataFrame, keys: DataFrame, epoch: int, version: int) -> DataFrame:
    """Return the present rows of the keys, a null key included, and a delete for each key without a row."""
    same = F.col(f"change.{change.KEY}").eqNullSafe(F.col(f"key.{change.KEY}"))
    present = rows.alias("change").join(F.broadcast(keys).alias("key"), same, "semi")
    gone = keys.where(F.col(change.KEY).isNotNull()).join(present.select(change.KEY), change.KEY, "anti")
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
