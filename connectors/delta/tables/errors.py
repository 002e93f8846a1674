"""Classify Delta's errors: a conflict with another writer is retryable, an unfit column type or a constraint permanent."""

from __future__ import annotations

import re
from typing import Final

from connectors.errors import PermanentError, RetryableError

OVERTAKEN: Final = "cdf-replicator: another writer has written to a table that was empty"
"""The sink's MERGE into a table that was empty raises this text if it matches a row."""
_CONFLICTS: Final = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED", OVERTAKEN)
_TYPE_ERRORS: Final = (
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_MERGE_INCOMPATIBLE",
    "DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION",
    "DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP",
    "DELTA_ALTER_TABLE_CHANGE_COL",
    "CAST_OVERFLOW_IN_TABLE_INSERT",
)
_CONSTRAINT: Final = re.compile(r"DELTA_VIOLATE_CONSTRAINT\S*\] (CHECK constraint (\S+) .*?) violated", re.DOTALL)


def classified(error: Exception, path: str) -> Exception:
    """Return the sink error for an error of Delta; the error itself if its text names no known condition."""
    text = str(error)
    for name in _CONFLICTS:
        if name in text:
            return RetryableError("conflict", line(error, name))
    for name in _TYPE_ERRORS:
        if name in text:
            return unfit(path, line(error, name))
    if found := _CONSTRAINT.search(text):
        return PermanentError(  # the sinks create no constraints
            f"a constraint that another user put on the Delta table {path} refuses a row: {found[1]}.",
            f"Drop it: ALTER TABLE delta.`{path}` DROP CONSTRAINT {found[2]}. Then run: cdf-replicator resume {{route}}",
        )
    return error


def unfit(path: str, why: str) -> PermanentError:
    """Return the error for a column whose new type does not fit the table."""
    return PermanentError(
        f"the Delta table {path} can't take the changed type of a column: {why}.",
        "Move the table away or give the sink another PATH, then resync the route.",
    )


def line(error: Exception, named: str = "") -> str:
    """Return the first line of the error's text that holds a condition.

    The first line of a py4j error names only the call.

    Args:
        error: An error that Spark or Delta raised.
        named: The condition, as Delta spells it. Without it, the first line is returned.

    """
    lines = str(error).strip().splitlines() or ["no message"]
    return next((text for text in lines if named in text), lines[0]).strip()[:300]
