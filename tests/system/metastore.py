"""A Hive metastore server, out of the jars that pyspark brings; its database is in its memory."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar

import pyspark

from cdf_replicator.spark.java import java_home
from deploy.local.servers.server import Server
from tests.support.session import JAVA_OPTIONS


class HiveMetastore(Server):
    name: ClassVar[str] = "hive-metastore"
    start_seconds: ClassVar[float] = 120

    @property
    def conf(self) -> dict[str, str]:
        """Return the Spark settings to use the metastore."""
        return {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{self.port}",
            "spark.sql.warehouse.dir": str(self.home / "warehouse"),
        }

    def _command(self) -> list[str]:
        settings = {
            "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "derby.stream.error.file": str(self.home / "derby.log"),
            "hive.async.log.enabled": "false",  # its logger is not among pyspark's jars
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": str(self.home / "warehouse"),
        }
        return [
            str(java_home() / "bin" / "java"),
            *(*JAVA_OPTIONS.split(), "-Xmx256m", "-cp", str(Path(pyspark.__file__).parent / "jars" / "*")),
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)),
        ]

    def _ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
