"""Read the log of a Delta table at its newest version: properties, transactions, files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.tables.session import session

if TYPE_CHECKING:
    from collections.abc import Mapping

_SMALL_BYTES: Final = 64 * 2**20


class Snapshot:
    """The version of a table that was the newest when this object was made."""

    def __init__(self, path: str) -> None:
        """Update the log of the table once.

        Delta reads the log with the active session of the calling thread if a checkpoint has format v2, or if a kill
        prevented the checksum of the last commit. A Python thread has no active session until Spark has planned a query in it.
        """
        spark = session()
        jvm: Any = spark._jvm
        active = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
        if not active.getActiveSession().isDefined():
            active.setActiveSession(spark._jsparkSession)
        none = getattr(jvm, "scala.Option").empty()
        log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)
        self._java = log.update(False, none, none)

    def pinned(self) -> Any:
        """Return Delta's snapshot as a Scala option, for a transaction that begins at this version."""
        option: Any = getattr(session()._jvm, "scala.Option")
        return option.apply(self._java)

    @property
    def version(self) -> int:
        return int(self._java.version())

    @property
    def properties(self) -> Mapping[str, str]:
        held: dict[str, str] = json.loads(self._java.metadata().json())["metaData"]["configuration"]
        return held

    def last_txn_version(self, app: str) -> int:
        """Return the last ``txnVersion`` that the table holds for an application; -1 without any.

        The sinks compare it before a write. Delta drops a repeated MERGE without an error, and then reports no row counts.
        """
        return last_version(self._java, app)

    def is_empty(self) -> bool:
        """Return whether the table has no file, by the checksum of the last commit; without a checksum by the whole log."""
        checksum = self._java.checksumOpt()
        return int(checksum.get().numFiles() if checksum.isDefined() else self._java.numOfFiles()) == 0

    def small_files(self) -> int:
        """Return the number of files that compaction would remove: the small files, less one file per partition."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F  # noqa: N812

        files = DataFrame(self._java.allFiles().toDF(), session()).where(F.col("size") < _SMALL_BYTES)
        partitions = files.groupBy(F.to_json("partitionValues")).agg((F.count("*") - 1).alias("surplus"))
        found = partitions.agg(F.sum("surplus")).first()
        return int((found and found[0]) or 0)


def last_version(snapshot: Any, app: str) -> int:
    """Return the last ``txnVersion`` that a snapshot of Delta holds for an application; -1 without any.

    The checksum of the commit has the transactions, if the writers of the table keep them there and they are at most a
    hundred. Without it, Delta reconstructs the state of the table with a Spark job.
    """
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    if not known.isDefined():
        version = snapshot.transactions().get(app)
        return int(version.get()) if version.isDefined() else -1
    recorded = known.get().iterator()
    while recorded.hasNext():
        transaction = recorded.next()
        if transaction.appId() == app:
            return int(transaction.version())
    return -1
