"""The reaction to each class of errors of the server, without the server."""

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import DiagnosticField

from connectors import PermanentError, RetryableError
from connectors.postgres.errors import classify, code_of, is_key_error, is_row_error
from connectors.postgres.sink import PostgresSink


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.DiskFull, "unavailable"),
        (errors.OutOfMemory, "out_of_memory"),
        (errors.TooManyConnections, "overloaded"),
        (errors.ReadOnlySqlTransaction, "read_only"),
        (errors.DeadlockDetected, "conflict"),
        (errors.SerializationFailure, "conflict"),
        (errors.LockNotAvailable, "timeout"),
        (errors.QueryCanceled, "timeout"),
        (errors.IdleInTransactionSessionTimeout, "timeout"),
        (errors.AdminShutdown, "unavailable"),
        (errors.CannotConnectNow, "unavailable"),
        (errors.ConnectionFailure, "unreachable"),
        (errors.IoError, "unavailable"),
        (errors.ConnectionTimeout, "timeout"),
        (errors.InsufficientResources, "overloaded"),
        (errors.TransactionRollback, "conflict"),
        (errors.ObjectInUse, "conflict"),
        (errors.InternalError_, "unavailable"),
        (psycopg.OperationalError, "unreachable"),
    ],
)
def test_temporary_fault_is_retried_with_its_reason(error, reason):
    found = classify(error("the server's text"), "PostgreSQL at db")
    assert isinstance(found, RetryableError)
    assert (found.reason, found.detail) == (reason, "PostgreSQL at db: the server's text")


@pytest.mark.parametrize("function", [b"GetNewTransactionId", b"GetNewMultiXactId"])
def test_server_without_transaction_ids_is_retried_and_rejects_no_row(function):
    said = errors.ProgramLimitExceeded("no new ids", info={DiagnosticField.SOURCE_FUNCTION: function})
    found = classify(said, "PostgreSQL at db", rows=True)
    assert isinstance(found, RetryableError)
    assert found.reason == "unavailable"


@pytest.mark.parametrize(
    ("context", "of_key"),
    [
        ("COPY cdf_stage_1, Zeile 1, Spalte id: »a«", True),
        ('COPY cdf_stage_1, line 1, column id: "a"', True),
        ("PL/pgSQL-Funktion refuse() Zeile 3 bei RAISE", False),
        ("", False),
    ],
)
def test_key_that_copy_can_not_read_is_found_in_any_language(context, of_key):
    said = errors.CharacterNotInRepertoire("no", info={DiagnosticField.CONTEXT: context.encode()})
    assert is_key_error(said) is of_key


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.InsufficientPrivilege, "TEMPORARY"),
        (errors.UndefinedTable, "resync"),
        (errors.UndefinedColumn, "cdf-replicator resync"),
        (errors.DatatypeMismatch, "cdf-replicator resume"),
        (errors.InvalidCatalogName, "Correct the table"),
        (errors.TooManyColumns, "Correct the table"),
        (errors.ExternalRoutineException, "Correct the table"),
        (errors.ProgramLimitExceeded, "Correct the table"),
        (errors.ForeignKeyViolation, "Delete the rows that refer to it"),
    ],
)
def test_fault_of_the_table_or_the_user_halts_with_the_next_step(error, hint):
    found = classify(error("the server's text"), "PostgreSQL at db")
    assert isinstance(found, PermanentError)
    assert hint in found.hint


@pytest.mark.parametrize(
    "error", [errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction, errors.InsufficientPrivilege]
)
def test_fault_of_a_trigger_names_it_and_is_no_missing_target(error):
    context = b'SQL statement "INSERT"\nPL/pgSQL function audit() line 1 at SQL statement\nCOPY orders, line 1: "value"'
    found = classify(error("the server's text", info={DiagnosticField.CONTEXT: context}), "PostgreSQL at db")
    assert isinstance(found, PermanentError)
    assert found.reason.endswith("(PL/pgSQL function audit() line 1 at SQL statement).")
    assert "Correct the trigger of the table" in found.hint


def test_line_of_copy_is_no_trigger():
    said = errors.UndefinedTable("no", info={DiagnosticField.CONTEXT: b'COPY orders, line 1: "value"'})
    found = classify(said, "PostgreSQL at db")
    assert "resync" in found.hint
    assert "value" not in str(found)


@pytest.mark.parametrize(("error", "shown"), [(errors.FeatureNotSupported, True), (errors.InvalidCatalogName, False)])
def test_detail_that_has_no_value_of_a_row_is_shown(error, shown):
    said = error("no", info={DiagnosticField.MESSAGE_DETAIL: b"view v depends on column n"})
    assert ("view v depends on column n" in str(classify(said, "PostgreSQL at db"))) is shown


def test_missing_right_names_those_on_tables_too():
    found = classify(errors.InsufficientPrivilege("permission denied for table cdf_claim"), "PostgreSQL at db")
    assert "SELECT, INSERT, UPDATE and DELETE on the table, its tombstones" in found.hint
    assert "USAGE and CREATE on the schema" in found.hint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CharacterNotInRepertoire, "invalid_text"),
        (errors.UntranslatableCharacter, "invalid_text"),
        (errors.NumericValueOutOfRange, "out_of_range"),
        (errors.DatetimeFieldOverflow, "out_of_range"),
        (errors.InvalidDatetimeFormat, "out_of_range"),
        (errors.StringDataRightTruncation, "too_large"),
        (errors.ProgramLimitExceeded, "too_large"),
        (errors.CheckViolation, "constraint"),
        (errors.NotNullViolation, "constraint"),
        (errors.DataException, "invalid"),
        (errors.CardinalityViolation, "invalid"),
        (errors.RaiseException, "invalid"),
    ],
)
def test_fault_of_a_row_has_a_code_of_the_sink(error, code):
    found = error("the server's text")
    assert classify(found, "PostgreSQL at db", rows=True) is found
    assert is_row_error(found)
    assert code_of(found) == code
    assert code in PostgresSink.capabilities.rejection_codes


def failed(why, address="10.0.0.1"):
    return f'connection failed: connection to server at "{address}", port 5432 failed: {why}'


def listed(*attempts):
    """Return the text of psycopg for attempts at several addresses: the last one, then each with its host."""
    lines = [f"- host: '{host}', port: '5432', hostaddr: '10.0.0.1': {text}" for host, text in attempts]
    return "\n".join([attempts[-1][1], "Multiple connection attempts failed. All failures were:", *lines])


NO_ENTRY = 'FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "cdf", database "shop", no encryption'


@pytest.mark.parametrize(
    "text",
    [
        failed('FATAL:  permission denied for database "shop"\nDETAIL:  User does not have CONNECT privilege.'),
        failed(
            'FATAL:  pg_hba.conf rejects connection for host "10.0.0.9", user "cdf", database "shop", no encryption'
        ),
        failed("FATAL:  no such database: shop"),
        failed("FATAL:  no such user: cdf"),
        failed("FATAL:  unsupported startup parameter: options"),
        failed('private key file "/run/secrets/key" has group or world access; file must have permissions u=rw (0600)'),
        listed(("localhost", failed("Connection refused", "::1")), ("localhost", failed(NO_ENTRY))),
    ],
)
def test_refused_connection_halts(text):
    found = classify(psycopg.OperationalError(text), "PostgreSQL at db")
    assert isinstance(found, PermanentError)
    assert "\n" not in found.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (failed("FATAL:  sorry, too many clients already\n") + failed(NO_ENTRY), "overloaded"),
        (failed("FATAL:  the database system is starting up\n") + failed(NO_ENTRY), "unreachable"),
        (failed("FATAL:  the database system is shutting down\n") + failed(NO_ENTRY), "unreachable"),
        (failed("server closed the connection unexpectedly\n") + failed(NO_ENTRY), "unreachable"),
        (listed(("other", failed("Connection refused")), ("db", failed(NO_ENTRY))), "unreachable"),
        (listed(("other", "connection timeout expired"), ("db", failed(NO_ENTRY))), "unreachable"),
    ],
)
def test_refusal_beside_a_cause_that_passes_is_retried(text, reason):
    """libpq joins the texts of its attempts with TLS and without, and psycopg those of each host."""
    found = classify(psycopg.OperationalError(text), "PostgreSQL at db")
    assert isinstance(found, RetryableError)
    assert found.reason == reason
