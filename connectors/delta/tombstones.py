"""Keep the guards of a replica's deleted keys in a separate table, so that an older upsert does not revive a key."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from connectors.change import GUARD, KEY, is_delete
from connectors.delta.tables import schema as delta_schema
from connectors.delta.tables import table, transactions
from connectors.delta.tables.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from connectors.change import Batch

_COLUMNS: Final = "key string, guard bigint, deleted_at timestamp"
_FORGOTTEN: Final = "cdf-replicator:tombstones"
_HOUR: Final = 3600


def prepare(path: str) -> None:
    if not table.exists(path):
        remembered = session().createDataFrame([], _COLUMNS).schema
        delta_schema.create(path, remembered, **{"delta.enableChangeDataFeed": "false"})
        transactions.record_txn(path, _FORGOTTEN, int(time.time()))


def append(deleted: DataFrame, batch: Batch, path: str) -> None:
    """Append a tombstone for each deleted key, as a transaction of the batch."""
    now = table.non_constant(datetime.now(timezone.utc).isoformat(), KEY).cast("timestamp")
    app = transactions.application(batch.route, path, batch.request)
    transactions.append(deleted.select(KEY, GUARD, now.alias("deleted_at")), path, app, batch.txn_version)


def newer(path: str, guard: int) -> DataFrame:
    """Return the tombstones above a guard.

    A batch has higher guards than the batches before it. Delta's file statistics therefore skip nearly every file.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return session().read.format("delta").load(path).where(F.col(GUARD) > guard)


def drop_stale(changes: DataFrame, among: DataFrame) -> DataFrame:
    """Return the changes without the upserts whose key has a tombstone of a higher guard."""
    from pyspark.sql import functions as F  # noqa: N812

    same = F.col("change.key") == F.col("tombstone.key")
    beaten = same & (F.col("change.guard") < F.col("tombstone.guard")) & ~is_delete("change.change_type")
    return changes.alias("change").join(among.alias("tombstone"), beaten, "left_anti")


def highest(path: str) -> int:
    """Return the highest guard; 0 without a tombstone or a table."""
    from pyspark.sql import functions as F  # noqa: N812

    if not table.exists(path):
        return 0
    newest = session().read.format("delta").load(path).agg(F.max(GUARD)).first()
    return int((newest and newest[0]) or 0)


def sweep(path: str, below_guard: int) -> None:
    session().sql(f"DELETE FROM {table.identifier(path)} WHERE {GUARD} < {below_guard}")  # noqa: S608 - a number


def next_forgetting(path: str, seconds: int) -> float:
    return transactions.next_run_at(path, _FORGOTTEN, max(_HOUR, seconds))


def purge(path: str, seconds: int) -> None:
    """Remove the tombstones older than ``seconds``, and compact the table."""
    from delta.tables import DeltaTable

    started = int(time.time())
    DeltaTable.forPath(session(), path).delete(f"deleted_at < current_timestamp() - INTERVAL {seconds} SECONDS")
    session().sql(f"OPTIMIZE {table.identifier(path)}")
    transactions.record_txn(path, _FORGOTTEN, started)
