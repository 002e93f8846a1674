"""The reaction to each class of errors of the server, without the server."""

import psycopg
import pytest
from psycopg import errors

from connectors import PermanentError, RetryableError
from connectors.postgres.errors import classify, code_of, is_row_error
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
        (psycopg.OperationalError, "unreachable"),
    ],
)
def test_temporary_fault_is_retried_with_its_reason(error, reason):
    found = classify(error("the server's text"), "PostgreSQL at db")
    assert isinstance(found, RetryableError)
    assert (found.reason, found.detail) == (reason, "PostgreSQL at db: the server's text")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.InsufficientPrivilege, "TEMPORARY"),
        (errors.UndefinedTable, "resync"),
        (errors.UndefinedColumn, "cdf-replicator resume"),
        (errors.DatatypeMismatch, "cdf-replicator resume"),
        (errors.InvalidCatalogName, "Correct the table"),
        (errors.TooManyColumns, "Correct the table"),
    ],
)
def test_fault_of_the_table_or_the_user_halts_with_the_next_step(error, hint):
    found = classify(error("the server's text"), "PostgreSQL at db")
    assert isinstance(found, PermanentError)
    assert hint in found.hint


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
    assert classify(found, "PostgreSQL at db") is found
    assert is_row_error(found)
    assert code_of(found) == code
    assert code in PostgresSink.capabilities.rejection_codes
