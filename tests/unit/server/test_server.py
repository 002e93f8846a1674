"""The endpoints, over real HTTP."""

import gc
import logging
import re
import signal
import socket
from datetime import datetime, timezone
from urllib.parse import urljoin

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.server import connection, server
from tests.support.waiting import until
from tests.unit.boards import deliver

PATHS = ("/metrics", "/livez", "/healthz", "/readyz", "/status", "/", "/settings", "/routes/orders_search")
PAGES = ("/", "/settings", "/routes/orders_search", "/routes/absent")


class World:
    """A served board, and the reason why it is not alive."""

    def __init__(self) -> None:
        self.board = StatusStore()
        self.metrics = Metrics(self.board)
        self.dead_because: str | None = None
        self.server = server.start(self.board, self.metrics, "127.0.0.1", 0, lambda: self.dead_because)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.server.port}", timeout=10, verify=False)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def close(self) -> None:
        self.client.close()
        self.server.stop()


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


@pytest.fixture
def busy(world):
    """Two routes that run and have delivered."""
    deliver(world.board, version=13, at=datetime.now(timezone.utc))
    return world


def test_metrics_are_scraped_as_text(busy):
    answer = busy.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert len(families["cdf_route_state"].samples) == 2 * 8


def test_metrics_are_scraped_as_openmetrics_on_request(busy):
    answer = busy.get("/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "cdf_changes_received" in {family.name for family in parse_openmetrics(answer.text)}


def test_service_is_alive_until_its_supervisor_reports_a_failure(world):
    for path in ("/livez", "/healthz"):
        assert (world.get(path).status_code, world.get(path).json()) == (200, {"live": True, "reason": None})
    world.dead_because = "the JVM is gone"
    for path in ("/livez", "/healthz"):
        assert (world.get(path).status_code, world.get(path).json()["reason"]) == (503, "the JVM is gone")


def test_standby_that_polls_the_lease_is_ready(world):
    """A rollout waits for each pod to be ready before it replaces the next."""
    world.board.set_standby("host a, pid 1")
    assert world.get("/readyz").json()["ready"]
    assert world.get("/status").json()["service"]["standing_by"]
    world.board.stopping()
    assert world.get("/readyz").status_code == 503


def test_a_service_is_not_ready_before_it_has_routes(world):
    assert world.get("/readyz").status_code == 503


def test_a_running_service_is_ready(busy):
    answer = busy.get("/readyz")
    assert (answer.status_code, answer.json()["ready"], answer.json()["waiting"]) == (200, True, [])


def test_unreachable_sink_makes_the_service_unready_but_alive(busy):
    busy.board.sink_down("search", "connection refused", "unreachable", "start it")
    busy.board.state("orders_search", "retrying")
    busy.board.failed("orders_search", "connection refused", "unreachable", "start it")
    answer = busy.get("/readyz")
    (route,) = answer.json()["waiting"]
    assert answer.status_code == 503
    assert {key: route[key] for key in ("route", "table", "sink", "state")} == {
        "route": "orders_search",
        "table": "orders",
        "sink": "search",
        "state": "retrying",
    }
    assert datetime.fromisoformat(route["since"].replace("Z", "+00:00")).tzinfo is not None
    assert route["last_error"]["next_step"] == "start it"
    assert busy.get("/livez").status_code == 200


def test_a_stopping_service_is_not_ready(busy):
    busy.board.stopping()
    assert busy.get("/readyz").status_code == 503


def test_status_is_the_snapshot_of_the_store(busy):
    status = busy.get("/status").json()
    assert status["schema"] == 1
    assert {route["route"] for route in status["routes"]} == {"orders_search", "orders_cache"}
    assert status["routes"][0]["batches"][0]["rows"] == 1011
    assert status["routes"][0]["lag_seconds"] == 0
    assert status["service"]["state"] == "healthy"
    assert "secret" not in busy.get("/status").text


def test_rate_that_is_not_a_number_is_null(busy):
    busy.board.update("orders_search", input_rows_per_second=float("nan"), processed_rows_per_second=float("inf"))
    assert busy.get("/status").json()["routes"][1]["input_rows_per_second"] is None
    assert busy.get("/").status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_every_endpoint_answers_head_without_a_body(busy, path):
    answer = busy.client.head(path)
    assert answer.status_code == busy.get(path).status_code
    assert answer.content == b""


@pytest.mark.parametrize("path", [*PATHS, "/absent"])
def test_no_answer_is_sniffed_framed_or_cached(busy, path):
    headers = busy.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers


def test_unknown_paths_and_writing_methods_are_refused(busy):
    assert busy.get("/docs").status_code == 404
    assert busy.client.post("/status").status_code == 405


@pytest.mark.parametrize("request_", [b"GET /livez HTTP/1.1\r\nx: ", b"GET /"], ids=["head", "path"])
def test_large_request_is_refused(world, request_):
    with socket.create_connection(("127.0.0.1", world.server.port), timeout=10) as connection:
        connection.sendall(request_ + 100_000 * b"a")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_too_many_connections_close_the_oldest_and_probes_succeed(world, caplog):
    most, flood = connection.MOST, []
    try:
        for number in range(3 * most):
            client = socket.create_connection(("127.0.0.1", world.server.port), timeout=10)
            client.sendall(b"no request\r\n\r\n" if number % 3 == 0 else b"GET /livez HT")
            flood.append(client)
        assert httpx.get(f"http://127.0.0.1:{world.server.port}/livez", timeout=10).status_code == 200
        ended = all(_ended(client) for client in flood[:most])
    finally:
        for client in flood:
            client.close()
    assert ended, "without a file kept for them"
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_incomplete_request_is_closed(monkeypatch, world):
    with socket.create_connection(("127.0.0.1", world.server.port), timeout=60) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}") and (part := client.recv(10_000)):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.2)  # from here on: no answer has to come in that time
        client.sendall(b"GET /livez HT")  # the next one of a kept connection
        assert _ended(client)


def _ended(client: socket.socket) -> bool:
    """Return True if the server closes a connection, after any further bytes."""
    try:
        while client.recv(10_000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_large_responses_are_compressed_on_request(busy):
    assert busy.get("/metrics", **{"Accept-Encoding": "gzip"}).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in busy.get("/metrics", **{"Accept-Encoding": "identity"}).headers


@pytest.mark.parametrize("path", PAGES)
def test_page_needs_no_other_request_and_allows_only_its_script(busy, path):
    answer = busy.get(path)
    policy = answer.headers["content-security-policy"]
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', answer.text))
    assert f"script-src 'nonce-{nonce}'" in policy
    assert "form-action 'self'" in policy
    assert answer.headers["referrer-policy"] == "same-origin"
    assert nonce not in busy.get(path).text
    assert not re.findall(r"(?:src|srcset)=", answer.text)
    markup = answer.text.partition("<script")[0]
    links = set(re.findall(r'(?:href|action)="(?!data:)([^"#]+)', markup))
    assert {link.rsplit("/")[-1] for link in links} >= {
        "settings",
        "openapi.json",
        "metrics",
        "status",
        "readyz",
        "livez",
    }
    answers = {link: busy.client.get(urljoin(path, link)).status_code for link in links}
    assert 404 not in answers.values(), answers
    assert not re.search(r"<[^>]+\sstyle=", answer.text)


def test_pages_without_scripts_load_again_unless_they_have_a_form(busy):
    again = '<noscript><meta http-equiv="refresh" content="10"></noscript>'
    assert [again in busy.get(path).text for path in PAGES] == [True, True, True, False]


@pytest.mark.parametrize("path", ["/routes/absent", "/routes/%3Cb%3E", "/routes/orders_serch"])
def test_unknown_route_is_a_page(busy, path):
    answer = busy.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "<b>" not in answer.text


def test_overview_is_selected_by_the_address(busy):
    assert "orders_cache" not in busy.get("/?q=search").text.split("<tbody>")[1]
    assert busy.get("/?group=sink&state=halted&q=").text.count("No route is selected.") == 1
    assert busy.get("/?group=x&state=y&q=&unknown=1").status_code == 200


def test_responses_do_not_wait_for_acknowledgements(world):
    """Without this option each answer on a kept connection waits for a delayed acknowledgement, 40 ms."""

    def served() -> list[socket.socket]:
        """Return the sockets of the server: it closes the client's kept connection after some seconds without a request."""
        world.get("/livez")
        sockets = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
        return [one for one in sockets if _port(one) == world.server.port]

    until(lambda: len(served()) == 2, describe=lambda: "it listens, and serves the client's kept connection")
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in served())


def _port(one: socket.socket) -> int | None:
    """Return the port of a socket; None if another thread, as of another test's server, has closed it."""
    try:
        name = one.getsockname()
    except OSError:
        return None
    return name[1] if isinstance(name, tuple) else None


def test_a_port_in_use_names_the_port_and_the_variable(world):
    with pytest.raises(server.BindError, match=rf"port {world.server.port} on 127.0.0.1 .*CDF_HTTP__BIND_PORT"):
        server.start(world.board, world.metrics, "127.0.0.1", world.server.port, lambda: None)


def test_host_in_brackets_is_an_ipv6_address(world):
    running = server.start(world.board, world.metrics, "[::1]", 0, lambda: None)
    assert world.client.get(f"http://[::1]:{running.port}/livez").status_code == 200
    running.stop()


def test_unspecified_ipv6_address_accepts_ipv4_too(world):
    running = server.start(world.board, world.metrics, "::", 0, lambda: None)
    for host in ("127.0.0.1", "[::1]"):
        assert world.client.get(f"http://{host}:{running.port}/livez").status_code == 200
    running.stop()


def test_an_address_of_another_machine_names_the_variable(world):
    with pytest.raises(server.BindError, match="CDF_HTTP__HOST"):
        server.start(world.board, world.metrics, "192.0.2.1", 0, lambda: None)


def test_a_stopped_server_frees_its_port():
    world = World()
    assert world.get("/livez").status_code == 200
    world.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", world.server.port)) != 0
    again = server.start(world.board, world.metrics, "127.0.0.1", world.server.port, lambda: None)
    again.stop()
    again.stop()


def test_signals_stay_with_the_main_thread():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    world = World()
    world.get("/livez")
    assert {number: signal.getsignal(number) for number in before} == before
    world.close()
    assert {number: signal.getsignal(number) for number in before} == before


def test_requests_are_not_logged_and_other_loggers_are_unchanged(caplog):
    handlers = list(logging.getLogger("uvicorn").handlers)
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "uvicorn.error"):
        world = World()
        world.get("/livez")
        world.close()
    assert "uvicorn.access" not in {record.name for record in caplog.records}
    assert "uvicorn.error" in {record.name for record in caplog.records}
    assert logging.getLogger("uvicorn").handlers == handlers
