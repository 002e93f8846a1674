"""Define the reaction of a route to each error of Spark and Delta, as data. ``docs/conditions.md`` is generated from it.

Spark and Delta name an error condition in the error's text (``[DELTA_...]``); the Python class is too general. The table
follows the error conditions of Delta 4.4 and the texts of provoked errors. The first row that fits counts.
"""

from __future__ import annotations

from typing import Final

from cdf_replicator.errors.conditions import (
    INTERRUPTED,
    RESYNC,
    RESYNC_CLAUSE,
    SCHEMA_CHANGE,
    STALLED,
    UNKNOWN_CHANGE,
    UNKNOWN_SPARK_ERROR,
    ErrorCondition,
)
from connectors.errors import STORAGE_UNAVAILABLE

ERROR_CONDITIONS: Final = (
    ErrorCondition(
        (
            f"[USER_RAISED_EXCEPTION] {UNKNOWN_CHANGE}",
        ),  # the name alone is in the plan of every query, and errors can hold the plan
        "halt",
        "unknown_change",
        "Delta did not write the change files of that commit: find the writer. The sink received nothing of the commit. "
        "The table itself can be read. To continue after the commit, run: cdf-replicator resync {route}",
    ),
    ErrorCondition(
        ("DELTA_STREAMING_METADATA_EVOLUTION",),
        "restart",
        SCHEMA_CHANGE,
        "No action needed: the stream continues.",
    ),
    ErrorCondition(
        ("DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",),
        "halt",
        SCHEMA_CHANGE,
        "A column was renamed, dropped or retyped without the usual approval. " + RESYNC,
    ),
    ErrorCondition(
        ("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",),
        "retry_then_halt",
        SCHEMA_CHANGE,
        "No action needed: the table has column mapping now, and the stream restarts with a schema log. If the route halts, "
        "run: cdf-replicator resync {route}",
        tries=3,
    ),
    ErrorCondition(
        ("DELTA_SCHEMA_CHANGED",),
        "retry_then_halt",
        SCHEMA_CHANGE,
        "No action needed: the route restarts with the new schema. If it halts, run: cdf-replicator resync {route}",
        tries=3,
    ),
    ErrorCondition(
        # A damaged file of the schema log has no condition of its own: Delta's JSON reader fails in this class.
        ("DELTA_STREAMING_SCHEMA_LOG", "DELTA_STREAMING_SCHEMA_LOCATION", "SchemaTrackingLog.deserialize"),
        "halt",
        SCHEMA_CHANGE,
        RESYNC,
    ),
    ErrorCondition(
        ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
        "halt",
        "table_replaced",
        RESYNC,
    ),
    ErrorCondition(
        ("DELTA_MISSING_CHANGE_DATA",),
        "halt",
        "change_feed_off",
        "Enable it: ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true). Then run: cdf-replicator "
        "resync {route}",
    ),
    ErrorCondition(("DELTA_STREAMING_TRAILING_COMMIT_MISSING",), "retry_then_halt", "history_lost", RESYNC),
    ErrorCondition(
        (
            "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
            "DELTA_LOG_FILE_NOT_FOUND",
            "DELTA_TRUNCATED_TRANSACTION_LOG",
            "DELTA_STATE_RECOVER_ERROR",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
        ),
        "halt",
        "history_lost",
        "The log no longer holds commits that the route needs. " + RESYNC,
    ),
    ErrorCondition(
        ("FAILED_READ_FILE.FILE_NOT_EXIST",),
        "retry_then_halt",
        "history_lost",
        "VACUUM removed change files that the route needs. " + RESYNC,
        tries=2,
    ),
    ErrorCondition(
        ("DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",),
        "halt",
        "history_lost",
        "Delta refuses to read that version. A bootstrap whose files are gone pins a newer version without a command. "
        + RESYNC,
    ),
    ErrorCondition(
        (
            "DELTA_VERSION_NOT_FOUND",
            "DELTA_TIMESTAMP_GREATER_THAN_COMMIT",
            "DELTA_INVALID_CDC_RANGE",
            "Trying to load a non-existent version",
        ),
        "halt",
        "start_out_of_range",
        RESYNC,
    ),
    ErrorCondition(
        ("DELTA_UNSUPPORTED_FEATURES_FOR_READ", "DELTA_INVALID_PROTOCOL_VERSION"),
        "halt",
        "unsupported_table",
        "The table uses a feature this Delta version can't read: upgrade cdf-replicator.",
    ),
    ErrorCondition(
        (
            "DELTA_ILLEGAL_OPTION",
            "DELTA_STARTING_VERSION_AND_TIMESTAMP_BOTH_SET",
            "DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS",
        ),
        "halt",
        "bad_option",
        "Delta refuses one of the route's settings: correct it, then restart.",
    ),
    ErrorCondition(
        ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using"),
        "halt",
        "second_writer",
        "Another process uses this checkpoint: stop it, then restart.",
    ),
    ErrorCondition(
        (
            "DELTA_SCHEMA_NOT_SET",
            "DELTA_TABLE_NOT_FOUND",
            "DELTA_MISSING_DELTA_TABLE",
            "DELTA_PATH_DOES_NOT_EXIST",
            "PATH_NOT_FOUND",
            "TABLE_OR_VIEW_NOT_FOUND",
            "DELTA_MISSING_TRANSACTION_LOG",
            "_delta_log does not exist",
        ),
        "wait",
        "table_missing",
        "The source table does not exist. Create it, or correct its PATH or NAME; the route waits for it.",
    ),
    ErrorCondition(
        ("FAILED_READ_FILE", "DELTA_DELETION_VECTOR"),
        "retry_then_halt",
        "read_failed",
        "A file of the table can't be read: check that its storage responds and that the file is complete. Then restart. "
        "If the file is lost, repair the table (RESTORE, or FSCK REPAIR of the platform), then run: cdf-replicator resync "
        "{route}",
    ),
    ErrorCondition(
        ("UNRESOLVED_COLUMN", "PARSE_SYNTAX_ERROR", "DATATYPE_MISMATCH", "UNRESOLVED_ROUTINE"),
        "halt",
        "bad_expression",
        "Correct the route's FILTER, COLUMNS, RENAME or KEYS, then restart.",
    ),
    ErrorCondition(
        (
            "DIVIDE_BY_ZERO",
            "CAST_INVALID_INPUT",
            "CAST_OVERFLOW",
            "ARITHMETIC_OVERFLOW",
            "INVALID_ARRAY_INDEX",
            "CANNOT_PARSE_TIMESTAMP",
        ),
        "halt",
        "bad_expression",
        "The route's FILTER or COMPUTED can't be evaluated for a row: use try_cast, try_divide and the like. Then "
        + RESYNC_CLAUSE,
    ),
    ErrorCondition(
        ("DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",),
        "halt",
        "bug",
        "The key columns do not identify a row, or this is a bug: please report it.",
    ),
    ErrorCondition(
        (
            "No space left on device",
            "Read-only file system",
            "Disk quota exceeded",
            "Input/output error",
            "Stale file handle",
        ),
        "wait",
        "storage",
        "The disk of CDF_STATE_PATH or spark.local.dir can't be written or read: free space, or mount it writable. The route "
        "then continues without a command.",
    ),
    ErrorCondition(
        STORAGE_UNAVAILABLE,
        "wait",
        "storage",
        "An object store or a network file system does not respond: that of the table, of a Delta sink or of "
        "CDF_STATE_PATH. The route continues without a command as soon as it responds.",
    ),
    ErrorCondition(
        ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED"),
        "wait",
        "conflict",
        "No action needed: the write is retried, and rows that were written are not written twice.",
    ),
    ErrorCondition(
        ("a query with that name is already active",),
        "wait",
        STALLED,
        "The query's former run does not end: check the sink and the service's log. If this persists, restart the service.",
    ),
    ErrorCondition(
        ("Invalid batch:",),
        "restart",
        "stale_plan",
        "No action needed: the stream is rebuilt.",
    ),
    ErrorCondition(
        ("SPARK_JOB_CANCELLED", "java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException"),
        "restart",
        INTERRUPTED,
        "No action needed: the route was stopped; Spark repeats the micro-batch at the next start.",
    ),
)

RESTART_REASONS: Final = (
    *dict.fromkeys(row.reason for row in ERROR_CONDITIONS if row.action != "halt"),
    STALLED,
    UNKNOWN_SPARK_ERROR,
)
"""Reasons after which the driver restarts a route's query. A ``RetryableError`` has further reasons of its own."""
