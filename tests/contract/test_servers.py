import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from deploy.local.servers import Elasticsearch, Redis, ServerError
from tests.support.tiers import nightly
from tests.support.waiting import until

PROJECT = Path(__file__).parents[2]


def living(group: int) -> list[str]:
    """The processes of a group, without those that are dead and wait for their parent to notice."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.name())
    return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def left_behind(group: int, port: int, home: Path) -> list[str]:
    return living(group) + ([f"port {port}"] if listens(port) else []) + ([str(home)] if home.exists() else [])


@pytest.fixture
def scratch(monkeypatch):
    """Where servers of this test lay their folders, so that leftovers show; open to the user that Elasticsearch runs as."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


@pytest.fixture
def starter(request):
    """A process that starts the server named by the test and then waits to be killed: (process, pid, port, home)."""
    code = (
        f"from deploy.local.servers import {request.param}\n"
        f"server = {request.param}.start()\n"
        "print(server.pid, server.port, server.home, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pid, port, home = process.stdout.readline().split()
        yield process, int(pid), int(port), Path(home)
        process.kill()


def test_redis_responds_keeps_data_after_restart_and_stops_at_the_end():
    with Redis.start() as server:
        client = redis.Redis.from_url(server.url)
        client.set("word", "kept")
        port, first = server.port, server.pid
        server.restart()
        assert (server.port, client.get("word")) == (port, b"kept")
        assert server.pid != first
        server.kill()
        assert not listens(port)
        server.restart()
        assert client.get("word") == b"kept"
        server.restart(keep_data=False)
        assert client.get("word") is None
        client.close()
        group, home = server.pid, server.home
    assert left_behind(group, port, home) == []
    assert server.log.exists()


def test_paused_server_accepts_connections_and_responds_after_it_resumes():
    with Redis.start() as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        server.pause()
        connection.sendall(b"PING\r\n")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(64)
        assert listens(server.port)
        server.resume()
        connection.settimeout(30)
        assert connection.recv(64) == b"+PONG\r\n"
        server.pause()
        group, port, home = server.pid, server.port, server.home
    assert left_behind(group, port, home) == []


def test_redis_takes_directives_and_its_url_holds_the_password():
    with Redis.start(config={"requirepass": "p:w/d", "maxmemory": "8mb"}) as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.config_get("maxmemory") == {"maxmemory": str(8 << 20)}
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_failed_server_start_reports_the_reason_and_leaves_no_files(scratch):
    with pytest.raises(ServerError, match=r"(?s)redis ended while it started.*no_such_directive"):
        Redis.start(config={"no_such_directive": "1"})
    assert list(scratch.iterdir()) == []


def test_an_exception_in_the_block_still_stops_the_server():
    traces = []

    def fail_with_a_server_running():
        with Redis.start() as server:
            traces.extend([server.pid, server.port, server.home])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_a_server_running()
    assert left_behind(*traces) == []


@pytest.mark.parametrize("starter", ["Redis", nightly("Elasticsearch"), nightly("OpenSearch")], indirect=True)
def test_server_ends_with_its_parent_even_if_it_is_killed(starter):
    process, group, port, home = starter
    assert living(group)
    process.kill()
    process.wait()
    until(lambda: left_behind(group, port, home) == [], 30, lambda: str(left_behind(group, port, home)))


@pytest.mark.nightly
def test_elasticsearch_responds_keeps_data_after_restart_and_stops_at_the_end():
    with (
        Elasticsearch.start(password="secret") as server,
        httpx.Client(auth=("elastic", "secret"), timeout=60) as client,
    ):
        port, document = server.port, f"{server.url}/words/_doc/1"
        assert client.put(document, json={"word": "kept"}).status_code == httpx.codes.CREATED
        assert httpx.get(document, timeout=60).status_code == httpx.codes.UNAUTHORIZED

        server.pause()
        with pytest.raises(httpx.TimeoutException):
            client.get(document, timeout=0.5)
        server.resume()
        assert client.get(document).json()["_source"] == {"word": "kept"}

        server.kill()
        assert not listens(port)
        server.restart()
        assert server.port == port
        assert client.get(document).json()["_source"] == {"word": "kept"}
        group, home = server.pid, server.home
    assert left_behind(group, port, home) == []


@pytest.mark.nightly
def test_failed_elasticsearch_start_reports_the_reason_and_leaves_no_files(scratch):
    with pytest.raises(ServerError, match=r"(?s)elasticsearch ended while it started.*no\.such\.setting"):
        Elasticsearch.start(settings={"no.such.setting": "1"})
    assert list(scratch.iterdir()) == []
