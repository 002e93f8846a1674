"""Each error has a reaction, by texts as Spark and Delta raise them."""

from __future__ import annotations

import ast
import resource
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from cdf_replicator.delivery import DeliveryBugError
from cdf_replicator.errors import conditions
from cdf_replicator.errors.classifier import classify_error
from cdf_replicator.errors.condition_table import ERROR_CONDITIONS
from cdf_replicator.errors.exceptions import RouteHaltError, StateError
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from connectors import PermanentError, RetryableError
from tests.unit.condition_tests import TESTS

ROOT = Path(__file__).parents[3]
QUERY = "Query orders_search [id = 6b0, runId = 9f1] terminated with exception: "
STREAM = "[STREAM_FAILED] " + QUERY
IN_BATCH = (
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. "
    "Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
    '  File "py4j/clientserver.py", line 642, in _call_proxy\n    return_value = getattr(self.pool[obj_id], method)(*params)\n'
    "py4j.protocol.Py4JJavaError: An error occurred while calling o210.getResult.\n: org.apache.spark.SparkException: "
    "Exception thrown in awaitResult: Job aborted due to stage failure: "
)

# One text per row of the table, in its order, and what else matches that row.
RECORDED = [
    ("halt", "unknown_change", STREAM + IN_BATCH + "[USER_RAISED_EXCEPTION] CDF_UNKNOWN_CHANGE_TYPE Commit 3 of the table holds a change of type 'update_pre', which a change feed does not define. SQLSTATE: P0001"),
    ("restart", "schema_change", STREAM + "[DELTA_STREAMING_METADATA_EVOLUTION] The schema, table configuration or protocol of your Delta table has changed during streaming."),
    ("halt", "schema_change", STREAM + "[DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION] We've detected one or more non-additive schema change(s) (RENAME COLUMN) between Delta version 2 and 3. Set spark.databricks.delta.streaming.allowSourceColumnRename = \"3\"."),
    ("retry_then_halt", "schema_change", STREAM + "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] Streaming read is not supported on tables with read-incompatible schema changes (e.g. rename or drop or datatype changes)."),
    ("retry_then_halt", "schema_change", STREAM + "[DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS] Detected schema change in version 4:"),
    ("retry_then_halt", "schema_change", STREAM + "[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 4:"),
    ("halt", "schema_change", "[DELTA_STREAMING_SCHEMA_LOCATION_NOT_UNDER_CHECKPOINT] Schema location '/x' must be placed under checkpoint location '/y'."),
    ("halt", "schema_change", STREAM + "[DELTA_STREAMING_SCHEMA_LOG_DESERIALIZE_FAILED] Incomplete log file in the Delta streaming source schema log."),
    ("halt", "table_replaced", STREAM + "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta table (id = 'a')."),
    ("halt", "change_feed_off", STREAM + "[DELTA_MISSING_CHANGE_DATA] Error getting change data for range [2 , 3] as change data was not recorded for version [2]."),
    ("retry_then_halt", "history_lost", STREAM + "[DELTA_STREAMING_TRAILING_COMMIT_MISSING] ..."),
    ("retry_then_halt", "history_lost", STREAM + "[DELTA_MISSING_FILES_UNEXPECTED_VERSION] The stream from your Delta table was expecting process data from version 3, but the earliest available version in the _delta_log directory is 5."),
    ("retry_then_halt", "history_lost", STREAM + "[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it, it's likely your query is lagging behind."),
    ("retry_then_halt", "history_lost", "[DELTA_TRUNCATED_TRANSACTION_LOG] 00000000000000000003.json: Unable to reconstruct state"),
    ("retry_then_halt", "history_lost", "[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (ArrayBuffer(2, 4)) are not contiguous."),
    ("retry_then_halt", "history_lost", STREAM + IN_BATCH + "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/t/_change_data/cdc-00000.parquet. File does not exist. SQLSTATE: KD001"),
    ("halt", "history_lost", "[DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION] Cannot time travel beyond delta.deletedFileRetentionDuration (168 HOURS) set on the table."),
    ("retry_then_halt", "history_lost", "[DELTA_STATE_RECOVER_ERROR] The metadata of your Delta table could not be recovered while Reconstructing version: 4."),
    ("halt", "start_out_of_range", "[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version 1. Available versions: [3, 9]."),
    ("halt", "start_out_of_range", "[DELTA_TIMESTAMP_GREATER_THAN_COMMIT] The provided timestamp (2030-01-01 00:00:00.0) is after the latest version"),
    ("halt", "start_out_of_range", STREAM + "[DELTA_INVALID_CDC_RANGE] CDC range from start 7 to end 6 was invalid. End cannot be before start."),
    ("halt", "start_out_of_range", STREAM + "Trying to load a non-existent version 9"),
    ("halt", "unsupported_table", '[DELTA_UNSUPPORTED_FEATURES_FOR_READ] Unsupported Delta read feature: table "/t" requires reader table feature(s) that are unsupported'),
    ("halt", "unsupported_table", '[DELTA_INVALID_PROTOCOL_VERSION] Unsupported Delta protocol version: table "/t" requires reader version 4'),
    ("halt", "bad_option", "[DELTA_STARTING_VERSION_AND_TIMESTAMP_BOTH_SET] Please either provide 'startingVersion' or 'startingTimestamp'"),
    ("halt", "bad_option", "[DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS] Invalid options for idempotent Dataframe writes: Both txnAppId and txnVersion must be specified"),
    ("halt", "file_system_missing", "An error occurred while calling o57.load.\n: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"),
    ("halt", "file_system_missing", 'An error occurred while calling o57.load.\n: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s4"'),
    ("halt", "second_writer", STREAM + "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3."),
    ("halt", "second_writer", "java.lang.IllegalStateException: Multiple streaming queries are concurrently using file:/state/offsets/3"),
    ("wait", "table_missing", "[DELTA_SCHEMA_NOT_SET] Table schema is not set. Write data into it or use CREATE TABLE to set the schema."),
    ("wait", "table_missing", "[TABLE_OR_VIEW_NOT_FOUND] The table or view `sales`.`orders` cannot be found."),
    ("wait", "table_missing", "[DELTA_MISSING_DELTA_TABLE] `/t` is not a Delta table."),
    ("wait", "table_missing", QUERY + "java.io.FileNotFoundException: File file:/t/_delta_log does not exist"),
    ("retry_then_halt", "read_failed", STREAM + IN_BATCH + "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/t/part-0.parquet."),
    ("retry_then_halt", "read_failed", STREAM + IN_BATCH + "[DELTA_DELETION_VECTOR_CHECKSUM_MISMATCH] Could not verify deletion vector integrity, CRC checksum verification failed."),
    ("halt", "bad_expression", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `nme` cannot be resolved. Did you mean one of the following? [`name`]."),
    ("halt", "bad_expression", "\n[PARSE_SYNTAX_ERROR] Syntax error at or near '='. SQLSTATE: 42601 (line 1, pos 5)"),
    ("halt", "bad_expression", IN_BATCH + "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. SQLSTATE: 22012"),
    ("halt", "bug", IN_BATCH + "[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE] Cannot perform Merge as multiple source rows matched"),
    ("wait", "conflict", IN_BATCH + "[DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT] Transaction conflict detected."),
    ("wait", "conflict", IN_BATCH + "[DELTA_METADATA_CHANGED] MetadataChangedException: The metadata of the Delta table has been changed by a concurrent update."),
    ("wait", "storage", "java.io.IOException: No space left on device"),
    ("wait", "storage", STREAM + "java.io.FileNotFoundException: /state/routes/r/checkpoints/0/offsets/.1.tmp (Read-only file system)"),
    ("wait", "storage", "java.io.IOException: Disk quota exceeded"),
    ("wait", "storage", IN_BATCH + "java.net.ConnectException: getFileStatus on s3a://lake/orders/_delta_log: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Connect to 127.0.0.1:22800 [/127.0.0.1] failed: Connection refused (SDK Attempt Count: 3)"),
    ("wait", "stalled", "Cannot start query with name orders_search as a query with that name is already active in this SparkSession"),
    ("restart", "stale_plan", STREAM + "assertion failed: Invalid batch: id#9174L,name#9175,price#9176 != id#9603L,name#9604,price#9605,c#9606"),
    ("restart", "interrupted", "py4j.protocol.Py4JJavaError: An error occurred while calling o210.collectToPython.\n: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 12 cancelled part of cancelled job group 6b0 SQLSTATE: XXKDA"),
    ("restart", "interrupted", "py4j.protocol.Py4JJavaError: An error occurred while calling o210.save.\n: java.lang.InterruptedException"),
]  # fmt: skip


BY_TEXT_ONLY = {
    ("DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",),
    ("DELTA_STREAMING_TRAILING_COMMIT_MISSING",),
}
"""Rows that one machine and its file system can't provoke."""


def functions(file):
    """Return the names of the functions of a test file."""
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("action", "reason", "text"), RECORDED)
def test_recorded_error_matches_its_condition(action, reason, text):
    for error in (AnalysisException(message=text), StreamingQueryException(message=text), RuntimeError(text)):
        decision = classify_error(error, route="orders_search")
        assert (decision.action, decision.reason) == (action, reason)
        assert decision.remedy
        assert "{route}" not in decision.remedy


def test_every_condition_has_a_recorded_text():
    """No row hides behind one above it."""
    reached = {next(row for row in ERROR_CONDITIONS if row.matches(text)) for _, _, text in RECORDED}
    assert reached == set(ERROR_CONDITIONS)


def test_every_condition_names_an_existing_test_or_only_a_text():
    provoked = {tuple(test.split("::")) for test in TESTS.values()}
    assert {(file, name) for file, name in provoked if name not in functions(file)} == set()
    assert {row.patterns for row in ERROR_CONDITIONS if row.patterns[0] not in TESTS} == BY_TEXT_ONLY
    assert TESTS.keys() <= {row.patterns[0] for row in ERROR_CONDITIONS}


def test_number_of_failures_depends_on_the_condition():
    decision = classify_error(RuntimeError("[FAILED_READ_FILE.FILE_NOT_EXIST] gone"), route="r")
    assert (decision.action, decision.max_failures) == ("retry_then_halt", 2)
    assert classify_error(RuntimeError("[FAILED_READ_FILE.NO_HINT] torn"), route="r").max_failures == conditions.TRIES


def test_every_condition_has_a_next_step():
    assert all(row.next_step for row in ERROR_CONDITIONS)


FEED_OFF = "[DELTA_MISSING_CHANGE_DATA] Error getting change data for range [0 , 7] as change data was not"
INCOMPLETE = "[DELTA_STATE_RECOVER_ERROR] The protocol of your Delta table could not be recovered while Reconstructing"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{FEED_OFF}\nrecorded for version [0]. If you've\nenabled it", f"{FEED_OFF} recorded for version [0]."),
        (f"{FEED_OFF}\nrecorded\nfor version [0].\nOtherwise", f"{FEED_OFF} recorded for version [0]."),
        (f"{INCOMPLETE}\nversion: 4\n\nJVM stacktrace:", f"{INCOMPLETE} version: 4"),
        (f"{INCOMPLETE}\n\tat org.apache.spark. Log", INCOMPLETE),
        ("[DELTA_SCHEMA_CHANGED] Detected schema change:\nstreaming source schema: root", "[DELTA_SCHEMA_CHANGED] Detected schema change:"),
        ("[PARSE_SYNTAX_ERROR] Syntax error at '='\n== SQL ==", "[PARSE_SYNTAX_ERROR] Syntax error at '='"),
    ],
)  # fmt: skip
def test_first_sentence_of_a_broken_message_of_delta_is_reported(text, shown):
    assert classify_error(AnalysisException(message=text), route="r").message == shown


def test_innermost_condition_is_reported():
    text = next(text for _, _, text in RECORDED if "FILE_NOT_EXIST" in text)
    decision = classify_error(StreamingQueryException(message=text), route="orders_search")
    assert decision.message.startswith("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file")
    assert decision.remedy.endswith("cdf-replicator resync orders_search")


def test_cause_of_an_unknown_spark_error_is_reported():
    error = AnalysisException(message="[INTERNAL_ERROR] Executed command failed. You hit a bug in Spark")
    error._cause = AnalysisException(message="assertion failed: twice\n\tat scala.Predef")
    assert classify_error(error, route="r").message == "[INTERNAL_ERROR] assertion failed: twice"


def test_only_first_line_of_a_long_text_is_reported():
    decision = classify_error(
        AnalysisException(message="[SOME_ERROR] first line " + "x" * 900 + "\nsecond line"), route="r"
    )
    assert decision.message.startswith("[SOME_ERROR] first line")
    assert "second" not in decision.message
    assert len(decision.message) == 500


def test_jvm_exception_is_reported_instead_of_the_call():
    text = "An error occurred while calling o6.load.\n: java.io.IOException: disk\n\tat somewhere"
    assert classify_error(AnalysisException(message=text), route="r").message == "java.io.IOException: disk"


def test_error_without_message_is_reported():
    assert classify_error(ValueError(), route="r").message == "ValueError: no message"


def test_unknown_spark_error_is_retried_before_it_halts():
    decision = classify_error(AnalysisException(message="[NEVER_SEEN] oh"), route="r")
    assert (decision.action, decision.reason) == ("retry_then_halt", "spark")
    assert decision.remedy


def test_other_error_is_a_bug_and_halts():
    decision = classify_error(KeyError("x"), route="r")
    assert (decision.action, decision.reason) == ("halt", "bug")
    assert decision.remedy


@contextmanager
def no_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_state_path_without_file_descriptors_is_retried(tmp_path):
    store = StateStore.open(LocalPath(tmp_path))
    store.save(RouteState("orders_search", {}, "table-1"))
    with pytest.raises(OSError, match="Too many open files") as raised, no_descriptors():
        store.load("orders_search")
    decision = classify_error(raised.value, route="orders_search")
    assert (decision.action, decision.reason) == ("wait", "storage")
    assert "Too many open files" in decision.message
    assert "CDF_STATE_PATH" in decision.remedy


def test_file_and_socket_of_a_sink_are_not_the_state_path(tmp_path):
    with pytest.raises(OSError, match="No such file") as file, (tmp_path / "certificate").open():
        pass
    with socket.socket() as unused, pytest.raises(OSError, match="not connected") as sent:
        unused.shutdown(socket.SHUT_RDWR)
    for raised in (file, sent):
        decision = classify_error(raised.value, route="r")
        assert (decision.action, decision.reason) == ("halt", "bug")


def test_a_bug_in_a_sink_keeps_its_name():
    decision = classify_error(DeliveryBugError("ZeroDivisionError: oops\nTraceback ..."), route="r")
    assert (decision.reason, decision.message) == ("bug", "DeliveryBugError: ZeroDivisionError: oops")


def test_unreachable_sink_is_retried():
    decision = classify_error(RetryableError("unreachable", "connection refused"), route="r")
    assert (decision.action, decision.reason, decision.message) == (
        "wait",
        "unreachable",
        "unreachable: connection refused",
    )
    assert decision.from_sink


def test_sink_that_refuses_access_halts_the_route_with_its_hint():
    decision = classify_error(
        PermanentError("The password is wrong.", "Correct it, then resync {route}."), route="orders_search"
    )
    assert (decision.action, decision.message) == ("halt", "The password is wrong.")
    assert decision.remedy == "Correct it, then resync orders_search."
    assert decision.from_sink


def test_halt_by_the_service_names_the_route():
    decision = classify_error(
        RouteHaltError("table_replaced", "It was recreated.", conditions.RESYNC), route="orders_search"
    )
    assert decision.remedy == "Run: cdf-replicator resync orders_search"
    assert (decision.action, decision.reason, decision.from_sink) == ("halt", "table_replaced", False)


def test_damaged_state_is_not_a_bug():
    decision = classify_error(StateError("route.json is damaged."), route="r")
    assert (decision.action, decision.reason) == ("halt", "state_damaged")
    assert decision.remedy == "Run: cdf-replicator resync r"
