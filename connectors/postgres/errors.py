"""Classify errors of psycopg and of the server as errors of the sink contract."""

from __future__ import annotations

import re
import socket
import ssl
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import psycopg

from connectors.errors import RECONFIGURE, PermanentError, RetryableError, certificate_error, target_missing
from connectors.postgres.settings import hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.postgres.settings import PostgresSettings

_RETRYABLE: Final = {
    "25006": "read_only", "53100": "unavailable", "53200": "out_of_memory", "55P03": "timeout",
    "55006": "conflict", "57014": "timeout", "25P03": "timeout", "25P04": "timeout", "XX000": "unavailable",
}  # fmt: skip
"""Reasons by SQLSTATE: read-only transaction or standby, disk, memory, lock, object in use, statement, idle transaction,
transaction, internal error of the server (a concurrent change of the catalog, or a file that it can't read)."""
_RETRYABLE_CLASSES: Final = {
    "08": "unreachable",
    "40": "conflict",
    "53": "overloaded",
    "57P": "unavailable",
    "58": "unavailable",
}
"""Reasons by class: connection, transaction rollback, resources, shutdown, system error."""
TLS_REQUEST: Final = struct.pack("!ii", 8, 80_877_103)
_ALTERED: Final = "The table was altered. Run: cdf-replicator resume {route} (the route checks the table)"
_HINTS: Final = {
    "42501": "Grant the user what it lacks: TEMPORARY on the database; USAGE and CREATE on the schema of the table; USAGE on the schema of a type "
    "or a collation of its columns; SELECT, INSERT, UPDATE and DELETE on the table, its tombstones (NAME__cdf_deleted) and cdf_claim. It must own an existing table to add columns.",
    "42703": "A column was dropped or renamed. Run: cdf-replicator resync {route} (after a resume the column is null in each row of before)",
    "42804": _ALTERED, "42P22": _ALTERED, "42P10": _ALTERED, "428C9": _ALTERED,
    "55000": "A published table needs a replica identity. Run in the database: ALTER TABLE … ADD PRIMARY KEY, or ALTER TABLE … REPLICA "
    "IDENTITY. Otherwise remove the cause that the server names. Then run: cdf-replicator resume {route}",
    "23503": "Delete the rows that refer to it, then run: cdf-replicator resume {route}",
}  # fmt: skip
_OTHER_HINT: Final = f"Correct the table, then run: cdf-replicator resume {{route}}. Or correct the columns of the route, then {RECONFIGURE}"
_FUNCTION_HINT: Final = (
    "Correct the trigger of the table, or grant what it needs. Then run: cdf-replicator resume {route}"
)
_ROW_CLASSES: Final = ("21", "22", "23", "54000", "P0001")
_CODES: Final = {
    "21": "invalid", "22003": "out_of_range", "22007": "out_of_range", "22008": "out_of_range", "22021": "invalid_text", "22P05": "invalid_text",
    "22001": "too_large", "54000": "too_large", "23": "constraint",
}  # fmt: skip
"""22007 is a Julian day before the first one, 4714-11-24 BC."""
_NO_TRANSACTION_ID: Final = {"GetNewTransactionId", "GetNewMultiXactId"}
_KEY_TOO_LONG: Final = {"_bt_check_third_page", "index_form_tuple", "index_form_tuple_context"}
"""Functions of the server that raise 54000. The first refuse every write until a vacuum, the others a key that no index holds."""
# The texts of a connection that fails, which has no SQLSTATE. Those of the server are in the language of its lc_messages.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects connection|permission denied for database|"
    r"(role|database) \".*\" does not exist|is not permitted to log in|no such (database|user)"
)
_MISCONFIGURED: Final = re.compile(
    r"does not support SSL|certificate file \".*\" does not exist|invalid sslmode|private key file \"|unsupported startup parameter"
)
_OVERLOADED: Final = re.compile(r"too many|remaining connection slots|no more connections allowed")
_SHORT: Final = re.compile(
    r"starting up|shutting down|in recovery mode|not (yet )?accepting connections|server closed the connection|reset by peer"
)
"""Causes that pass. libpq may add the refusal of a second attempt, without TLS, which is then no cause of its own."""
_ABSENT: Final = re.compile(
    r"connection refused|timed out|timeout expired|no route to host|unreachable|could not translate", re.IGNORECASE
)
_HOST: Final = re.compile(r"- host: ([^,]*, port: [^,]*),")
"""A server in psycopg's list of the addresses that failed."""
_LINE: Final = re.compile(r"line (\d+)")


@contextmanager
def classified(server: str, *, rows: bool = False) -> Iterator[None]:
    """Raise an error of psycopg as a ``SinkError``. With ``rows`` an error that a row is to blame for stays unchanged."""
    try:
        yield
    except psycopg.Error as error:
        other = classify(error, server, rows=rows)
        if other is error:
            raise
        raise other from error


def classify(error: psycopg.Error, server: str, *, rows: bool = False) -> Exception:
    """Return the ``SinkError`` for an error of psycopg, or the error itself: of a row, or of the use of psycopg."""
    state, text = error.sqlstate or "", _first_line(error)
    if not state:
        return _no_state(error, server)
    classes = (reason for start, reason in _RETRYABLE_CLASSES.items() if state.startswith(start))
    reason = _RETRYABLE.get(state) or next(classes, None)
    if error.diag.source_function in _NO_TRANSACTION_ID:
        reason = "unavailable"
    if reason is not None:
        return RetryableError(reason, f"{server}: {text}")
    if state.startswith("42") and (function := _function_of(error)):
        return PermanentError(f"{server}: {text} ({function}).", _FUNCTION_HINT)
    if state == "42P01":
        return target_missing(f"{server}: {text}")
    if rows and is_row_error(error):
        return error
    if state == "0A000" and error.diag.message_detail:  # what depends on a column; other details may quote a row
        text = f"{text}: {error.diag.message_detail}"
    return PermanentError(f"{server}: {text}.", _HINTS.get(state, _OTHER_HINT))


def delete_ignored(table: str) -> PermanentError:
    """Return the error for deletes that the server did not carry out, without an error."""
    return PermanentError(
        f"Table {table} keeps rows that were deleted, or no tombstone of them: a BEFORE trigger returns NULL for such a row (a delete "
        "first writes the key alone), or row-level security hides it from DELETE.",
        "Remove the trigger, or let it return these rows. With row-level security, add a policy FOR DELETE (or grant BYPASSRLS). Then "
        "run: cdf-replicator resume {route}",
    )


def is_row_error(error: psycopg.Error) -> bool:
    """Return whether a row is to blame."""
    return (error.sqlstate or "").startswith(_ROW_CLASSES)


def is_key_error(error: psycopg.Error) -> bool:
    """Return whether no row of the table can have this key: COPY can't read it, or it is too long for an index.

    An error of a trigger, which has a context, is none: it may concern a row that the table has.
    """
    context = error.diag.context or ""  # in the language of lc_messages, but for the name of the command
    return context.startswith("COPY ") or (error.diag.source_function in _KEY_TOO_LONG and not context)


def code_of(error: psycopg.Error) -> str:
    """Return the rejection code of a row's error."""
    state = error.sqlstate or ""
    return _CODES.get(state) or _CODES.get(state[:2], "invalid")


def reason_of(error: psycopg.Error) -> str:
    """Return the server's text, with its place: the column, but not the value."""
    detail = error.diag.column_name or error.diag.constraint_name
    place = re.search(r"column ([^:]+)", error.diag.context or "")
    named = detail or (place[1] if place else "")
    return _first_line(error) + (f" ({named})" if named else "")


def line_of(error: psycopg.Error) -> int | None:
    """Return the line of COPY that the server names, from 1."""
    found = _LINE.search(error.diag.context or "")
    return int(found[1]) if found and (error.diag.context or "").startswith("COPY") else None


def _function_of(error: psycopg.Error) -> str:
    """Return the trigger or function in which an error occurred, which is the last line of its context; empty if there is none.

    The line of COPY, which may follow it, quotes values of the row.
    """
    lines = [line for line in (error.diag.context or "").splitlines() if not line.startswith("COPY ")]
    return lines[-1] if lines else ""


def _no_state(error: psycopg.Error, server: str) -> Exception:
    """Classify an error of the connection or of the protocol, which has a text only."""
    if not isinstance(error, (psycopg.OperationalError, psycopg.InternalError)):
        return error
    everything = " ".join(str(error).split())
    if _OVERLOADED.search(everything):
        return RetryableError("overloaded", f"{server}: {everything}")
    if not _passes(everything):
        if "does not match host name" in everything:
            return certificate_error(server, f"certificate verify failed: mismatch: {everything}") or error
        if _MISCONFIGURED.search(everything):
            return PermanentError(
                f"{server}: {everything}.", f"Correct CA_CERTS, or the options of the URL, then {RECONFIGURE}"
            )
        if _REFUSED.search(everything):
            return PermanentError(
                f"{server} refuses this user: {everything}.",
                f"Correct the user, the password or the database, then run: cdf-replicator resume {{route}}. If a setting of the sink changes, {RECONFIGURE}",
            )
    away = isinstance(error, psycopg.errors.ConnectionTimeout)
    return RetryableError("timeout" if away else "unreachable", f"{server}: {everything}")


def _passes(text: str) -> bool:
    """Return whether a cause of a failed connection passes: a server that starts, or one of several hosts that is away.

    An address of the same host that does not answer is no such cause: ``localhost`` often has two, of which a server has one.
    """
    return bool(_SHORT.search(text) or (_ABSENT.search(text) and len(set(_HOST.findall(text))) > 1))


def _first_line(error: psycopg.Error) -> str:
    return error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]


def certificate_refusal(settings: PostgresSettings) -> str:
    """Return the reason for which a server's certificate is refused, such as its age: libpq does not name it."""
    context = ssl.create_default_context(cafile=settings.ca_certs)
    for address in hosts(settings.url.get_secret_value()):
        with suppress(OSError), socket.create_connection(address, settings.timeout_seconds) as connection:
            connection.sendall(TLS_REQUEST)
            connection.recv(1)
            try:
                context.wrap_socket(connection, server_hostname=address[0]).close()
            except ssl.SSLCertVerificationError as error:
                return str(error)
    return "certificate verify failed"
