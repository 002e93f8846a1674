"""Identify the writes of a route to a Delta table, record a transaction, and compute when a recorded job is due.

In Delta 4.4 a MERGE takes ``txnAppId`` and ``txnVersion`` from its session (``session.txn_session``). Delta drops it without
an error if the table has recorded that version. An append without rows records the transaction too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.tables import schema, table
from connectors.delta.tables.session import session
from connectors.delta.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import Observation

    from connectors.change import RouteSpec

_MINUTE: Final = 60


def application(route: RouteSpec, path: str, request: str = "") -> str:
    """Return the ``txnAppId`` of a route's writes to a table.

    ``txnVersion`` contains the generation, so that Delta drops a write of an older generation. Each state path (the owner)
    counts its own generations, and each request its own batches. The identifier therefore contains the owner and the request.
    """
    suffix = f":{request}" if request else ""
    return f"cdf-replicator:{route.owner}:{route.name}:{path}{suffix}"


def observed(counted: Observation, seconds: float) -> dict[str, Any] | None:
    """Return the counts of a write that has ended; None if Delta dropped the write, which then read no row.

    A listener thread of Spark delivers the counts, sometimes after the end of the write. It delivers none for a dropped write.

    Args:
        counted: The observation of the frame that was written.
        seconds: The longest wait for the counts.

    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = session()._jvm
    handed_on = counted._jo.future()  # type: ignore[union-attr]
    try:
        jvm.scala.concurrent.Await.ready(handed_on, jvm.scala.concurrent.duration.Duration.create(f"{seconds} seconds"))
    except Py4JJavaError:
        if not handed_on.isCompleted():
            return None
        raise
    return counted.get


def record_txn(path: str, app: str, version: int) -> None:
    """Commit a transaction without rows."""
    schema.append(schema.empty(table.schema_of(path)), path, {"txnAppId": app, "txnVersion": version})


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
