"""The token of the endpoints that only read."""

import httpx
import pytest

from cdf_replicator.cli.address import found, read_token
from cdf_replicator.cli.http_client import NoAnswerError, own_answer
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.server import server
from cdf_replicator.server.control import Control
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore

READ, CONTROL = "a-token-to-read", "a-token-to-control"
PROTECTED = ("/metrics", "/status", "/", "/settings", "/routes/orders_search", "/routes/orders_search/actions/pause")
PROBES = ("/livez", "/healthz", "/readyz")


@pytest.fixture
def board():
    board = StatusStore()
    board.add_sink("search", "elasticsearch", "http://search")
    board.add_route("orders_search", "orders", "search")
    return board


@pytest.fixture
def client(tmp_path, board):
    control = Control(CONTROL, ["orders_search"], board)
    control.open_to(StateStore.open(LocalPath(tmp_path / "state")))
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, control, (READ, CONTROL))
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=10, trust_env=False) as client:
        yield client
    running.stop()


def bearer(token: str) -> dict[str, bytes]:
    return {"Authorization": f"Bearer {token}".encode()}


@pytest.mark.parametrize("path", PROTECTED)
def test_reading_needs_the_token(client, path):
    for given in ({}, bearer("another"), {"Authorization": "Basic nonsense"}):
        for method in ("GET",) if "actions" in path else ("GET", "HEAD"):
            answer = client.request(method, path, headers=given)
            assert answer.status_code == 401, given
            assert answer.headers["WWW-Authenticate"] == 'Basic realm="cdf-replicator"', (
                "what a browser needs for its dialog"
            )
            assert answer.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "CDF_HTTP__READ_TOKEN" in client.get(path).text


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("token", [READ, CONTROL], ids=["read token", "control token"])
def test_token_is_accepted_as_bearer_and_as_password(client, path, token):
    assert client.get(path, headers=bearer(token)).status_code == 200
    assert client.get(path, auth=httpx.BasicAuth("operator", token)).status_code == 200


def test_probes_need_no_token_and_name_no_error(client):
    answers = {path: client.get(path) for path in PROBES}
    assert {path: answer.status_code for path, answer in answers.items()} == {
        "/livez": 200,
        "/healthz": 200,
        "/readyz": 503,
    }
    assert answers["/readyz"].json() == {"ready": False, "reason": "starting"}


def test_readiness_without_the_token_names_no_route_and_no_sink(client, board):
    def reason():
        answer = client.get("/readyz")
        assert answer.json().keys() == {"ready", "reason"}
        assert not any(name in answer.text for name in ("orders", "search", "host a"))
        return answer.status_code, answer.json()["reason"]

    board.state("orders_search", "running")
    board.sink_up("search")
    assert reason() == (200, "healthy")
    board.sink_down("search", "connection refused", "unreachable")
    assert reason() == (503, "degraded")
    board.state("orders_search", "halted", "the index of orders_search is gone")
    assert reason() == (503, "failed")
    board.set_standby("host a, pid 1")
    assert reason() == (200, "standby")
    board.stopping()
    assert reason() == (503, "stopping")


def test_read_token_does_not_control(client):
    assert client.post("/routes/orders_search/pause", headers=bearer(READ)).status_code == 401
    form = client.post("/routes/orders_search/actions/pause", headers=bearer(READ), data={"token": READ})
    assert form.status_code == 401


def test_form_needs_the_read_token_too(client):
    form = {"token": CONTROL}
    assert client.post("/routes/orders_search/actions/pause", data=form).status_code == 401
    accepted = client.post("/routes/orders_search/actions/pause", data=form, auth=httpx.BasicAuth("operator", READ))
    assert accepted.status_code == 303


@pytest.mark.parametrize("form", ["variable", "file", "yaml", "yaml file"])
def test_status_command_sends_the_configured_token(client, monkeypatch, tmp_path, form):
    secret, config = tmp_path / "token", tmp_path / "config.yaml"
    secret.write_text(f"{READ}\n")
    config.write_text("http: {read_token: " + READ + "}" if form == "yaml" else f"http: {{read_token_file: {secret}}}")
    variables = {
        "variable": ("CDF_HTTP__READ_TOKEN", READ),
        "file": ("CDF_HTTP__READ_TOKEN_FILE", str(secret)),
        "yaml": ("CDF_CONFIG_FILE", str(config)),
        "yaml file": ("CDF_CONFIG_FILE", str(config)),
    }
    url = str(client.base_url)
    with pytest.raises(NoAnswerError, match=r"answered 401 .*CDF_HTTP__READ_TOKEN"):
        own_answer(found(url), "/status", "routes", read_token())
    monkeypatch.setenv(*variables[form])
    assert own_answer(found(url), "/status", "routes", read_token())["routes"][0]["route"] == "orders_search"


def test_token_variable_overrides_the_file_that_yaml_names(monkeypatch, tmp_path):
    secret, config = tmp_path / "token", tmp_path / "config.yaml"
    secret.write_text("of the file")
    config.write_text(f"http: {{read_token_file: {secret}}}")
    monkeypatch.setenv("CDF_CONFIG_FILE", str(config))
    assert read_token() == "of the file"
    monkeypatch.setenv("CDF_HTTP__READ_TOKEN", "of the variable")
    assert read_token() == "of the variable"
