"""Define the reaction of a route to each error of Spark and Delta, as data. ``docs/conditions.md`` is generated from it.

Spark and Delta name an error condition in the error's text (``[DELTA_...]``); the Python class is too general. The table
follows the error conditions of Delta 4.4 and the texts of provoked errors. The first row that fits counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cdf_replicator.errors.conditions import (
    INTERRUPTED,
    RESYNC,
    RESYNC_CLAUSE,
    SCHEMA_CHANGE,
    STALLED,
    TRIES,
    UNKNOWN_CHANGE,
    UNKNOWN_SPARK_ERROR,
    ErrorCondition,
)
from connectors.errors import STORAGE_UNAVAILABLE

if TYPE_CHECKING:
    from cdf_replicator.errors.conditions import Action

_OR: Final = " | "


class _Reaction(NamedTuple):
    """The fields of an ``ErrorCondition`` after its patterns."""

    action: Action
    reason: str
    next_step: str
    tries: int = TRIES


_REACTIONS: Final = {
    # The name of the condition alone is in the plan of every query, and errors can hold the plan.
    f"[USER_RAISED_EXCEPTION] {UNKNOWN_CHANGE}": _Reaction(
        "halt",
        "unknown_change",
        "Delta did not write the change files of that commit: find the writer. The sink received nothing of the commit. "
        "The table itself can be read. To continue after the commit, run: cdf-replicator resync {route}",
    ),
    "DELTA_STREAMING_METADATA_EVOLUTION": _Reaction(
        "restart", SCHEMA_CHANGE, "No action needed: the stream continues."
    ),
    "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": _Reaction(
        "halt", SCHEMA_CHANGE, "A column was renamed, dropped or retyped without the usual approval. " + RESYNC
    ),
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": _Reaction(
        "retry_then_halt",
        SCHEMA_CHANGE,
        "No action needed: the table has column mapping now, and the stream restarts with a schema log. If the route halts, "
        "run: cdf-replicator resync {route}",
        tries=3,
    ),
    "DELTA_SCHEMA_CHANGED": _Reaction(
        "retry_then_halt",
        SCHEMA_CHANGE,
        "No action needed: the route restarts with the new schema. If it halts, run: cdf-replicator resync {route}",
        tries=3,
    ),
    # A damaged file of the schema log has no condition of its own: Delta's JSON reader fails in this class.
    "DELTA_STREAMING_SCHEMA_LOG | DELTA_STREAMING_SCHEMA_LOCATION | SchemaTrackingLog.deserialize": _Reaction(
        "halt", SCHEMA_CHANGE, RESYNC
    ),
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": _Reaction("halt", "table_replaced", RESYNC),
    "DELTA_MISSING_CHANGE_DATA": _Reaction(
        "halt",
        "change_feed_off",
        "The change feed was off at a version that the route needs. Run: cdf-replicator enable TABLE. It enables the feed if "
        "necessary, and shows the first version of the feed. Then run: cdf-replicator resync {route} (a route that has delivered "
        "nothing can start at that version instead)",
    ),
    "DELTA_STREAMING_TRAILING_COMMIT_MISSING": _Reaction("retry_then_halt", "history_lost", RESYNC),
    (
        "DELTA_MISSING_FILES_UNEXPECTED_VERSION | DELTA_LOG_FILE_NOT_FOUND | DELTA_TRUNCATED_TRANSACTION_LOG"
        " | DELTA_STATE_RECOVER_ERROR | DELTA_VERSIONS_NOT_CONTIGUOUS"
    ): _Reaction(
        "retry_then_halt",
        "history_lost",
        "The log no longer holds commits that the route needs, or a listing of it missed them. If the route halts, "
        + RESYNC_CLAUSE,
        tries=3,
    ),
    "FAILED_READ_FILE.FILE_NOT_EXIST": _Reaction(
        "retry_then_halt", "history_lost", "VACUUM removed change files that the route needs. " + RESYNC, tries=2
    ),
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION": _Reaction(
        "halt",
        "history_lost",
        "Delta refuses to read that version. A bootstrap whose files are gone pins a newer version without a command. "
        + RESYNC,
    ),
    (
        "DELTA_VERSION_NOT_FOUND | DELTA_TIMESTAMP_GREATER_THAN_COMMIT | DELTA_INVALID_CDC_RANGE"
        " | Trying to load a non-existent version"
    ): _Reaction("halt", "start_out_of_range", RESYNC),
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ | DELTA_INVALID_PROTOCOL_VERSION": _Reaction(
        "halt", "unsupported_table", "The table uses a feature this Delta version can't read: upgrade cdf-replicator."
    ),
    (
        "DELTA_ILLEGAL_OPTION | DELTA_STARTING_VERSION_AND_TIMESTAMP_BOTH_SET | DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS"
    ): _Reaction(
        "halt",
        "bad_option",
        "Delta refuses one of the route's settings: correct it, then restart, or reload a changed file: cdf-replicator reload",
    ),
    "ClassNotFoundException: Class org.apache.hadoop.fs. | No FileSystem for scheme": _Reaction(
        "halt",
        "file_system_missing",
        "Add the file system's jars, such as org.apache.hadoop:hadoop-aws in spark.jars.packages of CDF_SPARK__CONF, or correct "
        "the path. Then restart the service.",
    ),
    "CONCURRENT_STREAM_LOG_UPDATE | Multiple streaming queries are concurrently using": _Reaction(
        "halt",
        "second_writer",
        "Another process uses this checkpoint: stop it, then run: cdf-replicator resume {route}",
    ),
    (
        "DELTA_SCHEMA_NOT_SET | DELTA_TABLE_NOT_FOUND | DELTA_MISSING_DELTA_TABLE | DELTA_PATH_DOES_NOT_EXIST"
        " | PATH_NOT_FOUND | TABLE_OR_VIEW_NOT_FOUND | DELTA_MISSING_TRANSACTION_LOG | _delta_log does not exist"
    ): _Reaction(
        "wait",
        "table_missing",
        "The source table does not exist. Create it, or correct its PATH or NAME; the route waits for it.",
    ),
    "FAILED_READ_FILE | DELTA_DELETION_VECTOR": _Reaction(
        "retry_then_halt",
        "read_failed",
        "A file of the table can't be read: check that its storage responds and that the file is complete. Then run: "
        "cdf-replicator resume {route}. If the file is lost, repair the table (RESTORE, or FSCK REPAIR of the platform), "
        "then run: cdf-replicator resync {route}",
    ),
    "UNRESOLVED_COLUMN | PARSE_SYNTAX_ERROR | DATATYPE_MISMATCH | UNRESOLVED_ROUTINE": _Reaction(
        "halt",
        "bad_expression",
        "Correct the route's FILTER, COLUMNS, RENAME or KEYS, then restart, or reload a changed file: cdf-replicator reload",
    ),
    (
        "DIVIDE_BY_ZERO | CAST_INVALID_INPUT | CAST_OVERFLOW | ARITHMETIC_OVERFLOW | INVALID_ARRAY_INDEX"
        " | CANNOT_PARSE_TIMESTAMP"
    ): _Reaction(
        "halt",
        "bad_expression",
        "The route's FILTER, COMPUTED or AGGREGATES can't be evaluated for a row: use try_cast, try_divide and the like, and "
        "restart or reload. Then " + RESYNC_CLAUSE,
    ),
    "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE": _Reaction(
        "halt", "bug", "The key columns do not identify a row, or this is a bug: please report it."
    ),
    (
        "No space left on device | Read-only file system | Disk quota exceeded | Input/output error | Stale file handle"
    ): _Reaction(
        "wait",
        "storage",
        "The disk of CDF_STATE_PATH or spark.local.dir can't be written or read: free space, or mount it writable. The route "
        "then continues without a command.",
    ),
    _OR.join(STORAGE_UNAVAILABLE): _Reaction(
        "wait",
        "storage",
        "An object store or a network file system does not respond: that of the table, of a Delta sink or of "
        "CDF_STATE_PATH. The route continues without a command as soon as it responds.",
    ),
    "DELTA_CONCURRENT | DELTA_METADATA_CHANGED | DELTA_PROTOCOL_CHANGED": _Reaction(
        "wait", "conflict", "No action needed: the write is retried, and rows that were written are not written twice."
    ),
    "a query with that name is already active": _Reaction(
        "wait",
        STALLED,
        "The query's former run does not end: check the sink and the service's log. If this persists, restart the service.",
    ),
    "Invalid batch:": _Reaction("restart", "stale_plan", "No action needed: the stream is rebuilt."),
    "SPARK_JOB_CANCELLED | java.lang.InterruptedException | java.nio.channels.ClosedByInterruptException": _Reaction(
        "restart",
        INTERRUPTED,
        "No action needed: the route was stopped; Spark repeats the micro-batch at the next start.",
    ),
}
"""Reactions by the patterns of ``ErrorCondition``."""

ERROR_CONDITIONS: Final = tuple(
    ErrorCondition(tuple(patterns.split(_OR)), *reaction) for patterns, reaction in _REACTIONS.items()
)

RESTART_REASONS: Final = (
    *dict.fromkeys(row.reason for row in ERROR_CONDITIONS if row.action != "halt"),
    STALLED,
    UNKNOWN_SPARK_ERROR,
)
"""Reasons after which the driver restarts a route's query. A ``RetryableError`` has further reasons of its own."""
