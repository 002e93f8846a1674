"""What an error of Delta means to a sink: another writer was faster, or a column has become what its table can't hold."""

from __future__ import annotations

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


def classified(error: Exception, path: str) -> Exception:
    """The error as a sink says it; itself where it is none of the sink's."""
    text = str(error)
    if any(name in text for name in _CONFLICTS):
        return RetryableError("conflict", line(error))
    if any(name in text for name in _TYPE_ERRORS):
        return unfit(path, line(error))
    return error


def unfit(path: str, why: str) -> PermanentError:
    """The table can't hold what a column has become."""
    return PermanentError(
        f"the Delta table {path} can't take the changed type of a column: {why}.",
        "Move the table away or give the sink another PATH, then resync the route.",
    )


def line(error: Exception) -> str:
    """The first line of its text."""
    return (str(error).strip().splitlines() or ["no message"])[0][:300]
