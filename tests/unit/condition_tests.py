"""Name the test that provokes each error condition, by the first name of its row in ``cdf_replicator.errors.condition_table.ERROR_CONDITIONS``."""

from __future__ import annotations

from typing import Final

_CONDITIONS: Final = "tests/integration/test_conditions.py"
_SCHEMA_CHANGES: Final = "tests/integration/test_schema_changes.py"

TESTS: Final = {
    "[USER_RAISED_EXCEPTION] CDF_UNKNOWN_CHANGE_TYPE": f"{_CONDITIONS}::test_a_change_of_an_unknown_type_halts_and_names_its_commit",
    "DELTA_STREAMING_METADATA_EVOLUTION": f"{_SCHEMA_CHANGES}::test_a_renamed_column_waits_for_its_approval_and_then_goes_on",
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": f"{_SCHEMA_CHANGES}::test_column_mapping_enabled_under_a_route_is_followed",
    "DELTA_SCHEMA_CHANGED": f"{_SCHEMA_CHANGES}::test_three_sinks_follow_a_growing_table_while_they_run",
    "DELTA_STREAMING_SCHEMA_LOG": f"{_CONDITIONS}::test_a_damaged_schema_log_is_rebuilt_by_a_resync",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": f"{_CONDITIONS}::test_table_replaced_during_a_run_halts_the_route",
    "DELTA_MISSING_CHANGE_DATA": f"{_CONDITIONS}::test_start_at_a_version_without_change_feed_halts",
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION": f"{_CONDITIONS}::test_log_with_a_gap_halts_the_route",
    "FAILED_READ_FILE.FILE_NOT_EXIST": f"{_CONDITIONS}::test_changes_removed_by_vacuum_are_not_skipped",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION": f"{_CONDITIONS}::test_pinned_version_beyond_the_retention_is_pinned_again",
    "DELTA_VERSION_NOT_FOUND": f"{_CONDITIONS}::test_errors_of_delta_match_their_condition",
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ": f"{_CONDITIONS}::test_unknown_table_feature_halts_the_route",
    "DELTA_ILLEGAL_OPTION": f"{_CONDITIONS}::test_errors_of_delta_match_their_condition",
    "ClassNotFoundException: Class org.apache.hadoop.fs.": f"{_CONDITIONS}::test_errors_of_delta_match_their_condition",
    "CONCURRENT_STREAM_LOG_UPDATE": f"{_CONDITIONS}::test_second_instance_on_one_checkpoint_halts_the_route",
    "DELTA_SCHEMA_NOT_SET": f"{_CONDITIONS}::test_removed_table_is_retried_and_followed_after_it_returns",
    "FAILED_READ_FILE": f"{_CONDITIONS}::test_damaged_file_is_retried_then_reported",
    "UNRESOLVED_COLUMN": "tests/integration/test_halts.py::test_filter_that_spark_cannot_parse_is_reported",
    "DIVIDE_BY_ZERO": "tests/integration/test_shape.py::test_an_expression_that_fails_on_a_row_halts_and_loses_nothing",
    "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE": f"{_CONDITIONS}::test_errors_of_delta_match_their_condition",
    "No space left on device": "tests/system/test_state_path.py::test_service_recovers_from_a_full_state_path",
    "org.apache.hadoop.fs.s3a.AWSClientIOException": "tests/system/test_object_store.py::test_unreachable_store_is_retried",
    "DELTA_CONCURRENT": f"{_CONDITIONS}::test_append_that_conflicts_with_another_writer_is_retried",
    "a query with that name is already active": f"{_CONDITIONS}::test_query_with_a_running_predecessor_is_retried",
    "Invalid batch:": f"{_CONDITIONS}::test_errors_of_delta_match_their_condition",
    "SPARK_JOB_CANCELLED": f"{_CONDITIONS}::test_stop_during_a_batch_is_no_failure",
}
"""A row without an entry is tested by recorded error texts only, since one machine can't provoke it."""
