"""Detect commits of another writer that remove acknowledged rows: RESTORE, CLONE, TRUNCATE, overwrite.

A DELETE with a condition is allowed: operators remove old or private rows by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connectors.delta.tables import table

if TYPE_CHECKING:
    from collections.abc import Mapping

COPIES: Final = ("RESTORE", "CLONE")
"""Operations by which a table gets the rows of an older version or of another table."""
HELD_GUARD: Final = "_cdf_guard"
_WHOLE: Final = (
    "TRUNCATE",
    "CREATE OR REPLACE TABLE",
    "REPLACE TABLE",
    "CREATE OR REPLACE TABLE AS SELECT",
    "REPLACE TABLE AS SELECT",
)
_NO_CONDITION: Final = ("None", "[]", '["true"]')
_OURS: Final = "cdf-replicator:"
"""The prefix of the sinks' ``txnAppId``. The commit of a sweep has none, but its condition names the guard."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the log.

    ``transactions`` are by ``txnAppId``. ``takes_back`` is true if another writer removed acknowledged rows with it.
    """

    version: int
    operation: str
    transactions: Mapping[str, int]
    takes_back: bool


def read(path: str, version: int) -> Commit | None:
    """Read a commit; return None if log cleanup has removed it."""
    text = table.commit_text(path, version)
    if text is None:
        return None
    actions = [json.loads(line) for line in text.split("\n") if line]  # a value may hold a separator of Unicode
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    transactions = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    ours = any(app.startswith(_OURS) for app in transactions) or HELD_GUARD in str(info.get("operationParameters"))
    operation = str(info.get("operation"))
    removes = any(action.get("remove", {}).get("dataChange") for action in actions)
    takes_back = operation in COPIES or (removes and _is_of_every_row(operation, info))
    return Commit(version, operation, transactions, takes_back and not ours)


def _is_of_every_row(operation: str, info: dict[str, Any]) -> bool:
    given = info.get("operationParameters") or {}
    overwrites = operation == "DELETE" or (operation == "WRITE" and given.get("mode") == "Overwrite")
    return operation in _WHOLE or (overwrites and str(given.get("predicate")) in _NO_CONDITION)


def taken_back(path: str, since: int, until: int) -> Commit | None:
    """Return the newest commit that removed acknowledged rows, after version ``since`` and up to version ``until``."""
    commits = (read(path, version) for version in range(until, since, -1))
    return next((commit for commit in commits if commit is not None and commit.takes_back), None)


def taken_back_since(path: str, app: str, known: int, until: int) -> Commit | None:
    """Return the newest commit that removed acknowledged rows, after the last micro-batch of an application.

    Args:
        path: The table.
        app: The ``txnAppId`` of the micro-batches. That of a request begins with it, but the commit of a request may follow
            a removal that nothing has detected yet.
        known: The last transaction whose micro-batch Spark committed, -1 if unknown. A later transaction may follow the
            removal: the check of the watermark then stopped Spark from committing its micro-batch.
        until: The newest version to read.

    """
    for version in range(until, -1, -1):
        commit = read(path, version)
        if commit is None:
            return None
        number = commit.transactions.get(app)
        if number is not None and (known < 0 or number <= known):
            return None
        if commit.takes_back:
            return commit
    return None
