"""Run an S3 server, s3proxy, on a folder: the object store of the tests."""

from __future__ import annotations

import http.client
import shutil
from typing import TYPE_CHECKING, ClassVar

from cdf_replicator.spark.java import java_home
from deploy.local.jars.fetch import artifacts, fetch
from deploy.local.servers.server import CACHE, Server

if TYPE_CHECKING:
    from pathlib import Path

BUCKET = "lake"
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java options without a second compiler and parallel garbage collection, to save processor time."""
IDENTITY, CREDENTIAL = "cdf", "cdf-secret-key"


class S3(Server):
    """An S3 server with one bucket, BUCKET. A restart keeps its objects."""

    name: ClassVar[str] = "s3"
    start_seconds: ClassVar[float] = 60

    @classmethod
    def start(cls) -> S3:
        """Start a server; fetch its jar if it is missing. Raise ServerError or FetchError."""
        fetch("s3-server", CACHE / "downloads")
        return cls().started()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings to use the server."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": IDENTITY,
            "spark.hadoop.fs.s3a.secret.key": CREDENTIAL,
        }

    @property
    def _bucket(self) -> Path:
        return self.home / "data" / BUCKET

    def _prepare(self) -> None:
        self._bucket.mkdir(parents=True, exist_ok=True)
        lines = {
            "s3proxy.endpoint": self.url,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": IDENTITY,
            "s3proxy.credential": CREDENTIAL,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.home / "data"),
        }
        (self.home / "s3proxy.properties").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def _command(self) -> list[str]:
        (jar,) = artifacts("s3-server")
        program = str(java_home() / "bin" / "java")
        properties = str(self.home / "s3proxy.properties")
        return [
            program,
            "-Xmx256m",
            *SHORT_LIVED,
            "-jar",
            str(CACHE / "downloads" / jar.file),
            "--properties",
            properties,
        ]

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < http.client.INTERNAL_SERVER_ERROR
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    def _wipe(self) -> None:
        shutil.rmtree(self.home / "data")
