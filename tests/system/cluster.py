"""A standalone Spark cluster of pyspark's own: a master and workers, each a process, gone afterwards."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyspark

from cdf_replicator.spark.java import java_home
from deploy.local.servers.server import Server, free_port
from tests.support.session import JAVA_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

HOME = Path(pyspark.__file__).parent


class _Node(Server):
    start_seconds: ClassVar[float] = 60

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        # No PYTHONPATH of ours: what executors need of us has to come from the driver.
        return {
            **kept,
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(HOME),
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
        }

    def _ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def _class(self, name: str, *words: str) -> list[str]:
        return [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *words]


class Master(_Node):
    name: ClassVar[str] = "spark-master"

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        return self._class("master.Master", "--port", str(self.port), "--webui-port", str(free_port()))


class Worker(_Node):
    name: ClassVar[str] = "spark-worker"

    def __init__(self, master: Master) -> None:
        super().__init__()
        self._master = master

    def _command(self) -> list[str]:
        places = ("--port", str(self.port), "--webui-port", str(free_port()), "--work-dir", str(self.home / "work"))
        return self._class("worker.Worker", "--cores", "1", "--memory", "1g", *places, self._master.url)
