"""Identify the writes of a route to a Delta table, record a transaction, and compute when a recorded job is due.

In Delta 4.4 a MERGE takes ``txnAppId`` and ``txnVersion`` from its session (``session.txn_session``). Delta drops it without
an error if the table has recorded that version.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.tables import table
from connectors.delta.tables.session import session
from connectors.delta.tables.snapshot import Snapshot, last_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from connectors.change import Batch, RouteSpec

_MINUTE: Final = 60


def application(route: RouteSpec, path: str, request: str = "") -> str:
    """Return the ``txnAppId`` of a route's writes to a table.

    ``txnVersion`` contains the generation, so that Delta drops a write of an older generation. Each state path (the owner)
    counts its own generations, and each request its own batches. The identifier therefore contains the owner and the request.
    """
    suffix = f":{request}" if request else ""
    return f"cdf-replicator:{route.owner}:{route.name}:{path}{suffix}"


def of_batch(batch: Batch, path: str, newest: Snapshot) -> tuple[str, int] | None:
    """Return the ``txnAppId`` and the ``txnVersion`` of a batch's write; None if the table has recorded it.

    A replay outside of the generation's sequence of batches has no number, and is always written.
    """
    app = application(batch.route, path, batch.request)
    if batch.may_exist and not batch.number:
        app = f"{app}:outside"
        return app, newest.last_txn_version(app) + 1
    return None if newest.last_txn_version(app) >= batch.txn_version else (app, batch.txn_version)


def append(rows: DataFrame, path: str, app: str, version: int, read: Snapshot | None = None) -> bool:
    """Append rows in a commit that records a transaction; return False if the table has recorded it before.

    This is the transaction of Delta's streaming sink. For ``txnAppId`` of a ``DataFrameWriter``, Delta reconstructs the state
    of the table with a Spark job, which takes more than twice the processor time of a small append.

    Args:
        rows: The rows, with the columns of the table.
        path: The table.
        app: The ``txnAppId``.
        version: The ``txnVersion``.
        read: The snapshot of the table that ``rows`` depend on. The append then conflicts with every later commit that adds or
            removes rows.

    """
    return _commit(path, app, version, rows, read)


def record_txn(path: str, app: str, version: int, read: Snapshot | None = None) -> None:
    """Commit a transaction without rows, unless the table has recorded it. For ``read``, see ``append``."""
    _commit(path, app, version, None, read)


def _commit(path: str, app: str, version: int, rows: DataFrame | None, read: Snapshot | None) -> bool:
    """Commit a transaction.

    The commit depends on the transactions of the application. If another process records one of them after the check here,
    Delta raises DELTA_CONCURRENT_TRANSACTION.
    """
    jvm: Any = session()._jvm
    none = getattr(jvm, "scala.Option").empty()
    log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(session()._jsparkSession, path)
    transaction = log.startTransaction(none, none if read is None else read.pinned())
    if read is not None:
        transaction.readWholeTable()
    if last_version(transaction.snapshot(), app) >= version:
        return False
    transaction.readTxn().append(app)
    now = getattr(jvm, "scala.Option").apply(int(time.time() * 1000))
    actions = getattr(jvm, "scala.collection.mutable.ArrayBuffer")()
    actions.append(getattr(jvm, "org.apache.spark.sql.delta.actions.SetTransaction")(app, version, now))
    if rows is not None:
        actions.addAll(transaction.writeFiles(rows._jdf))
    mode = getattr(jvm, "org.apache.spark.sql.streaming.OutputMode").Append()
    update = getattr(jvm, "org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")(mode, app, version, none)
    transaction.commit(actions.toSeq(), update)
    return True


def next_run_at(path: str, what: str, seconds: float) -> float:
    """Return the time at which a job is due again, in epoch seconds; in a minute if the table does not exist.

    Args:
        path: The table that records the job's last run.
        what: The ``txnAppId`` of the job.
        seconds: The time between two runs.

    """
    if not table.exists(path):
        return time.time() + _MINUTE
    return Snapshot(path).last_txn_version(what) + seconds
