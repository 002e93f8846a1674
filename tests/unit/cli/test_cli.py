"""The command as people and machines use it: a process, its two streams, its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from cdf_replicator import __version__
from cdf_replicator.cli.address import Address, found
from cdf_replicator.cli.app import app
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.server import server
from cdf_replicator.state import service_record
from cdf_replicator.state.lease import Lease
from cdf_replicator.state.service_record import ServiceRecord
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Command = Callable[..., subprocess.CompletedProcess[str]]

COMMANDS = [
    [],
    ["run"],
    ["replay"],
    ["resync"],
    ["changes"],
    ["enable"],
    ["pause"],
    ["resume"],
    ["validate"],
    ["status"],
    ["healthcheck"],
    ["version"],
    ["config"],
    ["config", "show"],
    ["config", "schema"],
    ["config", "env"],
    ["dead-letters"],
    ["dead-letters", "list"],
    ["dead-letters", "show"],
    ["dead-letters", "redrive"],
    ["dead-letters", "discard"],
]

GOOD = {
    "CDF_STATE_PATH": "/state",
    "CDF_TABLES__ORDERS__PATH": "/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "store",
    "CDF_SINKS__STORE__TYPE": "example_store",
    "CDF_SINKS__STORE__HOSTS": "http://a:9200",
    "CDF_SINKS__STORE__PASSWORD": "hunter2",
}

PATIENT = (
    "from functools import partial; from cdf_replicator.cli import http_client; "
    "http_client.get = partial(http_client.get, timeout=30)"
)
"""Code of a command's process: on a busy machine the service may not answer within the three seconds of a command."""


@pytest.fixture
def command(example_sinks: Path) -> Command:
    """Run ``cdf-replicator`` with these words and nothing but these ``CDF_`` variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CDF_")}
    path = os.pathsep.join(filter(None, [str(example_sinks), os.environ.get("PYTHONPATH")]))

    def run(
        *words: str, environ: dict[str, str] | None = None, before: str = PATIENT
    ) -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.argv[0] = 'cdf-replicator'; {before}; from cdf_replicator.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env=clean | {"PYTHONPATH": path} | (environ or {}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def here(*words: str, environ: dict[str, str] | None = None):
    """Run a command in this process, for tests that need no process of its own."""
    return CliRunner().invoke(app, words, env=environ, prog_name="cdf-replicator")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(words: list[str]) -> None:
    short, long = here(*words, "-h"), here(*words, "--help")
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert short.stdout.startswith("Usage: cdf-replicator")
    assert re.search(r"Examples:\n +\S", short.stdout)
    assert "startingVersion" not in short.stdout
    assert not short.stderr


BUILT_IN = {
    "CDF_STATE_PATH": "/state",
    "CDF_TABLES__ORDERS__PATH": "/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "audit,search,cache",
    "CDF_SINKS__AUDIT__TYPE": "delta_audit",
    "CDF_SINKS__AUDIT__PATH": "/audit",
    "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
    "CDF_SINKS__SEARCH__HOSTS": "http://es:9200",
    "CDF_SINKS__CACHE__TYPE": "redis",
    "CDF_SINKS__CACHE__URL": "redis://cache:6379/0",
    "CDF_ROUTES__ORDERS_CACHE__KEY_TEMPLATE": "orders:{id}",
}


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["validate", "--offline"]], ids=" ".join)
def test_simple_commands_load_neither_spark_nor_clients(command: Command, words: list[str]) -> None:
    heavy = "{'pyspark', 'py4j', 'pyarrow', 'pandas', 'numpy', 'redis', 'elasticsearch', 'elastic_transport'}"
    before = f"import atexit, os; atexit.register(lambda: {heavy} & set(sys.modules) and os._exit(99))"
    result = command(*words, environ=BUILT_IN, before=before)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("client", "extra"), [("redis", "redis"), ("elastic_transport", "elasticsearch")])
def test_missing_client_library_is_reported_with_its_extra_before_the_start(
    command: Command, client: str, extra: str
) -> None:
    result = command("validate", "--offline", environ=BUILT_IN, before=f"sys.modules[{client!r}] = None")
    assert result.returncode == 78
    assert f"pip install 'cdf-replicator[{extra}]'" in result.stderr


def test_health_check_loads_no_heavy_library(command: Command) -> None:
    heavy = "{'pyspark', 'pydantic', 'typer', 'rich', 'yaml', 'connectors'}"
    before = f"import atexit, os; atexit.register(lambda: {heavy} & set(sys.modules) and os._exit(99))"
    assert command("healthcheck", environ={"CDF_HTTP__BIND_PORT": "1"}, before=before).returncode == 1


def test_version_prints_one_line_or_all_versions(command: Command) -> None:
    assert command("--version").stdout == f"cdf-replicator {__version__}\n"
    lines = command("version").stdout.splitlines()
    assert lines[0] == f"cdf-replicator {__version__}"
    assert "pyspark 4.2.0" in lines
    assert "sink example_store (example-sinks 1.0)" in lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fly"], "fly"),
        (["run", "--tabel", "x"], "--table"),
        (["run", "--starting-version", "x"], "TABLE=NUMBER"),
        (["run", "--starting-version", "-1"], "TABLE=NUMBER"),
        (["run", "--starting-version", "orders="], "TABLE=NUMBER"),
        (["run", "--startingVersion", "latest"], "would lose"),
        (["run", "--table", "order"], "did you mean 'orders'?"),
        (["run", "--starting-version", "order=1"], "did you mean 'orders'?"),
        (["replay"], "ROUTE|TABLE"),
        (["replay", "orders_store"], "--starting-version"),
        (["replay", "order_store", "--starting-version", "1"], "did you mean 'orders_store'?"),
        (["replay", "orders", "--startingVersion", "9", "--endingVersion", "8"], "8 is before 9"),
        (["resync", "orders"], "did you mean 'orders_store'?"),
        (["resync", "orders_store", "--max-removed-share", "2"], "--max-removed-share"),
        (["changes", "orders"], "one of --from and --from-timestamp"),
        (["changes", "orders", "--from", "1", "--from-timestamp", "2026-01-31"], "not both"),
        (["changes", "orders", "--from", "3", "--to", "2"], "2 is before 3"),
        (["changes", "orders", "--from-timestamp", "yesterday"], "2026-01-31T12:00:00.123+01:00"),
        (["changes", "/lake/orders", "--from", "1", "--key", "7"], "--keys"),
        (["status", "--format", "xml"], "xml"),
        (["config", "env", "--format", "xml"], "xml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("example_sinks")
def test_wrong_words_are_a_usage_error(words: list[str], says: str) -> None:
    result = here(*words, environ=GOOD)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "--once"],
        ["validate"],
        ["validate", "--offline"],
        ["config", "show"],
        ["resync", "orders_store"],
        ["replay", "orders", "--starting-version", "1"],
    ],
    ids=" ".join,
)
def test_every_mistake_of_a_configuration_is_reported_and_exits_78(command: Command, words: list[str]) -> None:
    wrong = GOOD | {"CDF_HTTP__BIND_PORT": "many", "CDF_TABELS__X__PATH": "/x"}
    result = command(*words, environ=wrong)
    assert result.returncode == 78
    assert "configuration: 2 problems" in result.stderr
    assert "CDF_HTTP__BIND_PORT  (YAML: http.bind_port)" in result.stderr
    assert "did you mean CDF_TABLES__X__PATH?" in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


def test_problems_are_machine_readable_too(command: Command) -> None:
    result = command("validate", "--format", "json", environ=GOOD | {"CDF_HTTP__BIND_PORT": "many"})
    assert result.returncode == 78
    answer = json.loads(result.stdout)
    assert answer == {
        "ok": False,
        "problems": [
            {
                "variable": "CDF_HTTP__BIND_PORT",
                "path": "http.bind_port",
                "given": "'many'",
                "expected": "a whole number",
            },
        ],
    }


def test_valid_configuration_is_shown_by_its_routes(command: Command) -> None:
    result = command("validate", "--offline", environ=GOOD)
    assert result.returncode == 0
    assert result.stdout == "configuration: ok\n  orders_store: /orders -> store (example_store)\n"
    assert json.loads(command("validate", "--offline", "--format", "json", environ=GOOD).stdout) == {
        "ok": True,
        "problems": [],
    }


def test_effective_settings_are_shown_without_secrets(command: Command) -> None:
    conf = {
        "spark.driver.extraJavaOptions": "-Dhttps.proxyPassword=hunter2 -Djavax.net.ssl.trustStorePassword=hunter2 -Dx=1",
        "spark.hadoop.fs.s3a.encryption.key": "hunter2",
        "spark.sql.catalog.db.url": "jdbc:sqlserver://db;user=u;password=hunter2",
    }
    result = command("config", "show", environ=GOOD | {"CDF_SPARK__CONF": json.dumps(conf)})
    assert result.returncode == 0
    assert re.search(r"^state_path +/state +environment$", result.stdout, re.MULTILINE)
    assert re.search(r"^sinks.store.password +\*+ +environment$", result.stdout, re.MULTILINE)
    assert re.search(r"^trigger_seconds +1 +default$", result.stdout, re.MULTILINE)
    assert "hunter2" not in result.stdout
    values = json.loads(command("config", "show", "--format", "json", environ=GOOD).stdout)
    assert {"variable": "CDF_STATE_PATH", "path": "state_path", "value": "/state", "origin": "environment"} in values


def test_starting_version_of_a_table_without_a_route_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = {"CDF_STATE_PATH": str(tmp_path / "file" / "state"), "CDF_TABLES__ITEMS__PATH": "/items"}
    words = ("run", "--once", "--starting-version", "orders=1", "--starting-version", "items=1")
    result = command(*words, environ=GOOD | unusable)
    assert result.returncode == 2, result.stderr
    assert "'items' has no route in this instance" in " ".join(result.stderr.replace("│", "").split())


def test_the_list_of_variables_needs_no_configuration(command: Command) -> None:
    text = command("config", "env").stdout
    assert "CDF_SINKS__<SINK>__HOSTS  (list: a,b or JSON, required)" in text
    assert len(json.loads(command("config", "env", "--format", "json").stdout)) > 30


def test_the_schema_is_json(command: Command) -> None:
    assert json.loads(command("config", "schema").stdout)["title"] == "cdf-replicator"


@pytest.fixture
def service() -> Iterator[tuple[StatusStore, str]]:
    board = StatusStore()
    board.add_sink("search", "example_store", "http://a")
    board.add_route("orders_search", "orders", "search")
    board.add_route("items_search", "items", "search")
    board.state("orders_search", "running")
    board.update("orders_search", source_version=12, oldest_undelivered_commit_at=None)
    board.update("orders_search", delivered_version=12)
    board.state("items_search", "halted", "the index is gone")
    board.failed("items_search", "index items is gone", "index_missing", "run: cdf-replicator resync items_search")
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None)
    yield board, f"http://127.0.0.1:{running.port}"
    running.stop()


def test_status_shows_the_worst_route_first(command: Command, service: tuple[StatusStore, str]) -> None:
    step = "run: cdf-replicator resync items_search"
    service[0].failed("items_search", "the index of key \x1b[2J is gone", "index_missing", step)
    result = command("status", "--url", service[1])
    assert result.returncode == 0
    head, _, titles, worst, best = (line.rstrip() for line in result.stdout.rstrip().splitlines())
    assert head.startswith("failed: Halted, action required: items_search.")
    assert titles.split()[:2] == ["ROUTE", "STATE"]
    assert re.match(r"items_search +halted \(the index is gone\) +- +- +-", worst)
    assert worst.endswith(rf"the index of key \x1b[2J is gone {step}"), "a terminal executes no value of a row"
    assert re.match(r"orders_search +running +12 +12 +0 versions", best)


def test_status_is_json_for_machines(command: Command, service: tuple[StatusStore, str]) -> None:
    answer = json.loads(command("status", "--url", service[1] + "/", "--format", "json").stdout)
    assert [route["route"] for route in answer["routes"]] == ["items_search", "orders_search"]


@pytest.fixture
def hearing_ctrl_c() -> Iterator[None]:
    """Handle SIGINT: a process in the background may ignore it, and its children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hearing_ctrl_c")
def test_watching_ends_well_with_ctrl_c(service: tuple[StatusStore, str]) -> None:
    code = f"{PATIENT}; from cdf_replicator.cli import main; main()"
    words = [sys.executable, "-c", code, "status", "--watch", "--format", "json", "--url", service[1]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["schema"] == 1
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (0, "")


@pytest.mark.parametrize("form", ["json", "table"])
@pytest.mark.usefixtures("hearing_ctrl_c")
def test_watching_continues_after_a_missed_answer(form: str) -> None:
    board = StatusStore()
    board.add_route("orders_search", "orders", "search")
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None)
    port = running.port
    words = [
        sys.executable,
        "-m",
        "cdf_replicator",
        "status",
        "--watch",
        "--format",
        form,
        "--url",
        f"127.0.0.1:{port}",
    ]
    terminal, inner = pty.openpty()
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        while select.select([terminal], [], [], 0)[0]:
            shown += os.read(terminal, 65_536).decode(errors="replace")
        return text in shown

    with subprocess.Popen(words, stdout=inner, stderr=inner, env={**os.environ, "COLUMNS": "200"}) as watching:
        until(lambda: shows("orders_search"), 30)
        running.stop()
        until(lambda: shows("does not answer"), 30)
        running = server.start(board, Metrics(board), "127.0.0.1", port, lambda: None)
        shown = ""
        until(lambda: shows("orders_search"), 30)
        watching.send_signal(signal.SIGINT)
    running.stop()
    for end in (terminal, inner):
        os.close(end)
    assert watching.returncode == 0


def test_status_finds_the_service_of_this_host(command: Command, service: tuple[StatusStore, str]) -> None:
    port = service[1].rpartition(":")[2]
    for host in ("127.0.0.1", "0.0.0.0", ""):
        environ = {"CDF_HTTP__BIND_PORT": port, "CDF_HTTP__HOST": host, "http_proxy": "http://127.0.0.1:1"}
        assert command("status", environ=environ).returncode == 0
        health = command("healthcheck", environ=environ)
        assert (health.returncode, health.stdout) == (0, "alive\n")


@pytest.fixture
def folder(tmp_path: Path, service: tuple[StatusStore, str]) -> Path:
    """The state path of the service."""
    state = StateStore.open(LocalPath(tmp_path / "state"))
    service[0].belongs_to(state.owner, str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_service_is_found_by_the_port_of_the_configuration_file(
    command: Command, service: tuple[StatusStore, str], folder: Path
) -> None:
    file = folder.with_name("cdf.yaml")
    file.write_text(f"state_path: {folder}\nhttp: {{bind_port: {service[1].rpartition(':')[2]}}}\n")
    status = command("status", environ={"CDF_CONFIG_FILE": str(file)})
    assert (status.returncode, status.stderr) == (0, f"service: {service[1]}\n")
    health = command("healthcheck", environ={"CDF_CONFIG_FILE": str(file)})
    assert (health.returncode, health.stdout, health.stderr) == (0, "alive\n", f"service: {service[1]}\n")


def test_service_is_found_by_address_in_lease(command: Command, service: tuple[StatusStore, str], folder: Path) -> None:
    held = Lease.acquire(LocalPath(folder), url=service[1].replace("127.0.0.1", "0.0.0.0"))
    try:
        for words in ("status", "healthcheck"):
            result = command(words, environ={"CDF_STATE_PATH": str(folder)})
            assert (result.returncode, result.stderr) == (0, f"service: {service[1]}\n")
    finally:
        held.release()


def test_service_on_any_free_port_is_found(command: Command, service: tuple[StatusStore, str], folder: Path) -> None:
    held, root = Lease.acquire(LocalPath(folder)), LocalPath(folder)
    port = int(service[1].rpartition(":")[2])
    service_record.publish(root, ServiceRecord("0.0.0.0", port, socket.gethostname(), held.token, "secret"))
    try:
        for words in ("status", "healthcheck"):
            result = command(words, environ={"CDF_STATE_PATH": str(folder), "CDF_HTTP__BIND_PORT": "0"})
            assert (result.returncode, result.stderr) == (0, f"service: {service[1]}\n")
    finally:
        held.release()


def test_state_path_that_cannot_be_searched_leads_to_default_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CDF_CONFIG_FILE", "CDF_HTTP__HOST", "CDF_HTTP__BIND_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CDF_STATE_PATH", f"/{'s' * 300}/")
    assert found(None) == Address("http://127.0.0.1:9102", None, f"/{'s' * 300}")


@pytest.mark.parametrize("words", ["status", "healthcheck"])
def test_the_answer_of_another_service_is_refused(
    command: Command, service: tuple[StatusStore, str], folder: Path, words: str
) -> None:
    ours = folder.with_name("ours")
    StateStore.open(LocalPath(ours))
    port = service[1].rpartition(":")[2]
    result = command(words, environ={"CDF_STATE_PATH": str(ours), "CDF_HTTP__BIND_PORT": port})
    assert (result.returncode, result.stdout) == (1, "")
    assert f"answers for another service, whose state path is {folder} and not {ours}" in result.stderr
    remote = {"CDF_STATE_PATH": "s3a://lake/state", "CDF_HTTP__BIND_PORT": port}
    assert "answers for another service" in command(words, environ=remote).stderr


def test_status_without_service_names_next_step(command: Command) -> None:
    result = command("status", "--url", "127.0.0.1:1")
    assert result.returncode == 1
    assert "no running service: http://127.0.0.1:1/status does not answer" in result.stderr
    assert "cdf-replicator run" in result.stderr
    assert not result.stdout


def test_health_check_of_a_failed_service_reports_its_reason(command: Command) -> None:
    board = StatusStore()
    dead = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: "the JVM is gone")
    try:
        for words in (["healthcheck"], ["healthcheck", "--url", f"http://127.0.0.1:{dead.port}"]):
            result = command(*words, environ={"CDF_HTTP__BIND_PORT": str(dead.port)})
            assert result.returncode == 1
            assert "503" in result.stderr
            assert "the JVM is gone" in result.stderr
    finally:
        dead.stop()


class Stranger(BaseHTTPRequestHandler):
    """Something else that listens on the port."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: object) -> None:
        pass


def test_another_program_on_the_port_is_distinguished(command: Command) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        thread = threading.Thread(target=stranger.serve_forever)
        thread.start()
        try:
            result = command("status", "--url", f"http://127.0.0.1:{stranger.server_port}")
            health = command("healthcheck", "--url", f"http://127.0.0.1:{stranger.server_port}")
        finally:
            stranger.shutdown()
            thread.join()
    assert result.returncode == 1
    assert "not with a status" in result.stderr
    assert (health.returncode, health.stdout) == (1, "")


def test_bug_is_one_line_and_the_trace_is_printed_on_request(command: Command) -> None:
    before = "import json; json.dumps = lambda *a, **k: 1 / 0"
    quiet = command("config", "schema", before=before)
    assert quiet.returncode == 1
    assert quiet.stderr == "cdf-replicator: ZeroDivisionError: division by zero (CDF_LOG__LEVEL=debug shows where)\n"
    loud = command("config", "schema", before=before, environ={"CDF_LOG__LEVEL": "debug"})
    assert "Traceback" in loud.stderr
