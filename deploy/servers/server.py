"""A server process: its port, its folder, its log, its life."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache"
LOGS = CACHE / "servers" / "logs"

# Outside the range that the kernel gives to outgoing connections: while a server is down nobody takes its port, and a
# client that keeps trying cannot connect to itself.
PORTS = range(20_000, 30_000)
OUTGOING = 32_768

# Waits until the starter is gone, however it went: the kernel closes its end of the pipe. A parent-death signal would
# fire when the starting *thread* ends, and would miss a server's child processes and its folder.
GUARD = 'read -r group && read -r _; [ -z "$group" ] || kill -s KILL -- "-$group"; rm -rf -- "$1"'


# Files of a server's certificate.
KEY, CHAIN = "tls.key", "tls.pem"


class ServerError(RuntimeError):
    """A server did not start, or went away; the text holds the reason and the end of its log."""


class Server:
    """One server on 127.0.0.1. Subclasses say what to run and when it is ready.

    `certificate`: private key and chain, PEM, of those that can speak TLS; they then speak nothing else.
    """

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 30
    stop_seconds: ClassVar[float] = 20

    def __init__(self, certificate: tuple[bytes, bytes] | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self.home = Path(tempfile.mkdtemp(prefix=f"cdf-{self.name}-"))
        LOGS.mkdir(parents=True, exist_ok=True)
        started = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        self.log = LOGS / f"{self.name}-{started}-{self.port}.log"
        self.certificate = certificate
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # What a subclass says

    def _prepare(self) -> None:
        """Lay the folder (`self.home`) out; runs before every start, also on one that holds data."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _user(self) -> int | None:
        return None

    def _ready(self) -> bool:
        """True once the server answers; OSError counts as not yet."""
        raise NotImplementedError

    def _wipe(self) -> None:
        """Remove the data of a server that is down."""
        raise NotImplementedError

    def _write_certificate(self, folder: Path) -> None:
        """The one it has now, if it speaks TLS; another one is taken by the next start."""
        for name, content in zip((KEY, CHAIN), self.certificate or (), strict=False):
            (folder / name).write_bytes(content)

    # What everybody uses

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart(self, *, keep_data: bool = True) -> None:
        """Start again on the same port, with the same data or with none. Raises ServerError."""
        self.stop()
        if not keep_data:
            self._wipe()
        self._launch()

    def stop(self) -> None:
        """Ask it to stop, then insist. Does nothing to a server that is down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once with SIGKILL, as a crash does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make it hang: the kernel still takes connections, nothing answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it and remove its data; the log stays."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # How it works

    def started(self) -> Self:
        """Itself, running and answering; nothing is left if that fails."""
        try:
            self._launch()
        except BaseException:
            self.close()
            raise
        return self

    def _launch(self) -> None:
        self._prepare()
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, f"{self.name}-guard", str(self.home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        user = self._user()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.home,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        assert self._guard.stdin
        self._guard.stdin.write(b"%d\n" % self._process.pid)
        self._guard.stdin.flush()
        self._await_ready()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while not self._answers():
            if not self.running:
                raise ServerError(
                    f"{self.name} ended while it started; its log ({self.log}) ends with:\n{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.name} did not answer within {self.start_seconds:.0f} s; its log ({self.log}) ends with:\n{self._tail()}"
                )
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return self._ready()
        except OSError:
            return False

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end_group(process, how, self.stop_seconds)
            # A child of the server may be a moment behind it, and the port has to be free for the next start.
            deadline = time.monotonic() + self.stop_seconds
            while _listens(self.port):
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.name} is gone, yet something listens on its port {self.port}")
                time.sleep(0.01)
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            assert guard.stdin
            guard.stdin.close()
            guard.wait()


def _end_group(process: subprocess.Popen[bytes], how: signal.Signals, patience: float) -> None:
    if how is not signal.SIGKILL:
        # Only the process that was started is asked: the Elasticsearch launcher passes it on to its node by itself.
        process.send_signal(how)
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGCONT)
            process.wait(patience)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port(beside: int = 0) -> int:
    """A port that nobody listens on, and whose neighbour so many ports above is free as well."""
    last = min(PORTS.stop, OUTGOING - beside)
    for port in random.sample(range(PORTS.start, last), 100):
        if all(map(_is_free, {port, port + beside})):
            return port
    raise ServerError(f"no free port found between {PORTS.start} and {last}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
