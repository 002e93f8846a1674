"""The page, metrics and actions behind nginx with TLS, with the configuration that docs/https.md shows."""

from __future__ import annotations

import re
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.server import server
from cdf_replicator.server.control import Control
from cdf_replicator.state import command_queue
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from deploy.local.servers.server import free_port
from tests.support.service import command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN, READ_TOKEN = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
SHOWN = Path(__file__).parents[2] / "docs" / "https.md"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    return StateStore.open(LocalPath(tmp_path_factory.mktemp("https") / "state"))


@pytest.fixture(scope="module")
def plain(state: StateStore) -> Iterator[int]:
    """The port of a service's server."""
    board = StatusStore()
    board.add_route("orders_cache", "orders", "cache")
    control = Control(TOKEN, ["orders_cache"], board)
    control.open_to(state)
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, control, [READ_TOKEN])
    yield running.port
    running.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the authority that has issued the proxy's certificate."""
    folder = tmp_path_factory.mktemp("authority")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate.private_key_pem.write_to_path(folder / "replicator.key")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "replicator.pem", append=True)
    return folder / "authority.pem"


@pytest.fixture(scope="module")
def proxy(plain: int, authority: Path, installed) -> Iterator[str]:
    """The address of nginx with the configuration of the page, with this test's files and ports."""
    installed("nginx-light")
    (shown,) = re.findall(r"```nginx\n(.*?)```", SHOWN.read_text(), re.DOTALL)
    port, folder = free_port(), authority.parent
    own = shown.replace("/etc/nginx", str(folder)).replace(":9443", f":{port}").replace(":9102", f":{plain}")
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log stderr; events {{}} http {{ access_log off; {temporary} {own} }}"
    )
    with subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")]) as process:
        try:
            until(lambda: _listens(port) or process.poll() is not None, 30)
            assert process.poll() is None
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}", trust_env=False)
    except httpx.TransportError:
        return False
    return True


@pytest.fixture
def client(proxy: str, authority: Path) -> Iterator[httpx.Client]:
    trusted = ssl.create_default_context(cafile=str(authority))
    with httpx.Client(base_url=proxy, verify=trusted, trust_env=False) as client:
        yield client


def test_pages_and_metrics_need_the_read_token_behind_the_proxy(client: httpx.Client):
    bearer = {"Authorization": f"Bearer {READ_TOKEN}"}
    codes = {path: client.get(path, headers=bearer).status_code for path in ("/", "/routes/orders_cache", "/metrics")}

    assert set(codes.values()) == {httpx.codes.OK}
    assert client.get("/metrics").status_code == httpx.codes.UNAUTHORIZED
    assert client.get("/livez").status_code == httpx.codes.OK


def test_only_a_form_of_the_own_page_is_executed(client: httpx.Client, state: StateStore, proxy: str):
    def pause(origin: str) -> int:
        form = {"token": TOKEN}
        return client.post(
            "/routes/orders_cache/actions/pause", data=form, headers={"Origin": origin}, auth=("operator", READ_TOKEN)
        ).status_code

    assert pause("https://elsewhere.example.com") == httpx.codes.FORBIDDEN
    assert command_queue.pending(state.requests) == []
    assert pause(proxy) == httpx.codes.SEE_OTHER
    assert [(each.kind, each.route) for each in command_queue.pending(state.requests)] == [("pause", "orders_cache")]


def test_status_reads_through_the_proxy_if_its_certificate_is_trusted(proxy: str, authority: Path, tmp_path: Path):
    given = environment(tmp_path, HTTP__READ_TOKEN=READ_TOKEN)

    trusted = command({**given, "SSL_CERT_FILE": str(authority)}, "status", "--url", proxy)
    unknown = command(given, "status", "--url", proxy)

    assert "orders_cache" in trusted.output
    assert unknown.code == 1
    assert "certificate verify failed" in unknown.log
