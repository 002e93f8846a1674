"""Commits of another writer: a RESTORE, a TRUNCATE or an overwrite takes back what the sink has acknowledged.

A DELETE with a condition does not: an operator removes old or private rows by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connectors.delta import table

if TYPE_CHECKING:
    from collections.abc import Mapping

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
"""With it begins the ``txnAppId`` of our batches. A sweep of ours is none, and compares guards."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One of the log. ``transactions``: by ``txnAppId``. ``takes_back``: it is none of ours, and removes rows."""

    version: int
    operation: str
    transactions: Mapping[str, int]
    takes_back: bool


def read(path: str, version: int) -> Commit | None:
    """Return None where log cleanup has removed it."""
    text = table.commit_text(path, version)
    if text is None:
        return None
    actions = [json.loads(line) for line in text.splitlines() if line]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    transactions = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    ours = any(app.startswith(_OURS) for app in transactions) or HELD_GUARD in str(info.get("operationParameters"))
    operation = str(info.get("operation"))
    removes = any(action.get("remove", {}).get("dataChange") for action in actions)
    takes_back = operation == "RESTORE" or (removes and _is_of_every_row(operation, info))
    return Commit(version, operation, transactions, takes_back and not ours)


def _is_of_every_row(operation: str, info: dict[str, Any]) -> bool:
    given = info.get("operationParameters") or {}
    overwrites = operation == "DELETE" or (operation == "WRITE" and given.get("mode") == "Overwrite")
    return operation in _WHOLE or (overwrites and str(given.get("predicate")) in _NO_CONDITION)


def taken_back(path: str, since: int, until: int) -> Commit | None:
    """Return the newest commit that takes rows back, after a version and up to another one."""
    commits = (read(path, version) for version in range(until, since, -1))
    return next((commit for commit in commits if commit is not None and commit.takes_back), None)


def taken_back_since(path: str, app: str, known: int, until: int) -> Commit | None:
    """As ``taken_back``, after the last transaction of an application, or of a request to it.

    ``known``: the transaction that Spark has committed last, -1 if that is not known. A later one may have been written after
    the commit that is looked for: the mark that followed it has then kept Spark from committing it.
    """
    for version in range(until, -1, -1):
        commit = read(path, version)
        if commit is None:
            return None
        ours = {name: number for name, number in commit.transactions.items() if name.startswith(app)}
        if ours and (known < 0 or ours.get(app, known) <= known):
            return None
        if commit.takes_back:
            return commit
    return None
