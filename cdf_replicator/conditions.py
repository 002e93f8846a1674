"""What each error means for a route: the error-condition table, as data (``docs/conditions.md`` is made of it).

Spark and Delta name their errors (``[DELTA_...]`` in the text; the Python class says little). Source of the table:
the error conditions of Delta 4.4 and what was seen when they were provoked. Rows are tried from the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from connectors.errors import STORAGE_AWAY

Action = Literal["restart", "wait", "retry_then_halt", "halt"]
"""restart: now, the stream is rebuilt. wait: back off for as long as it takes. retry_then_halt: a few times first."""

TRIES: Final = 5
"""Failures in a row after which ``retry_then_halt`` halts, where a row does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``names``: any of them, or one that begins so, is in the error's text. ``tried``: the test that provokes it.

    A row without such a test is tried by texts only (``tests/unit/test_conditions.py``): what it stands for can't be
    brought about with one machine and its file system.
    """

    names: tuple[str, ...]
    action: Action
    reason: str
    next_step: str
    tried: str | None = None
    tries: int = TRIES

    def fits(self, text: str) -> bool:
        return any(name in text for name in self.names)


RESYNC: Final = "Run: cdf-replicator resync {route}"
INTERRUPTED: Final = "interrupted"
"""Reason of what a stop brings about in the middle of a micro-batch: no failure."""

UNFORESEEN: Final = "spark"
"""Reason of an error of Spark or Delta that the table below does not know."""

STALLED: Final = "stalled"
"""Reason of the new begin of a query that did not move."""

SCHEMA_CHANGE: Final = "schema_change"
"""Reason of what a change of the source table's columns brings about."""
UNKNOWN_CHANGE: Final = "CDF_UNKNOWN_CHANGE_TYPE"
"""Our own condition, since Delta reads whatever type of change a writer has put into a change file."""

_CONDITIONS: Final = "tests/integration/test_conditions.py"
_SCHEMA_CHANGES: Final = "tests/integration/test_schema_changes.py"

TABLE: Final = (
    Condition(
        (
            f"[USER_RAISED_EXCEPTION] {UNKNOWN_CHANGE}",
        ),  # the name alone stands in the plan of every query, which errors show
        "halt",
        "unknown_change",
        "The change files of that commit are not what Delta writes: see which writer made them. Nothing of the commit was "
        "delivered. The table itself can be read, so to go on past it, run: cdf-replicator resync {route}",
        f"{_CONDITIONS}::test_a_change_of_an_unknown_type_halts_and_names_its_commit",
    ),
    Condition(
        ("DELTA_STREAMING_METADATA_EVOLUTION",),
        "restart",
        SCHEMA_CHANGE,
        "Nothing: the stream continues.",
        f"{_SCHEMA_CHANGES}::test_a_renamed_column_waits_for_its_approval_and_then_goes_on",
    ),
    Condition(
        ("DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",),
        "halt",
        SCHEMA_CHANGE,
        "A column was renamed, dropped or retyped, and this should have been asked about in other words. " + RESYNC,
    ),
    Condition(
        ("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",),
        "retry_then_halt",
        SCHEMA_CHANGE,
        "Nothing: the table has column mapping now, and the stream starts again tracking its schema. If it halts "
        "instead, run: cdf-replicator resync {route}",
        f"{_SCHEMA_CHANGES}::test_column_mapping_that_is_switched_on_under_a_route_is_taken_up",
        tries=3,
    ),
    Condition(
        ("DELTA_SCHEMA_CHANGED",),
        "retry_then_halt",
        SCHEMA_CHANGE,
        "Nothing: the route starts again with the new schema. If it halts instead, run: cdf-replicator resync {route}",
        f"{_SCHEMA_CHANGES}::test_three_sinks_follow_a_growing_table_while_they_run",
        tries=3,
    ),
    Condition(
        # A torn file of the log has no condition of its own: the reader of its JSON fails in there.
        ("DELTA_STREAMING_SCHEMA_LOG", "DELTA_STREAMING_SCHEMA_LOCATION", "SchemaTrackingLog.deserialize"),
        "halt",
        SCHEMA_CHANGE,
        RESYNC,
        f"{_CONDITIONS}::test_a_damaged_schema_log_is_rebuilt_by_a_resync",
    ),
    Condition(
        ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
        "halt",
        "table_replaced",
        RESYNC,
        f"{_CONDITIONS}::test_a_table_that_is_replaced_while_the_route_runs",
    ),
    Condition(
        ("DELTA_MISSING_CHANGE_DATA",),
        "halt",
        "change_feed_off",
        "Enable it: ALTER TABLE … SET TBLPROPERTIES (delta.enableChangeDataFeed = true). Then run: cdf-replicator "
        "resync {route}",
        f"{_CONDITIONS}::test_a_start_where_the_change_feed_was_off",
    ),
    Condition(("DELTA_STREAMING_TRAILING_COMMIT_MISSING",), "retry_then_halt", "history_lost", RESYNC),
    Condition(
        (
            "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
            "DELTA_LOG_FILE_NOT_FOUND",
            "DELTA_TRUNCATED_TRANSACTION_LOG",
            "DELTA_STATE_RECOVER_ERROR",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
        ),
        "halt",
        "history_lost",
        "The log no longer holds what the route still needed. " + RESYNC,
        f"{_CONDITIONS}::test_a_log_with_a_gap",
    ),
    Condition(
        ("FAILED_READ_FILE.FILE_NOT_EXIST",),
        "retry_then_halt",
        "history_lost",
        "VACUUM removed change files the route still needed. " + RESYNC,
        f"{_CONDITIONS}::test_changes_that_vacuum_removed_are_not_passed_over",
        tries=2,
    ),
    Condition(
        ("DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",),
        "halt",
        "history_lost",
        "That version may no longer be read. (The service does not ask Delta to refuse it, and a bootstrap whose files "
        "are gone pins a newer version by itself.) " + RESYNC,
        f"{_CONDITIONS}::test_a_pinned_version_beyond_the_retention_is_pinned_anew",
    ),
    Condition(
        (
            "DELTA_VERSION_NOT_FOUND",
            "DELTA_TIMESTAMP_GREATER_THAN_COMMIT",
            "DELTA_INVALID_CDC_RANGE",
            "Trying to load a non-existent version",
        ),
        "halt",
        "start_out_of_range",
        RESYNC,
        f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    ),
    Condition(
        ("DELTA_UNSUPPORTED_FEATURES_FOR_READ", "DELTA_INVALID_PROTOCOL_VERSION"),
        "halt",
        "unsupported_table",
        "The table uses a feature this Delta version can't read: upgrade cdf-replicator.",
        f"{_CONDITIONS}::test_a_table_feature_of_the_future",
    ),
    Condition(
        (
            "DELTA_ILLEGAL_OPTION",
            "DELTA_STARTING_VERSION_AND_TIMESTAMP_BOTH_SET",
            "DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS",
        ),
        "halt",
        "bad_option",
        "Delta does not take one of the route's settings: correct it, then restart.",
        f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    ),
    Condition(
        ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using"),
        "halt",
        "second_writer",
        "Another process uses this checkpoint: stop it, then restart.",
        f"{_CONDITIONS}::test_a_second_instance_on_one_checkpoint",
    ),
    Condition(
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
        "The source table is not there. Create it, or correct its PATH or NAME; the route waits for it.",
        f"{_CONDITIONS}::test_a_table_that_goes_away_is_waited_for_and_followed_on",
    ),
    Condition(
        ("FAILED_READ_FILE", "DELTA_DELETION_VECTOR"),
        "retry_then_halt",
        "read_failed",
        "A file of the table can't be read: see that its storage answers, and that the file is whole. Then restart. "
        "If it is lost, mend the table (RESTORE, or FSCK REPAIR of the platform), then run: cdf-replicator resync "
        "{route}",
        f"{_CONDITIONS}::test_a_damaged_file_is_tried_again_and_then_told",
    ),
    Condition(
        ("UNRESOLVED_COLUMN", "PARSE_SYNTAX_ERROR", "DATATYPE_MISMATCH", "UNRESOLVED_ROUTINE"),
        "halt",
        "bad_expression",
        "Correct the route's FILTER, COLUMNS, RENAME or KEYS, then restart.",
        "tests/integration/test_halts.py::test_a_filter_spark_can_not_read_is_told",
    ),
    Condition(
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
        + RESYNC[0].lower()
        + RESYNC[1:],
        "tests/integration/test_shape.py::test_an_expression_that_fails_on_a_row_halts_and_loses_nothing",
    ),
    Condition(
        ("DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",),
        "halt",
        "bug",
        "The key columns do not identify a row, or this is a bug: please report it.",
        f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    ),
    Condition(
        (
            "No space left on device",
            "Read-only file system",
            "Disk quota exceeded",
            "Input/output error",
            "Stale file handle",
        ),
        "wait",
        "storage",
        "A disk can't be written or read, that of CDF_STATE_PATH or of spark.local.dir: make room, or mount it so that it can. "
        "The route then goes on by itself.",
        "tests/system/test_state_path.py::test_it_is_full",
    ),
    Condition(
        STORAGE_AWAY,
        "wait",
        "storage",
        "An object store or a file system on the network does not answer: that of the table, of a Delta sink or of "
        "CDF_STATE_PATH. The route goes on by itself once it does.",
        "tests/system/test_object_store.py::test_a_store_that_is_away_is_waited_for",
    ),
    Condition(
        ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED"),
        "wait",
        "conflict",
        "Nothing: it is tried again, and what is written by then is not written twice.",
        f"{_CONDITIONS}::test_an_append_that_meets_another_writer_is_tried_again",
    ),
    Condition(
        ("a query with that name is already active",),
        "wait",
        STALLED,
        "The query's former run does not end: look at the sink, and at the service's log. If it stays, restart the service.",
        f"{_CONDITIONS}::test_a_query_whose_former_run_does_not_end_is_waited_for",
    ),
    Condition(
        ("Invalid batch:",),
        "restart",
        "stale_plan",
        "Nothing: the stream is built anew.",
        f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    ),
    Condition(
        ("SPARK_JOB_CANCELLED", "java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException"),
        "restart",
        INTERRUPTED,
        "Nothing: the route was told to stop; the micro-batch is delivered again at the next start.",
        f"{_CONDITIONS}::test_a_stop_in_the_middle_of_a_batch_is_no_failure",
    ),
)

UNREADABLE: Final = frozenset(
    {
        "history_lost",
        "change_feed_off",
        "read_failed",
        SCHEMA_CHANGE,
        "bad_expression",
    }
)
"""Reasons that may concern the versions of a replay alone."""

RESTART_REASONS: Final = (*dict.fromkeys(row.reason for row in TABLE if row.action != "halt"), STALLED, UNFORESEEN)
"""After which a route's query starts again; so it does after a ``RetryableError``, whose reasons are its own."""
