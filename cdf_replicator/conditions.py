"""What each error means for a route: the error-condition table, as data.

Spark and Delta name their errors (``[DELTA_...]`` in the text; the Python class says little). Source of the table:
the error conditions of Delta 4.4 and what was seen when they were provoked. Rows are tried from the top.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from cdf_replicator.state import StateError
from connectors import PermanentError, RetryableError

Action = Literal["restart", "wait", "retry_then_halt", "halt"]
"""restart: now, the stream is rebuilt. wait: back off for as long as it takes. retry_then_halt: a few times first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason``: a metric label. ``what``: the error in one line. ``next_step``: for the operator, never empty.

    ``of_sink``: it is the sink that is away or refuses us.
    """

    action: Action
    reason: str
    what: str
    next_step: str
    of_sink: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """``pattern``: searched in the error's text."""

    pattern: str
    action: Action
    reason: str
    next_step: str


class HaltError(Exception):
    """The service itself stops a route: ``reason`` is a metric label, ``next_step`` what to do."""

    def __init__(self, reason: str, what: str, next_step: str) -> None:
        super().__init__(f"{what} {next_step}")
        self.verdict = Verdict("halt", reason, what, next_step)


class DimensionError(Exception):
    """A table that a route joins can't be read, or has changed: what the table of conditions says of it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


RESYNC: Final = "Run: cdf-replicator resync {route}"

TABLE: Final = (
    Condition("DELTA_STREAMING_METADATA_EVOLUTION", "restart", "schema_change", "Nothing: the stream continues."),
    Condition(
        "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",
        "halt",
        "schema_change",
        "A column was renamed, dropped or retyped. Approve it with the option the error names, by "
        "CDF_SPARK__CONF, then restart.",
    ),
    Condition("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE", "halt", "schema_change", RESYNC),
    Condition(
        "DELTA_SCHEMA_CHANGED",
        "retry_then_halt",
        "schema_change",
        "Nothing: the route starts again with the new schema. If it halts instead, run: cdf-replicator resync {route}",
    ),
    Condition("DELTA_STREAMING_SCHEMA_(LOG|LOCATION)", "halt", "schema_change", RESYNC),
    Condition("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE", "halt", "table_replaced", RESYNC),
    Condition(
        "DELTA_MISSING_CHANGE_DATA",
        "halt",
        "change_feed_off",
        "Enable it: ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true). Then " + RESYNC,
    ),
    Condition("DELTA_STREAMING_TRAILING_COMMIT_MISSING", "retry_then_halt", "history_lost", RESYNC),
    Condition(
        "DELTA_MISSING_FILES_UNEXPECTED_VERSION|DELTA_LOG_FILE_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG"
        "|DELTA_STATE_RECOVER_ERROR|DELTA_VERSIONS_NOT_CONTIGUOUS",
        "halt",
        "history_lost",
        "The log no longer holds what the route still needed. " + RESYNC,
    ),
    Condition(
        r"FAILED_READ_FILE\.FILE_NOT_EXIST",
        "retry_then_halt",
        "history_lost",
        "VACUUM removed change files the route still needed. " + RESYNC,
    ),
    Condition(
        "DELTA_VERSION_NOT_FOUND|DELTA_TIMESTAMP_GREATER_THAN_COMMIT|DELTA_INVALID_CDC_RANGE"
        "|Trying to load a non-existent version",
        "halt",
        "start_out_of_range",
        RESYNC,
    ),
    Condition(
        "DELTA_UNSUPPORTED_FEATURES_FOR_READ|DELTA_INVALID_PROTOCOL_VERSION",
        "halt",
        "unsupported_table",
        "The table uses a feature this Delta version can't read: upgrade cdf-replicator.",
    ),
    Condition(
        "CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using",
        "halt",
        "second_writer",
        "Another process uses this checkpoint: stop it, then restart.",
    ),
    Condition(
        "DELTA_SCHEMA_NOT_SET|DELTA_TABLE_NOT_FOUND|DELTA_MISSING_DELTA_TABLE|DELTA_PATH_DOES_NOT_EXIST"
        "|PATH_NOT_FOUND|TABLE_OR_VIEW_NOT_FOUND|DELTA_MISSING_TRANSACTION_LOG|_delta_log.*does not exist",
        "wait",
        "table_missing",
        "The source table is not there. Create it, or correct its PATH or NAME; the route waits for it.",
    ),
    Condition("FAILED_READ_FILE|DELTA_DELETION_VECTOR", "retry_then_halt", "read_failed", "Check the storage."),
    Condition(
        "UNRESOLVED_COLUMN|PARSE_SYNTAX_ERROR|DATATYPE_MISMATCH|UNRESOLVED_ROUTINE",
        "halt",
        "bad_expression",
        "Correct the route's FILTER, COLUMNS, RENAME or KEYS, then restart.",
    ),
    Condition(
        "DIVIDE_BY_ZERO|CAST_INVALID_INPUT|CAST_OVERFLOW|ARITHMETIC_OVERFLOW|INVALID_ARRAY_INDEX|CANNOT_PARSE_TIMESTAMP",
        "halt",
        "bad_expression",
        "The route's FILTER or COMPUTED can't be evaluated for a row: use try_cast, try_divide and the like. Then "
        + RESYNC[0].lower()
        + RESYNC[1:],
    ),
    Condition(
        "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",
        "halt",
        "bug",
        "The key columns do not identify a row, or this is a bug: please report it.",
    ),
    Condition("DELTA_CONCURRENT|DELTA_METADATA_CHANGED", "wait", "conflict", "Nothing: it is tried again."),
)

RESTART_REASONS: Final = (*dict.fromkeys(row.reason for row in TABLE if row.action != "halt"), "spark")
"""After which a route's query starts again; so it does after a ``RetryableError``, whose reasons are its own."""

_UNKNOWN_NEXT_STEP: Final = "It is tried again a few times; if it stays, see the log for the whole error."
_BUG_NEXT_STEP: Final = "This is a bug in the sink or the service: nothing was lost. Please report it with the log."


def judge(error: BaseException, *, route: str) -> Verdict:
    """Say what an error that ended a route's query, or kept it from starting, means."""
    verdict = _own(error)
    if verdict is not None:
        return _for_route(verdict, route)
    text = str(error)
    for row in TABLE:
        if re.search(row.pattern, text):
            return _for_route(Verdict(row.action, row.reason, _line(text), row.next_step), route)
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return Verdict("retry_then_halt", "spark", _line(text), _UNKNOWN_NEXT_STEP)
    return Verdict("halt", "bug", f"{type(error).__name__}: {_line(text)}", _BUG_NEXT_STEP)


def _own(error: BaseException) -> Verdict | None:
    """Of the errors that are ours, and say by themselves what they mean."""
    if isinstance(error, HaltError | DimensionError):
        return error.verdict
    if isinstance(error, StateError):
        return Verdict("halt", "state_damaged", str(error), RESYNC)
    if isinstance(error, RetryableError):
        next_step = "Nothing: it is tried again until the sink answers."
        return Verdict("wait", error.reason, str(error), next_step, of_sink=True)
    if isinstance(error, PermanentError):
        return Verdict("halt", "sink_refused", error.reason, error.hint, of_sink=True)
    return None


def _for_route(verdict: Verdict, route: str) -> Verdict:
    return replace(verdict, next_step=verdict.next_step.replace("{route}", route))


def _line(text: str) -> str:
    """The first line that says something: from the innermost named condition on."""
    named = [m for m in re.finditer(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]", text) if m.group() not in _WRAPPERS]
    start = named[0].start() if named else 0
    lines = text[start:].strip().splitlines()
    return lines[0][:500] if lines else "no message"


_WRAPPERS: Final = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")
