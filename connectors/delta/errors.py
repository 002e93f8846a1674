"""What an error of Delta means to a sink: another writer was faster, or a column has become what its table can't hold."""

from __future__ import annotations

import re
from typing import Final

from connectors.errors import PermanentError, RetryableError

OVERTAKEN: Final = "cdf-replicator: somebody has written to a table that was empty"
"""Raised by a MERGE of ours."""
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
    """The error as a sink says it; itself where it is none of the sink's."""
    text = str(error)
    for name in _CONFLICTS:
        if name in text:
            return RetryableError("conflict", line(error, name))
    for name in _TYPE_ERRORS:
        if name in text:
            return unfit(path, line(error, name))
    if found := _CONSTRAINT.search(text):
        return PermanentError(  # no table of ours has one
            f"a constraint that another user put on the Delta table {path} refuses a row: {found[1]}.",
            f"Drop it: ALTER TABLE delta.`{path}` DROP CONSTRAINT {found[2]}. Then restart.",
        )
    return error


def unfit(path: str, why: str) -> PermanentError:
    """The table can't hold what a column has become."""
    return PermanentError(
        f"the Delta table {path} can't take the changed type of a column: {why}.",
        "Move the table away or give the sink another PATH, then resync the route.",
    )


def line(error: Exception, named: str = "") -> str:
    """Return the first line of the error's text that holds a condition.

    The first line of an error that py4j passes on names only the call.

    Args:
        error: Of Spark or Delta.
        named: The condition, as Delta spells it; any line will do without it.

    """
    lines = str(error).strip().splitlines() or ["no message"]
    return next((text for text in lines if named in text), lines[0]).strip()[:300]
