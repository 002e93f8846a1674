"""A server that is away, locked or replaced, and a table that changes."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from threading import Barrier

import psutil
import psycopg
import pytest

from connectors import PermanentError, RetryableError, Watermark
from connectors.postgres import PostgresSettings
from connectors.postgres.client import Database
from connectors.testing import SCHEMA, deletion, render_chunk, upsert
from connectors.testing.contract import assert_applied
from deploy.local.servers import Postgres
from tests.chaos.proxy import Proxy
from tests.contract.postgres_reader import impatient, route_to, sink_to
from tests.support.waiting import until

RACES = 150


@pytest.fixture(scope="module")
def own_server():
    """A server that its tests kill, pause and promote."""
    with Postgres.start() as server:
        yield server


def test_late_upsert_never_revives_a_deleted_key(postgres_server, spark, route, db):
    keys = [f"k{number}" for number in range(RACES)]
    sinks = [sink_to(postgres_server.url) for _ in range(2)]
    sinks[0].prepare(SCHEMA, route)
    chunks = [
        render_chunk(spark, sinks[0], route, SCHEMA, changes)
        for changes in ([deletion(key, 5) for key in keys], [upsert(key, 4, "late") for key in keys])
    ]
    start = Barrier(2)

    def race(sink, chunk):
        sink.open(route)
        for position in range(RACES):
            start.wait(30)
            sink.write(chunk.slice(position, 1))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(race, sinks, chunks))
    for sink in sinks:
        sink.close()
    assert db(f'SELECT id FROM "{route.table}"') == []
    assert len(db(f'SELECT id FROM "{route.table}__cdf_deleted"')) == RACES


def test_killed_server_is_unreachable_until_it_is_back(own_server, written):
    with closing(sink_to(own_server.url)) as sink:
        write = written(sink, route_to())
        assert_applied(write(upsert("a", 1)))
        own_server.kill()
        for _ in range(2):
            with pytest.raises(RetryableError) as caught:
                write(upsert("a", 2))
            assert caught.value.reason in {"unreachable", "unavailable"}
        own_server.restart()
        assert_applied(write(upsert("a", 2)))


def test_server_that_hangs_is_left_after_the_timeout(own_server, written, monkeypatch):
    monkeypatch.setattr("connectors.postgres.client.GRACE_SECONDS", 0.5)
    with closing(sink_to(own_server.url)) as sink:
        write = written(sink, route_to())
        own_server.pause()
        try:
            with impatient(sink), pytest.raises(RetryableError, match="timeout"):  # which also halves the chunks
                write(upsert("a", 1))
        finally:
            own_server.resume()
        assert_applied(write(upsert("a", 1)))


def test_answer_of_another_protocol_is_unreachable_until_it_is_gone(postgres_server, written, route):
    with Proxy(postgres_server.port) as proxy:
        url = postgres_server.url.replace(str(postgres_server.port), str(proxy.port))
        with closing(sink_to(url)) as sink:
            write = written(sink, route)
            proxy.mode = "garbage"
            for _ in range(2):
                with pytest.raises(RetryableError, match="unreachable"):
                    write(upsert("a", 1))
            proxy.mode = "pass"
            assert_applied(write(upsert("a", 1)))


def test_promoted_standby_has_lost_acknowledged_writes_and_refuses_writes_before(own_server, written):
    with closing(sink_to(own_server.url)) as sink:
        route = route_to()
        written(sink, route)
        sink.read_claim(route)
        assert not sink.lost_acknowledged_writes()
        own_server.stop()
        signal = own_server.home / "data" / "standby.signal"
        signal.touch()
        own_server.restart()
        with pytest.raises(RetryableError, match=r"unavailable|unreachable"):
            sink.check()
        with pytest.raises(RetryableError, match="read_only"):
            sink.check()
        with pytest.raises(RetryableError, match="read_only"):
            sink.save_watermark(route, Watermark(0, 1, 1))
        with psycopg.connect(own_server.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
            until(lambda: admin.execute("SELECT pg_is_in_recovery()").fetchone() == (False,))
        with pytest.raises(RetryableError, match="lost"):
            sink.save_watermark(route, Watermark(0, 1, 1))
        assert sink.lost_acknowledged_writes()


def test_restart_loses_writes_only_without_fsync(own_server, written):
    with closing(sink_to(own_server.url)) as sink:
        route = route_to()
        written(sink, route)
        sink.read_claim(route)
        own_server.restart()
        assert retried(sink.lost_acknowledged_writes) is False
        own_server.config["fsync"] = "off"
        own_server.restart()
        retried(lambda: sink.read_claim(route))
        own_server.restart()
        assert retried(sink.lost_acknowledged_writes) is True
        del own_server.config["fsync"]


def test_crash_of_a_server_process_loses_no_write(written):
    """The server ends every process and starts them again; the sink can't see that as a restart."""
    late = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    with Postgres.start(config=late) as server, closing(sink_to(server.url)) as sink:
        route = route_to()
        write = written(sink, route)
        sink.read_claim(route)
        assert_applied(write(upsert("a", 1)))
        with psycopg.connect(server.url) as other:
            process = psutil.Process(other.info.backend_pid)
            process.kill()
            until(lambda: not process.is_running())  # else the next connection can precede the recovery
        until(lambda: is_open(server))
        assert retried(sink.lost_acknowledged_writes) is False
        with psycopg.connect(server.url) as reader:
            assert reader.execute(f'SELECT id FROM "{route.table}"').fetchall() == [("a",)]


def is_open(server):
    """Return whether the server accepts a connection, which it does not while it recovers."""
    try:
        psycopg.connect(server.url).close()
    except psycopg.OperationalError:
        return False
    return True


def retried(call):
    """Return the result of a second try: the first finds that the connection has ended."""
    try:
        return call()
    except RetryableError:
        return call()


def test_older_watermark_in_the_table_means_that_it_was_restored(sink, written, route):
    write = written(sink, route)
    sink.save_watermark(route, Watermark(0, 4, 4))
    ahead = replace(route, watermark=Watermark(0, 5, 5))
    assert sink.read_claim(ahead).restored
    sink.open(ahead)
    with pytest.raises(RetryableError, match="lost"):
        write(upsert("a", 6))
    with pytest.raises(RetryableError, match="lost"):
        sink.save_watermark(ahead, Watermark(0, 6, 6))


@pytest.fixture(scope="module")
def locked_server():
    with Postgres.start(password="s3cret") as server:
        yield server


def test_wrong_password_or_database_halts_and_names_the_cure(locked_server):
    for url in (
        locked_server.url.replace("s3cret", "wrong"),
        locked_server.url.replace(":s3cret", ""),
        locked_server.url.replace("/postgres", "/absent"),
    ):
        with closing(sink_to(url)) as sink, pytest.raises(PermanentError, match="refuses this user") as caught:
            sink.check()
        assert "password" in caught.value.hint
        assert "s3cret" not in str(caught.value)


def test_server_that_refuses_the_database_or_the_host_halts(own_server):
    rules = own_server.home / "data" / "pg_hba.conf"
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE barred LOGIN; CREATE ROLE rejected LOGIN")
        admin.execute("CREATE DATABASE private")
        admin.execute("REVOKE CONNECT ON DATABASE private FROM PUBLIC")
        former = rules.read_text()
        rules.write_text("host all rejected 127.0.0.1/32 reject\n" + former)
        admin.execute("SELECT pg_reload_conf()")
        for user, database in (("barred", "private"), ("rejected", "postgres")):
            url = own_server.url.replace("cdf@", f"{user}@").replace("/postgres", f"/{database}")
            with closing(sink_to(url)) as sink, pytest.raises(PermanentError, match="refuses this user"):
                sink.check()
        rules.write_text(former)
        admin.execute("SELECT pg_reload_conf()")


def test_watermark_is_saved_on_the_server_whose_identity_was_read(postgres_server, written, monkeypatch):
    """A pooler may lead each transaction to another server."""
    with (
        Postgres.start(config={"fsync": "off"}) as another,
        closing(sink_to(postgres_server.url)) as sink,
        closing(sink_to(another.url)) as other,
    ):
        first, route = Watermark(0, 1, 1), route_to()
        for each in (sink, other):
            written(each, route)
            each.save_watermark(route, first)
        route = replace(route, watermark=first)
        sink.read_claim(route)
        database, later = sink._connected(), other._connected()._connected()
        connections = chain([database._connected()], repeat(later))
        monkeypatch.setattr(database, "_connected", lambda: next(connections))
        sink.save_watermark(route, Watermark(0, 2, 2))
        assert other.read_claim(route).watermark == first
        with pytest.raises(RetryableError, match="lost"):
            sink.save_watermark(route, Watermark(0, 3, 3))


def test_wrong_option_of_the_url_is_refused_without_the_url(locked_server):
    url = f"{locked_server.url}?sslmod=require"
    with closing(sink_to(url)) as sink, pytest.raises(PermanentError, match="libpq") as caught:
        sink.check()
    assert "s3cret" not in str(caught.value)


def test_password_setting_is_used_beside_the_url(locked_server):
    with closing(sink_to(locked_server.url.replace(":s3cret", ""), password="s3cret")) as sink:
        sink.check()


def _link(connection):
    """Return the socket of a connection."""
    return socket.socket(fileno=os.dup(connection.fileno()))


@pytest.mark.parametrize(("option", "idle"), [("", 60), ("?keepalives_idle=5", 5)])
def test_connection_that_is_dropped_in_silence_ends_in_two_minutes(postgres_server, option, idle):
    settings = PostgresSettings(type="postgres", url=postgres_server.url + option)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    database = Database(settings)
    with closing(database), database.transaction() as cursor, _link(cursor.connection) as link:
        seconds, interval, count, milliseconds = (link.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    assert (seconds, interval * count, milliseconds) == (idle, 60, 120_000)


def test_server_also_ends_a_connection_that_is_dropped_in_silence(postgres_server):
    """Else the transaction of a machine that vanished would keep the claim: no timeout acts while COPY waits for lines."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    settings = PostgresSettings(type="postgres", url=postgres_server.url)
    with closing(Database(settings)) as database, database.transaction() as cursor:
        found = [cursor.execute(f"SELECT current_setting('{name}')").fetchone()[0] for name in names]
    assert found == ["60", "10", "6", "120000"]


def test_limit_of_the_server_for_transactions_does_not_end_a_transaction(postgres_server):
    """The key of a large table takes longer, and would begin again without end."""
    settings = PostgresSettings(type="postgres", url=f"{postgres_server.url}?options=-ctransaction_timeout%3D500")
    with closing(Database(settings)) as database, database.transaction() as cursor:
        cursor.execute("SELECT pg_sleep(1)")
        assert cursor.execute("SELECT current_setting('transaction_timeout')").fetchone()[0] == "0"


def test_connection_ends_after_an_hour_also_if_nothing_uses_it(postgres_server, db, monkeypatch):
    """The temporary table of an open session keeps its transaction id in use."""

    def process(seconds=0):
        with database.transaction() as cursor:
            cursor.execute("SELECT pg_sleep(%s)", [seconds])
            return cursor.connection.info.backend_pid

    def is_open(process):
        return bool(db("SELECT pid FROM pg_stat_activity WHERE pid = %s", process))

    monkeypatch.setattr("connectors.postgres.client.LONGEST_USE_SECONDS", 1)
    monkeypatch.setattr("connectors.postgres.client.GRACE_SECONDS", 0.2)
    with closing(Database(PostgresSettings(type="postgres", url=postgres_server.url))) as database:
        first = process()
        assert process(1.5) == first, "a transaction is not interrupted"
        assert process() != first
        second = process()
        until(lambda: not is_open(second), 20)
        assert process() != second
        use = database._use
        database.close()
        timer = use._timer
        use._end_idle()  # the timer ended at the same time
        assert use._timer is timer, "no further timer"


def test_limit_of_connections_is_an_overload(postgres_server, db):
    db("CREATE ROLE limited LOGIN CONNECTION LIMIT 0")
    url = postgres_server.url.replace("cdf@", "limited@")
    with closing(sink_to(url)) as sink, pytest.raises(RetryableError, match="too many connections") as caught:
        sink.check()
    assert caught.value.reason == "overloaded"
    db("DROP ROLE limited")


def test_user_without_grants_is_refused_with_the_grants_it_needs(postgres_server, db, route):
    db("CREATE ROLE reader LOGIN")
    url = postgres_server.url.replace("cdf@", "reader@")
    with closing(sink_to(url)) as sink, pytest.raises(PermanentError, match="permission denied") as caught:
        sink.prepare(SCHEMA, route)
    assert "CREATE on the schema" in caught.value.hint
    db("DROP ROLE reader")


def test_read_only_database_is_retried(postgres_server, written, route, db):
    db("ALTER DATABASE postgres SET default_transaction_read_only = on")
    with closing(sink_to(postgres_server.url)) as sink:
        try:
            with pytest.raises(RetryableError, match="read_only"):
                written(sink, route)
        finally:
            db("SET default_transaction_read_only = off")
            db("ALTER DATABASE postgres RESET default_transaction_read_only")
        assert_applied(written(sink, route)(upsert("a", 1)))  # a connection of before would still be read-only


def test_connection_to_a_server_that_lost_writes_is_closed(postgres_server, written, route, db):
    def connected():
        return bool(db("SELECT pid FROM pg_stat_activity WHERE application_name = 'behind'"))

    with closing(sink_to(f"{postgres_server.url}?application_name=behind")) as sink:
        write = written(sink, route)
        sink.open(replace(route, watermark=Watermark(0, 5, 5)))
        assert connected()
        with pytest.raises(RetryableError, match="lost"):
            sink.save_watermark(replace(route, watermark=Watermark(0, 5, 5)), Watermark(0, 6, 6))
        until(lambda: not connected(), 20)
        sink.open(route)
        assert_applied(write(upsert("a", 1)))


def test_lock_on_the_table_is_a_timeout_and_not_a_halt(postgres_server, written, route, db):
    with closing(sink_to(postgres_server.url)) as sink:
        write = written(sink, route)
        with db.connection.transaction():
            db(f'LOCK TABLE "{route.table}"')
            with impatient(sink), pytest.raises(RetryableError) as caught:
                write(upsert("a", 1))
        assert caught.value.reason == "timeout"
        assert_applied(write(upsert("a", 1)))


def test_take_over_waits_for_a_writer_and_fences_it_off(postgres_server, written, route, db):
    with closing(sink_to(postgres_server.url)) as old, closing(sink_to(postgres_server.url)) as new:
        write = written(old, route)
        with db.connection.transaction():  # a writer that has not committed
            query = new._target(route).query("SELECT pg_advisory_xact_lock_shared({lock})")
            db.connection.execute(query)
            writer = rf"process {db.connection.info.backend_pid} .*pg_terminate_backend"
            with impatient(new, 3), pytest.raises(RetryableError, match=writer):
                new.prepare(SCHEMA, replace(route, fence=1))
        new.prepare(SCHEMA, replace(route, fence=1))
        with pytest.raises(PermanentError, match="another instance"):
            write(upsert("a", 1))


def test_dropped_table_halts_with_a_resync(sink, written, route, db):
    write = written(sink, route)
    db(f'DROP TABLE "{route.table}"')
    with pytest.raises(PermanentError, match="resync"):
        write(upsert("a", 1))
    with pytest.raises(PermanentError, match="resync"):
        sink.open(route)
    assert sink.read_claim(route) is None
    db(f'CREATE TABLE "{route.table}" (id text PRIMARY KEY, name text, _cdf_guard bigint)')
    assert sink.read_claim(route) is None, "another table of this name has no claim"
    with pytest.raises(PermanentError, match="resync"):
        write(upsert("a", 1))


def test_dropped_column_halts_with_a_resync_which_adds_it_again(sink, written, route, db):
    """After a resume the column would be null in the rows of before."""
    write = written(sink, route)
    db(f'ALTER TABLE "{route.table}" DROP COLUMN name')
    with pytest.raises(PermanentError, match="cdf-replicator resync"):
        write(upsert("a", 1, "one"))
    resync = replace(route, epoch=2)
    assert_applied(written(sink, resync)(upsert("a", 1, "one", epoch=2)))
    assert db(f'SELECT name FROM "{route.table}"') == [{"name": "one"}]
