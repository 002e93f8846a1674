"""Connect to PostgreSQL by psycopg, and run transactions of bounded duration."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import Event, Timer
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.sql import SQL, Literal

from connectors.errors import PermanentError, RetryableError, certificate_error
from connectors.postgres.errors import certificate_refusal, classified, classify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.postgres.settings import PostgresSettings

OLDEST: Final = 150_000
STANDBY: Final = "25006"
"""SQLSTATE of a server that takes no writes. Its address may lead to the new primary at the next connection."""
GRACE_SECONDS: Final = 5
"""The server ends a statement that lasts too long. A server that hangs does not, so the client waits this much longer."""
KEEPALIVES: Final = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 6}
SILENCE_SECONDS: Final = 120
"""A connection that a firewall drops in silence ends after this time, also while a statement without a bound is sent or awaited."""
LONGEST_USE_SECONDS: Final = 3600
"""A connection ends after this time. Its temporary table keeps the server from the use of older transaction ids, also while it is
idle, and no vacuum of another session can change that."""
# Every option is local to its transaction: a pooler may give the next transaction another connection.
OPTIONS: Final = SQL(
    "SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL bytea_output = 'hex'; "
    "SET LOCAL extra_float_digits = 1; SET LOCAL client_min_messages = 'warning'; SET LOCAL jit = off; "
    "SET LOCAL lock_timeout = {wait}; SET LOCAL idle_in_transaction_session_timeout = {wait}; "
    "SET LOCAL statement_timeout = {most}; SET LOCAL tcp_keepalives_idle = 60; SET LOCAL tcp_keepalives_interval = 10; "
    "SET LOCAL tcp_keepalives_count = 6; SET LOCAL tcp_user_timeout = 120000"
)
"""The server has no time limit for the rest of a COPY. It ends the transaction of a machine that vanished, and releases the claim."""
SYNCHRONOUS: Final = (
    b"; SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
"""With ``synchronous_commit=off`` a crash of one server process loses commits that were acknowledged, and the server does not restart."""
UNLIMITED: Final = (
    b"; SELECT set_config('transaction_timeout', '0', true) "
    b"WHERE current_setting('transaction_timeout', true) IS NOT NULL"
)
"""Since version 17 a server or a role may limit a transaction, also that of the first load's key."""


class Database:
    """A connection to the server: opened at its first use, and again after a failure."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._connection: psycopg.Connection[Any] | None = None
        self._use: Use | None = None

    def __del__(self) -> None:
        """Close the connection, if the owner of the sink did not."""
        self.close()

    @property
    def server(self) -> str:
        return f"PostgreSQL at {self.settings.endpoint}"

    @contextmanager
    def transaction(
        self, *, bounded: bool = True, snapshot: bool = False, rows: bool = False
    ) -> Iterator[psycopg.Cursor[Any]]:
        """Run a transaction; raises ``SinkError``.

        Args:
            bounded: Whether its statements end after the settings' ``timeout_seconds``. Waits for locks always do.
            snapshot: Whether all statements see the database at one moment, and change nothing.
            rows: Whether an error that a row is to blame for stays a ``psycopg.Error``.
        """
        with classified(self.server, rows=rows):
            connection = self._connected()
            level = psycopg.IsolationLevel
            connection.isolation_level = level.REPEATABLE_READ if snapshot else level.READ_COMMITTED
            connection.read_only = snapshot or None
            seconds = self.settings.timeout_seconds
            wait = 0 if snapshot else int(seconds * 1000)
            late = Event()
            timer = Timer(seconds + GRACE_SECONDS, _cut, [connection, late])
            if bounded:
                timer.start()
            try:
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.execute(_local_options(wait, wait if bounded else 0, commits=not snapshot))
                    yield cursor
            except psycopg.Error as error:
                # Without a state the server did not say so: its next answer may belong to another statement.
                if error.sqlstate in {None, STANDBY}:
                    self.close()
                if late.is_set():
                    lasted = f"a transaction lasted longer than {seconds + GRACE_SECONDS:.0f} s"
                    raise RetryableError("timeout", f"{self.server}: {lasted}") from error
                raise
            except RetryableError:  # the server is a standby, or is older than the watermark
                self.close()
                raise
            finally:
                timer.cancel()

    def close(self) -> None:
        if self._use is not None:
            self._use.cancel()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._use = None

    def check(self) -> None:
        """Check that the server is reachable, new enough, and no standby."""
        with self.transaction() as cursor:
            cursor.execute("SELECT pg_is_in_recovery(), current_setting('server_version_num')::int")
            standby, version = cursor.fetchone() or (False, 0)
            if version < OLDEST:
                raise PermanentError(f"{self.server} has version {version // 10_000}.", "Use PostgreSQL 15 or later.")
            if standby:
                raise _read_only(self.server)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._use is not None and self._use.is_over():
            self.close()
        if self._connection is None or self._connection.closed:
            self.close()
            self._connection = _connect(self.settings)
            self._use = Use(self._connection)
        return self._connection


class Use:
    """The time for which a connection is used. A transaction may end after it, and none begins."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._end = monotonic() + LONGEST_USE_SECONDS
        self._wait(LONGEST_USE_SECONDS + GRACE_SECONDS)

    def is_over(self) -> bool:
        return monotonic() >= self._end

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._end_idle)
        self._timer.daemon = True
        self._timer.start()

    def _end_idle(self) -> None:
        """End a connection that the owner of the sink does not use any more: a route may be paused for weeks."""
        if self._connection.closed:
            return
        with suppress(psycopg.Error):  # the connection is closed meanwhile
            if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                _cut(self._connection)
            else:
                self._wait(GRACE_SECONDS)


@lru_cache(maxsize=16)
def _local_options(wait: int, most: int, *, commits: bool) -> bytes:
    """Return the statements that set the options; a transaction that only reads begins with no query, which takes its snapshot.

    Args:
        wait: Longest wait for a lock or for the next statement, in milliseconds; 0 for no limit.
        most: Longest duration of a statement, in milliseconds; 0 for no limit.
        commits: Whether the transaction writes.
    """
    local = OPTIONS.format(wait=Literal(wait), most=Literal(most)).as_bytes(None)
    return local + SYNCHRONOUS + UNLIMITED if commits else local


def _connect(settings: PostgresSettings) -> psycopg.Connection[Any]:
    url = settings.url.get_secret_value()
    # A server that takes no bytes of a chunk for the duration of its transaction is not silent.
    silence = max(SILENCE_SECONDS, settings.timeout_seconds + GRACE_SECONDS)
    options = {**KEEPALIVES, "tcp_user_timeout": int(silence * 1000)}
    more: dict[str, Any] = {name: value for name, value in options.items() if f"{name}=" not in url}
    if settings.password is not None:
        more["password"] = settings.password.get_secret_value()
    if settings.ca_certs is not None:
        more |= {"sslmode": "verify-full", "sslrootcert": settings.ca_certs}
    try:
        return psycopg.connect(
            url,
            autocommit=True,
            prepare_threshold=None,  # a pooler may give the next transaction another connection
            connect_timeout=max(2, int(settings.timeout_seconds)),
            client_encoding="utf8",
            fallback_application_name="cdf-replicator",
            **more,
        )
    except psycopg.ProgrammingError:  # the text may quote a part of the password
        raise PermanentError(
            f"The url of PostgreSQL at {settings.endpoint} has an option that libpq does not know, or a wrong escape.",
            "Correct the url: the documentation of libpq lists its options.",
        ) from None
    except psycopg.OperationalError as error:
        why = certificate_refusal(settings) if "certificate verify failed" in str(error) else ""
        raise (certificate_error(f"PostgreSQL at {settings.endpoint}", why) or error) from error


def identity_of(cursor: psycopg.Cursor[Any]) -> tuple[str, ...] | None:
    """Return an identity of the server that a loss of acknowledged writes changes; None if the server has none.

    A fail-over or a restore starts another timeline. A restart of the machine loses writes only if the server never waits for
    its disk (``fsync=off``). Raises ``RetryableError`` for a standby, which has no position to write at.
    """
    try:
        with cursor.connection.transaction():
            cursor.execute(
                "SELECT CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END, "
                "CASE WHEN current_setting('fsync') = 'off' THEN pg_postmaster_start_time()::text ELSE '' END"
            )
            found = cursor.fetchone()
    except psycopg.Error as error:
        if isinstance(classify(error, ""), PermanentError):
            return None
        raise
    if found is not None and found[0] is None:
        info = cursor.connection.info
        raise _read_only(f"PostgreSQL at {info.host}:{info.port}/{info.dbname}")
    return found


def _read_only(server: str) -> RetryableError:
    return RetryableError("read_only", f"{server} is a standby; writes need its primary")


def _cut(connection: psycopg.Connection[Any], late: Event | None = None) -> None:
    """Set ``late`` and end the connection, so that a thread that waits for its server continues with an error."""
    if late is not None:
        late.set()
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)
