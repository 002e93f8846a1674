"""PostgreSQL 15 of Debian behind PgBouncer in transaction mode, and a server whose disk is full."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psycopg
import pytest
import trustme

from connectors import RetryableError
from connectors.testing import SCHEMA, render_chunk, upsert
from connectors.testing.contract import assert_applied
from deploy.local.servers import Postgres
from deploy.local.servers.readable import NOBODY, programs_folder
from deploy.local.servers.server import Server
from tests.contract.postgres import test_postgres
from tests.contract.postgres.conftest import db, route, sink  # noqa: F401 - fixtures
from tests.contract.postgres_reader import route_to, sink_to
from tests.contract.tls_contract import pair

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 4
"""Transactions of one client run on several of them, in turns."""
DISK = "24m"


class Pooler(Server):
    name: ClassVar[str] = "pgbouncer"

    def __init__(self, server: Postgres) -> None:
        super().__init__()
        self._server = server

    @property
    def url(self) -> str:
        return f"postgresql://cdf@127.0.0.1:{self.port}/postgres"

    def _prepare(self) -> None:
        lines = {
            "listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": "", "auth_type": "any",
            "pool_mode": "transaction", "default_pool_size": CONNECTIONS, "server_round_robin": 1,
        }  # fmt: skip
        settings = "\n".join(f"{name} = {value}" for name, value in lines.items())
        database = f"postgres = host=127.0.0.1 port={self._server.port} user=cdf"
        (self.home / "pgbouncer.ini").write_text(f"[databases]\n{database}\n[pgbouncer]\n{settings}\n")
        self.home.chmod(0o755)

    def _command(self) -> list[str]:
        return ["/usr/sbin/pgbouncer", "pgbouncer.ini"]

    def _user(self) -> int | None:
        return NOBODY

    def _ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True


@pytest.fixture(scope="module")
def postgres_server(installed) -> Iterator[Pooler]:
    """The pooler, in place of the server that other tests use."""
    installed("postgresql", "pgbouncer")
    certificate = pair(trustme.CA().issue_cert("127.0.0.1"))  # with which the installed server is started
    with Postgres.start(certificate=certificate) as server, Pooler(server).started() as pooler:
        with ExitStack() as clients:  # each in a transaction, so that each gets a connection of its own
            for _ in range(CONNECTIONS):
                clients.enter_context(psycopg.connect(pooler.url)).execute("SELECT 1")
        yield pooler


class TestPostgres15BehindPooler(test_postgres.TestPostgresSink):
    def test_server_and_its_connections_are_those_of_this_test(self, db):  # noqa: F811 - the fixture
        (row,) = db("SELECT current_setting('server_version_num')::int / 10000 AS version")
        assert row["version"] == 15
        backends = {db("SELECT pg_backend_pid() AS pid")[0]["pid"] for _ in range(3 * CONNECTIONS)}
        assert len(backends) > 1, "transactions of one client run on several connections"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Mount a disk that the server's user can read, outside of pytest's folders: each start of pytest makes those private."""
    with tempfile.TemporaryDirectory(dir=programs_folder(as_root=True)) as folder:
        Path(folder).chmod(0o755)
        disk = Path(folder) / "disk"
        disk.mkdir()
        options = f"size={DISK},uid={NOBODY},gid={NOBODY},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
        yield disk
        subprocess.run(["umount", disk], check=True)


def test_full_disk_is_retried_until_there_is_space(small_disk, spark):
    with Postgres.start() as server, closing(sink_to(server.url)) as filling:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")  # type: ignore[arg-type]
            admin.execute("ALTER DATABASE postgres SET default_tablespace = small")
        target = route_to()
        filling.prepare(SCHEMA, target)
        filling.open(target)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(22 * 2**20))
        rows = [upsert(f"k{number}", 1, "x" * 1000) for number in range(3000)]
        chunk = render_chunk(spark, filling, target, SCHEMA, rows)
        with pytest.raises(RetryableError, match="No space left on device") as caught:
            filling.write(chunk)
        assert caught.value.reason == "unavailable"
        ballast.unlink()
        assert_applied(filling.write(chunk))
