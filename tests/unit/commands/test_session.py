"""Names of tables for a command that reads one table, and its next steps after an error."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
import structlog
from pyspark.errors import AnalysisException

from cdf_replicator.commands import session
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.queries import execution
from cdf_replicator.queries.query import ListDeadLetters
from cdf_replicator.settings import load_table_settings, parse_timestamp
from cdf_replicator.settings.models import Table

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-31", NOON - timedelta(hours=12)),
        ("2026-01-31 12:00", NOON),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31 12:00:00 UTC", NOON),
        ("2026-01-31T14:00:00.5+02:00", NOON + timedelta(milliseconds=500)),
        ("2026-01-31T07:00:00.000001-0500", NOON + timedelta(microseconds=1)),
        ("2026-01-31+02:00", NOON - timedelta(hours=14)),
        ("2026-02-30", None),
        ("2026-01-31T25:00", None),
        ("2026-01-31T12:00:00.1234567", None),
        ("2026-01-31T12:00:00+25:00", None),
        ("31.01.2026", None),
        ("yesterday", None),
    ],
)
def test_a_moment_is_utc_unless_it_has_an_offset(text, at):
    assert parse_timestamp(text) == at


def test_table_is_a_slug_a_path_or_a_catalog_name():
    tables = {"orders": Table(path="/lake/orders"), "named": Table(name="main.sales.orders")}
    for name, expected in (
        ("orders", ("/lake/orders", None)),
        ("named", (None, "main.sales.orders")),
        ("s3a://lake/orders", ("s3a://lake/orders", None)),
        ("main.sales.orders", (None, "main.sales.orders")),
    ):
        source = session.source_named(name, tables)
        assert (source.slug, source.path, source.name) == (name, *expected)


def test_tables_are_known_without_state_path_and_sinks():
    reading = load_table_settings({"CDF_TABLES__ORDERS__PATH": "/lake/orders", "CDF_TABLES__ORDERS__KEYS": "id"})
    assert reading.tables["orders"].keys == ("id",)
    assert load_table_settings({}).tables == {}


@pytest.mark.parametrize(
    ("error", "step"),
    [
        ("DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA", "one after the other"),
        ("DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE", "one after the other"),
        ("DELTA_MISSING_CHANGE_DATA", "cdf-replicator enable TABLE"),
        ("DELTA_INVALID_CDC_RANGE", "The last version is before the first"),
        ("DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION", "deletedFileRetentionDuration"),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", "VACUUM has removed"),
        ("DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS", "rename the column"),
        ("TABLE_OR_VIEW_NOT_FOUND", "a path, or a name in the catalog"),
    ],
)
def test_each_error_of_a_batch_read_has_its_own_next_step(error, step):
    what, next_step = execution.describe_error(AnalysisException(f"An error occurred: [{error}] some text."))
    assert what == f"[{error}] some text."
    assert step in next_step


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (AnalysisException("Job aborted:\nin a task: KeyError: 'name'"), True),
        (KeyError("name"), True),
        (AnalysisException("[PATH_NOT_FOUND] /lake/orders"), False),
        (RouteHaltError("bad_request", "refused", "Repeat it."), False),
    ],
)
def test_error_of_an_unknown_cause_is_logged_in_full(error, logged):
    with structlog.testing.capture_logs() as entries:
        execution.describe_error(error)
    assert [entry["exc_info"] for entry in entries] == ([error] if logged else [])


@pytest.mark.parametrize("path", ["state", "state/below", "file:state"])
def test_state_path_that_is_a_file_is_refused_before_spark_starts(monkeypatch, tmp_path, path):
    (tmp_path / "state").touch()
    path = path.replace("state", f"{tmp_path}/state", 1)
    monkeypatch.setattr(session.Answers, "session", lambda _: pytest.fail("Spark was started"))
    answers = session.Answers(SimpleNamespace(state_path=path), None)
    with pytest.raises(session.AnswerError, match=r"CDF_STATE_PATH=.* can't be used \(Not a directory\)") as refused:
        list(answers._alone(ListDeadLetters(route=None, closed=False, limit=1)))
    assert refused.value.exit_code == 78
