"""Start, stop and restart a server process with its own port, folder and log."""

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

PROJECT = Path(__file__).resolve().parents[3]
CACHE = PROJECT / ".cache"
LOGS = CACHE / "servers" / "logs"

# Outside the kernel's range for outgoing connections (ip_local_port_range): no process takes the port of a server
# that is down, and a client that retries cannot connect to itself.
PORTS = range(20_000, 30_000)
OUTGOING = 32_768

# A server binds its port some seconds after `free_port` found it. Each worker of pytest-xdist has its own share of the
# ports, so that no other worker takes the port meanwhile.
SHARES = 8

# Waits until the starting process has ended: the kernel then closes its end of the pipe. A parent-death signal would
# arrive when the starting *thread* ends, and would leave a server's child processes and its folder.
GUARD = 'read -r group && read -r _; [ -z "$group" ] || kill -s KILL -- "-$group"; rm -rf -- "$1"'


# Files of a server's certificate.
KEY, CHAIN = "tls.key", "tls.pem"


class ServerError(RuntimeError):
    """A server did not start, or has ended. The text holds the reason and the end of its log."""


class Server:
    """A server on 127.0.0.1. Subclasses define the command and the check for readiness.

    Args:
        certificate: Private key and chain, PEM. A server with a certificate accepts TLS only.
        port: The port to listen on; a free port by default.
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

    # Methods of the subclasses

    def _prepare(self) -> None:
        """Prepare the folder `self.home`. Runs before every start, also if the folder holds data."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _user(self) -> int | None:
        return None

    def _ready(self) -> bool:
        """Return True once the server answers. The caller treats OSError as False."""
        raise NotImplementedError

    def _wipe(self) -> None:
        """Remove the data of a stopped server."""
        raise NotImplementedError

    def _write_certificate(self, folder: Path) -> None:
        """Write the certificate, if there is one. The server reads it at its next start."""
        for name, content in zip((KEY, CHAIN), self.certificate or (), strict=False):
            (folder / name).write_bytes(content)

    # Methods for callers

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart(self, *, keep_data: bool = True) -> None:
        """Restart on the same port, with the same data or without data. Raise ServerError."""
        self.stop()
        if not keep_data:
            self._wipe()
        self._launch()

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after `stop_seconds`. Do nothing if the server is down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make the server hang: the kernel accepts connections, the server sends no answer.

        Return after every process of the server has stopped, since a thread may still answer right after the signal.
        """
        os.killpg(self.pid, signal.SIGSTOP)
        while any(state not in "TZ" for state in self._states()):
            time.sleep(0.01)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def _states(self) -> list[str]:
        """Return the state of each process of the server, from /proc: T is stopped, Z has ended."""
        states = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # a process that has ended meanwhile
                state, _, group = file.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid:
                    states.append(state)
        return states

    def close(self) -> None:
        """Stop the server and remove its data; keep the log."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Implementation

    def started(self) -> Self:
        """Start the server, wait until it answers, and return it. Remove its data if that fails."""
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
            # A child process may end a moment after the server, and the next start needs a free port.
            deadline = time.monotonic() + self.stop_seconds
            while _listens(self.port):
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.name} has ended, but another process listens on its port {self.port}")
                time.sleep(0.01)
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            assert guard.stdin
            guard.stdin.close()
            guard.wait()


def _end_group(process: subprocess.Popen[bytes], how: signal.Signals, patience: float) -> None:
    if how is not signal.SIGKILL:
        # Only the started process gets the signal: the launcher of Elasticsearch forwards it to its node.
        process.send_signal(how)
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGCONT)
            process.wait(patience)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port(beside: int = 0, ports: range = PORTS) -> int:
    """Return a free port whose neighbour `beside` ports above it is free as well."""
    first, last, step = ports.start, min(ports.stop, OUTGOING - beside), 1
    if worker := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw"):
        first, step = first + int(worker) % SHARES, SHARES
    for port in random.sample(range(first, last, step), 100):
        if all(map(_is_free, {port, port + beside})):
            return port
    raise ServerError(f"no free port found between {first} and {last}")


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
