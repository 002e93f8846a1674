"""Redrive dead letters and repair entries: write the present row of each key, or a delete if the key has no row.

A redrive never writes the row that the dead letter keeps, and therefore can't restore a deleted key. If the row was
corrected in the source table, the dead letter is closed. A row that the sink rejects again becomes a dead letter of the
present row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from cdf_replicator.delivery.dead_letters import id_filter
from cdf_replicator.errors.exceptions import RouteHaltError
from connectors import Repairable, change, guard_of
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from cdf_replicator.delivery import DeliveryResult
    from cdf_replicator.pipeline.batch_writer import BatchWriter
    from connectors import Batch


def redrive(rows: DataFrame, version: int, writer: BatchWriter, batch: Batch, ids: Sequence[str]) -> str:
    """Redrive the open dead letters whose ids start with one of ``ids``, or all; returns a sentence for the operator.

    Raises ``RouteHaltError`` and the errors of a delivery.

    Args:
        rows: The change frame of the source table's newest snapshot.
        version: The version of that snapshot.
        writer: The route's delivery.
        batch: The identity under which the rows are written.
        ids: Starts of the ids of dead letters; empty for all.
    """
    route = writer.route
    if writer.sink.mode == "append":
        raise RouteHaltError(
            "bad_request",
            f"Sink {route.sink} keeps every change: a present row can't replace a refused change.",
            f"Deliver its version again: cdf-replicator replay {route.name} --starting-version N --ending-version N",
        )
    letters = writer.rejections.dead_letters.open(route.name).where(id_filter(ids))
    keys = letters.select(change.KEY).distinct().localCheckpoint()
    outcome = write_present(rows, keys, version, writer, batch)
    done = f"{keys.count()} keys written as of version {version}, {_refused(outcome)} of them refused again"
    return f"{done}, {outcome.stale} with a higher guard" if outcome.stale else done


def repair(rows: DataFrame, version: int, writer: BatchWriter, batch: Batch, identities: Sequence[str]) -> str:
    """Write the entries of a target again that ``verify`` found different; returns a sentence for the operator.

    The present rows have the identities of their entries. An entry without a present row is deleted by its key text, if a
    key has this identity. Raises ``RouteHaltError`` and the errors of a delivery.

    Args:
        rows: The change frame of the source table's newest snapshot.
        version: The version of that snapshot.
        writer: The route's delivery.
        batch: The identity under which the rows are written.
        identities: The identities of the entries.
    """
    sink, spec = writer.sink, batch.route
    if not isinstance(sink, Repairable):
        raise RouteHaltError(
            "bad_request",
            f"Sink {writer.route.sink} has no entries that can be repaired.",
            f"Rebuild the target: cdf-replicator resync {writer.route.name}",
        )
    entries = rows.sparkSession.createDataFrame([(each,) for each in identities], f"{IDENTITY} string")
    identity = sink.identity(spec)
    present = rows.select(change.KEY, identity.alias(IDENTITY)).join(F.broadcast(entries), IDENTITY, "left_semi")
    absent = entries.join(present, IDENTITY, "left_anti").select(sink.key(spec).alias(change.KEY), IDENTITY)
    keys = present.unionByName(absent.where(identity == F.col(IDENTITY))).select(change.KEY).distinct()
    keys = keys.localCheckpoint()
    writer.rejections.is_repair = True
    outcome, written = write_present(rows, keys, version, writer, batch), keys.count()
    left = {
        "refused by the sink": _refused(outcome),
        "with a higher guard": outcome.stale,
        "with an unknown key": len(identities) - written,
    }
    parts = [f"{number} {what}" for what, number in left.items() if number]
    return ", ".join([f"{written} entries written as of version {version}", *parts])


def write_present(rows: DataFrame, keys: DataFrame, version: int, writer: BatchWriter, batch: Batch) -> DeliveryResult:
    """Write the present rows of the keys, and close the dead letters of these keys.

    The entries get the guard of the snapshot's version. Undelivered changes up to that version are then stale;
    later changes win. If a write is stale, the dead letters of all keys with a present row stay open. They stay open too if
    the sink already held the batch, since what it then wrote is not known.
    """
    outcome = writer.write(_present(rows, keys, batch.route.epoch, version), batch)
    rejections = writer.rejections
    # The sink does not name the stale keys: any key with a present row may still be absent.
    if outcome.stale or outcome.skipped:
        keys = keys.join(rows.select(change.KEY), change.KEY, "left_anti")
    if rejections.known.open:
        newest = guard_of(batch.route.epoch, version + 1, upsert=False)  # of a delete; above that of a present row
        rejections.dead_letters.close_redriven(writer.route.name, keys, newest, outcome.letters)
        rejections.count_letters()
    return outcome


def _refused(outcome: DeliveryResult) -> int:
    return len({letter.key for letter in outcome.letters})


def _present(rows: DataFrame, keys: DataFrame, epoch: int, version: int) -> DataFrame:
    """Return the present rows of the keys, a null key included, and a delete for each key without a row.

    A delete has the guard of the next version's delete, since it must replace an entry that another writer wrote with the
    guard of an upsert of ``version``. An upsert of the next version still replaces the delete.
    """
    same = F.col(f"change.{change.KEY}").eqNullSafe(F.col(f"key.{change.KEY}"))
    present = rows.alias("change").join(F.broadcast(keys).alias("key"), same, "semi")
    gone = keys.where(F.col(change.KEY).isNotNull()).join(present.select(change.KEY), change.KEY, "anti")
    row = rows.schema[change.ROW].dataType
    assert isinstance(row, StructType)
    nothing = F.struct(*(F.lit(None).cast(field.dataType).alias(field.name) for field in row.fields))
    deletes = gone.withColumns(
        {
            change.ROW: nothing,
            change.GUARD: F.lit(guard_of(epoch, version + 1, upsert=False)),
            change.CHANGE_TYPE: F.lit("delete"),
            change.COMMIT_VERSION: F.lit(version).cast("long"),
        }
    )
    return present.unionByName(deletes, allowMissingColumns=True)
