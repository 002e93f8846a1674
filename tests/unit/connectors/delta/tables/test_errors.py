"""The reason that a Delta sink gives names the condition, not the call that met it."""

from __future__ import annotations

from connectors.delta.tables.errors import OVERTAKEN, classified
from connectors.errors import PermanentError, RetryableError

BY_PY4J = """An error occurred while calling o16886.execute.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: org.apache.spark.SparkRuntimeException: {condition} more
\t... 12 more"""


def test_conflict_passed_on_by_py4j_is_named():
    found = classified(Exception(BY_PY4J.format(condition=f"[USER_RAISED_EXCEPTION] {OVERTAKEN}: key a")), "/t")
    assert isinstance(found, RetryableError)
    assert OVERTAKEN in str(found)
    assert "calling" not in str(found)


def test_type_mismatch_passed_on_by_py4j_is_named():
    found = classified(Exception(BY_PY4J.format(condition="[DELTA_FAILED_TO_MERGE_FIELDS] fields x")), "/t")
    assert isinstance(found, PermanentError)
    assert "DELTA_FAILED_TO_MERGE_FIELDS" in str(found)
    assert "calling" not in str(found)


def test_other_error_is_unchanged():
    error = ValueError("a bug")
    assert classified(error, "/t") is error
