"""Name the test that provokes each error condition, by the first name of its row in ``cdf_replicator.errors.condition_table.ERROR_CONDITIONS``."""

from __future__ import annotations

from typing import Final

_CONDITIONS: Final = "tests/integration/test_conditions.py"
_SCHEMA_CHANGES: Final = "tests/integration/test_schema_changes.py"

TESTS: Final = {
    "[USER_RAISED_EXCEPTION] CDF_UNKNOWN_CHANGE_TYPE": f"{_CONDITIONS}::test_a_change_of_an_unknown_type_halts_and_names_its_commit",
    "DELTA_STREAMING_METADATA_EVOLUTION": f"{_SCHEMA_CHANGES}::test_a_renamed_column_waits_for_its_approval_and_then_goes_on",
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": f"{_SCHEMA_CHANGES}::test_column_mapping_that_is_switched_on_under_a_route_is_taken_up",
    "DELTA_SCHEMA_CHANGED": f"{_SCHEMA_CHANGES}::test_three_sinks_follow_a_growing_table_while_they_run",
    "DELTA_STREAMING_SCHEMA_LOG": f"{_CONDITIONS}::test_a_damaged_schema_log_is_rebuilt_by_a_resync",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": f"{_CONDITIONS}::test_a_table_that_is_replaced_while_the_route_runs",
    "DELTA_MISSING_CHANGE_DATA": f"{_CONDITIONS}::test_a_start_where_the_change_feed_was_off",
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION": f"{_CONDITIONS}::test_a_log_with_a_gap",
    "FAILED_READ_FILE.FILE_NOT_EXIST": f"{_CONDITIONS}::test_changes_that_vacuum_removed_are_not_passed_over",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION": f"{_CONDITIONS}::test_a_pinned_version_beyond_the_retention_is_pinned_anew",
    "DELTA_VERSION_NOT_FOUND": f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ": f"{_CONDITIONS}::test_a_table_feature_of_the_future",
    "DELTA_ILLEGAL_OPTION": f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    "CONCURRENT_STREAM_LOG_UPDATE": f"{_CONDITIONS}::test_a_second_instance_on_one_checkpoint",
    "DELTA_SCHEMA_NOT_SET": f"{_CONDITIONS}::test_a_table_that_goes_away_is_waited_for_and_followed_on",
    "FAILED_READ_FILE": f"{_CONDITIONS}::test_a_damaged_file_is_tried_again_and_then_told",
    "UNRESOLVED_COLUMN": "tests/integration/test_halts.py::test_a_filter_spark_can_not_read_is_told",
    "DIVIDE_BY_ZERO": "tests/integration/test_shape.py::test_an_expression_that_fails_on_a_row_halts_and_loses_nothing",
    "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE": f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    "No space left on device": "tests/system/test_state_path.py::test_it_is_full",
    "org.apache.hadoop.fs.s3a.AWSClientIOException": "tests/system/test_object_store.py::test_a_store_that_is_away_is_waited_for",
    "DELTA_CONCURRENT": f"{_CONDITIONS}::test_an_append_that_meets_another_writer_is_tried_again",
    "a query with that name is already active": f"{_CONDITIONS}::test_a_query_whose_former_run_does_not_end_is_waited_for",
    "Invalid batch:": f"{_CONDITIONS}::test_what_delta_itself_says_is_judged_as_the_table_says",
    "SPARK_JOB_CANCELLED": f"{_CONDITIONS}::test_a_stop_in_the_middle_of_a_batch_is_no_failure",
}
"""A row without an entry is tested by recorded error texts only, since one machine can't provoke it."""
