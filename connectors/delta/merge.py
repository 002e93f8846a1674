"""Merge changes into the table of a replica, and count what the table applied."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from connectors.change import CHANGE_TYPE, DELETES, GUARD, KEY, ROW, is_delete
from connectors.delta.tables import table
from connectors.delta.tables.errors import OVERTAKEN
from connectors.delta.tables.session import txn_session
from connectors.names import quote_identifier
from connectors.result import FrameResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from connectors.change import Batch

HELD_KEY: Final = "_cdf_key"
HELD_GUARD: Final = "_cdf_guard"
DELETED: Final = "_cdf_deleted"


def merge(changes: DataFrame, batch: Batch, path: str, app: str, *, soft_delete: bool) -> tuple[int, int]:
    """Merge in one commit; return the number of changed rows, and how many of them the merge deleted."""
    from pyspark.sql import functions as F  # noqa: N812

    held = table.schema_of(path)
    merge, columns = _merging(changes, batch, path, app, _same(), held), _columns(changes, held)
    # A row without a guard comes from another writer, and the change overwrites it.
    not_older = f"(held.{HELD_GUARD} IS NULL OR change.{GUARD} >= held.{HELD_GUARD})"
    if soft_delete and not batch.request:
        columns[quote_identifier(DELETED)] = F.col("change.deleted")
        merge = merge.whenMatchedUpdate(not_older, set=columns).whenNotMatchedInsert(values=columns)
    else:
        gone = f"change.deleted AND {not_older}"
        # The delete of a request has no content, so that a row that is kept keeps its own.
        marked: dict[str, str | Column] = {HELD_GUARD: F.col(f"change.{GUARD}"), DELETED: F.lit(True)}
        merge = merge.whenMatchedUpdate(gone, set=marked) if soft_delete else merge.whenMatchedDelete(gone)
        merge = merge.whenMatchedUpdate(f"NOT change.deleted AND {not_older}", set=columns)
        merge = merge.whenNotMatchedInsert("NOT change.deleted", values=columns)
    done = merge.execute().first()
    assert done is not None
    return done["num_affected_rows"], done["num_deleted_rows"]


def fill(snapshot: DataFrame, batch: Batch, path: str, app: str) -> int:
    """Insert a snapshot into a table that was found empty, and return the number of inserted rows.

    The MERGE has no clause for a matching row. It therefore fails if another writer has added a row of the same key since
    the check. The next attempt finds the table filled and merges in the ordinary way.
    """
    from pyspark.sql import functions as F  # noqa: N812

    passed_over = F.raise_error(F.concat_ws(" ", F.lit(f"{OVERTAKEN}: key"), F.col(f"held.{HELD_KEY}")))
    held = table.schema_of(path)
    merge = _merging(snapshot, batch, path, app, _same() & passed_over.isNull(), held)
    done = merge.whenNotMatchedInsert(values=_columns(snapshot, held)).execute().first()
    assert done is not None
    return int(done["num_inserted_rows"])


def _merging(changes: DataFrame, batch: Batch, path: str, app: str, on: Column, held: StructType) -> DeltaMergeBuilder:
    """Return a MERGE of ``change`` into ``held`` that records the batch's transaction.

    The rows get the struct layout of the table, since MERGE refuses structs with other fields.
    """
    from delta.tables import DeltaTable
    from pyspark.sql import functions as F  # noqa: N812

    from connectors.delta.tables import shape

    writer = txn_session(changes.sparkSession, app, batch.txn_version)
    given = changes.select(f"{ROW}.*").schema
    row = shape.shaped(F.col(ROW), given, shape.fitted(given, held)).alias(ROW)
    rows = changes.select(KEY, GUARD, is_delete().alias("deleted"), row).alias("change")
    return DeltaTable.forPath(writer, path).alias("held").merge(rows, on)


def _same() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(f"held.{HELD_KEY}") == F.col(f"change.{KEY}")


def count(changes: DataFrame) -> tuple[Counter[str], int]:
    """Count the changes by type and return the counts and the lowest guard. This action fills the cache."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = changes.groupBy(CHANGE_TYPE).agg(F.count("*"), F.min(GUARD)).collect()
    return Counter({row[0]: row[1] for row in counts}), min((row[2] for row in counts), default=0)


def _columns(changes: DataFrame, held: StructType) -> dict[str, str | Column]:
    """Return a value for every column of the table; null if the changes lack the column."""
    from pyspark.sql import functions as F  # noqa: N812

    given = {name.lower(): name for name in changes.select(f"{ROW}.*").columns}
    own = {HELD_KEY: F.col(f"change.{KEY}"), HELD_GUARD: F.col(f"change.{GUARD}"), DELETED: F.lit(False)}
    columns: dict[str, str | Column] = {}
    for name in held.fieldNames():
        source = given.get(name.lower())
        value = F.lit(None) if source is None else F.col(f"change.{ROW}.{quote_identifier(source)}")
        columns[quote_identifier(name)] = own.get(name, value)
    return columns


def partly_applied(changes: DataFrame, given: Mapping[str, int], deleted: int, path: str) -> FrameResult:
    """Return the outcome of a batch that the table applied in part, by comparing guards with the table's rows."""
    from pyspark.sql import functions as F  # noqa: N812

    held = changes.sparkSession.read.format("delta").load(path)
    both = changes.join(held.select(HELD_KEY, HELD_GUARD), F.col(KEY) == F.col(HELD_KEY), "left")
    both = both.dropDuplicates([KEY])  # another writer may have copied a row
    taken, absent = F.col(GUARD) == F.col(HELD_GUARD), F.col(HELD_KEY).isNull() & is_delete()
    counts = both.groupBy(CHANGE_TYPE).agg(F.count_if(taken), F.count_if(absent)).collect()
    applied = Counter({row[0]: row[1] + row[2] for row in counts})
    stale = sum(given.values()) - sum(applied.values())
    noop = left = max(0, sum(row[2] for row in counts) - deleted)
    for kind in DELETES:  # Delta does not report which of the absent keys existed before the MERGE
        fewer = min(left, applied[kind])
        applied[kind] -= fewer
        left -= fewer
    return FrameResult(applied, stale, noop=noop)


def repeated(changes: DataFrame, path: str) -> FrameResult:
    """Return the outcome of a command whose transaction the table already has, by comparing guards with the table's rows.

    The outcome of its first write may have been lost before the service recorded which dead letters it closes.
    """
    given, _ = count(changes)
    return partly_applied(changes, given, 0, path)
