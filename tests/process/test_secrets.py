"""No output of the service holds a secret: logs, pages, status, event logs and error texts."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import psutil
import pytest

from deploy.local.servers import Redis
from deploy.local.servers.server import free_port
from tests.support.service import SPARK_CONF, Ended, Service, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Elasticsearch
    from tests.support.source import Source

SECRETS = (
    "r3dis:p@ss/word",
    "wr0ng p@ss",
    "el4stic&pass",
    "k3y-of-nobody",
    "s3cr3t+of/the=lake",
    "t0ken-of-the-service",
    "acc0unt-key==",
    "encrypt10n-key",
)
REDIS, WRONG, ELASTIC, API_KEY, LAKE, TOKEN, ACCOUNT, ENCRYPTION = SECRETS
UI = ("/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def given(folder: Path, new_source: Callable[..., Source], elasticsearch: Elasticsearch) -> Iterator[dict[str, str]]:
    """Configure every kind of secret: two routes run, the server of one refuses its password, one server is absent."""
    (folder / "events").mkdir()
    (folder / "password").write_text(ELASTIC)
    conf = {
        "spark.driver.memory": "1g",
        "spark.hadoop.fs.s3a.secret.key": LAKE,
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": ACCOUNT,
        "spark.hadoop.fs.s3a.encryption.key": ENCRYPTION,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(free_port()),
        **SPARK_CONF,
    }
    with Redis.start(config={"requirepass": REDIS}) as server:
        yield environment(
            folder,
            SPARK__CONF=json.dumps(conf),
            HTTP__TOKEN=TOKEN,
            TABLES__KEPT__PATH=new_source(folder, "kept").path,
            TABLES__KEPT__KEYS="id",
            TABLES__KEPT__SINKS="cache,refused,search,away",
            SINKS__CACHE__TYPE="redis",
            SINKS__CACHE__URL=server.url,
            SINKS__REFUSED__TYPE="redis",
            SINKS__REFUSED__URL=f"redis://127.0.0.1:{server.port}/1",
            SINKS__REFUSED__PASSWORD=WRONG,
            SINKS__SEARCH__TYPE="elasticsearch",
            SINKS__SEARCH__HOSTS=elasticsearch.url,
            SINKS__SEARCH__USERNAME="elastic",
            SINKS__SEARCH__PASSWORD_FILE=folder / "password",
            SINKS__AWAY__TYPE="elasticsearch",
            SINKS__AWAY__HOSTS=f"http://127.0.0.1:{free_port()}",
            SINKS__AWAY__API_KEY=API_KEY,
        )


@pytest.fixture(scope="module")
def service(given: dict[str, str]) -> Iterator[Service]:
    with Service(given).started() as started:
        for route, state in (("cache", "running"), ("search", "running"), ("refused", "halted"), ("away", "retrying")):
            started.wait_state(f"kept_{route}", state)
        yield started


def found_in(text: str) -> list[str]:
    """Which secrets are in it, as they are, or as URLs and headers carry them."""

    def forms(secret: str) -> Iterator[str]:
        yield from (secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1])
        yield from (base64.b64encode(f"{user}{secret}".encode()).decode() for user in ("", "elastic:", ":"))

    return [secret for secret in SECRETS if any(form in text for form in forms(secret))]


def test_search_finds_planted_secrets():
    assert found_in(f"redis://:{quote(REDIS, safe='')}@host and elastic:{ELASTIC}") == [REDIS, ELASTIC]


@pytest.mark.parametrize("path", ["/status", "/metrics", "/readyz", "/livez", "/", "/openapi.json", "/docs"])
def test_no_endpoint_shows_a_secret(service: Service, path: str):
    assert found_in(service.get(path).text) == []


def test_log_holds_no_secret(service: Service):
    assert "kept_refused" in (text := service.log.read_text())
    assert found_in(text) == []


def test_no_process_argument_is_a_secret(service: Service):
    driver = psutil.Process(service.pid)
    lines = []
    for process in (driver, *driver.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(process.cmdline()))
    assert any("java" in line for line in lines)
    assert found_in("\n".join(lines)) == []


def test_spark_pages_and_event_log_hold_no_secret(service: Service, folder: Path):
    port = json.loads(service.given["CDF_SPARK__CONF"])["spark.ui.port"]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        pages = [client.get(page).raise_for_status().text for page in UI]
        (application,) = client.get("/api/v1/applications").json()
        pages.append(client.get(f"/api/v1/applications/{application['id']}/environment").raise_for_status().text)
    events = [file.read_text() for file in (folder / "events").rglob("*") if file.is_file() and file.suffix != ".crc"]
    assert "fs.s3a.secret.key" in pages[-1]
    assert any("SparkListenerJobStart" in text for text in events)
    assert found_in("\n".join((*pages, *events))) == []


def test_no_command_shows_a_secret(service: Service, here: Callable[..., Ended]):
    for ended in (
        here(service.given, "config", "show"),
        here(service.given, "config", "show", "--format", "json"),
        here(service.given, "config", "env"),
        here(service.given, "config", "schema"),
        here(service.given, "validate", "--offline"),
        here(service.given, "status"),
        here(service.given, "healthcheck"),
        here(service.given, "version"),
    ):
        assert ended.code == 0, ended.log
        assert ended.output
        assert found_in(ended.output + ended.log) == []


def test_no_state_file_holds_a_secret(service: Service, folder: Path):
    files = [file for file in (folder / "state").rglob("*") if file.is_file()]
    assert files
    assert found_in("\n".join(file.read_text(errors="replace") for file in files)) == []
