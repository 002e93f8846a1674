"""Run deploy/compose.yaml unchanged with podman-compose, by hand or in a nightly job.

No image is fetched. The servers' images are built under their names: Elastic's own distribution on the Java of a wheel,
as in the other tests, and Debian's Redis and Prometheus. Grafana can't be had that way.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from deltalake import DeltaTable

from deploy.local.servers import elasticsearch
from deploy.local.servers.server import CACHE, PROJECT
from docs.generate.readme import ROOT, RULES
from tests.support.reading import documents, entries
from tests.support.waiting import until
from tests.system.conftest import installed  # noqa: F401 - a fixture
from tests.system.containers import BASE, IMAGE, PACKAGES, Podman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Everything in one test: packages are installed and images built in its fixtures.
pytestmark = pytest.mark.timeout(1800)

PODMAN_COMPOSE = "podman-compose==1.6.0"
APT = "RUN apt-get update && apt-get install -y --no-install-recommends {}\n"
STAND_INS = {
    "localhost/elasticsearch:9.2.4": "COPY java /java\nCOPY --chown=1000:0 elasticsearch /elasticsearch\n"
    # As in deploy/local/servers/elasticsearch.py: the wheel's Java lacks this module.
    "RUN sed -i /jdk.incubator.vector/d /elasticsearch/config/jvm.options\n"
    "ENV ES_JAVA_HOME=/java\nUSER 1000\nCMD /elasticsearch/bin/elasticsearch -Enetwork.host=0.0.0.0 "
    "-Ediscovery.type=single-node -Expack.security.enabled=false\n",
    "localhost/redis:8": APT.format("redis-server") + "CMD redis-server --bind 0.0.0.0 --protected-mode no\n",
    "localhost/prom/prometheus:v3.5.0": APT.format("prometheus")
    + "CMD prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/tmp/data\n",
}
ROUTES = {"flights_audit", "flights_search", "flights_cache"}
WITHIN = 480


@pytest.fixture(scope="module")
def podman(installed: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Podman:  # noqa: F811 - the fixture
    installed(*PACKAGES, "iptables")
    podman = Podman()
    podman.build(IMAGE)
    podman.build(f"{IMAGE}-board", PROJECT, "--target", "board")
    for number, (tag, lines) in enumerate(STAND_INS.items()):
        folder = tmp_path_factory.mktemp(f"image{number}")
        (folder / "Dockerfile").write_text(f"FROM {BASE}\n{lines}")
        if "elasticsearch" in tag:
            for name, tree in zip(("elasticsearch", "java"), elasticsearch.distribution(), strict=True):
                shutil.copytree(tree, folder / name, symlinks=True)
        podman.build(tag, folder)
        shutil.rmtree(folder)
    return podman


@pytest.fixture(scope="module")
def compose(podman: Podman) -> Iterator[Callable[..., str]]:
    home = CACHE / "compose"
    if not (home / "bin" / "podman-compose").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([home / "bin" / "pip", "install", "--quiet", PODMAN_COMPOSE], check=True)
    words = (home / "bin" / "podman-compose", "--file", ROOT / "deploy/compose.yaml", "--profile", "monitoring")

    def compose(*more: str, check: bool = True) -> str:
        ended = podman.run(*words, *more, check=check)
        return ended.output + ended.log

    compose("down", "--volumes", check=False)
    yield compose
    compose("down", "--volumes")


def get_json(url: str) -> Any:
    try:
        answer = httpx.get(url, timeout=10, trust_env=False)
    except httpx.TransportError:
        return None
    return answer.json() if answer.is_success else None


def test_compose_stack_follows_the_departure_board(podman: Podman, compose: Callable[..., str]):
    services = ("elasticsearch", "redis", "board", "replicator", "prometheus")
    compose("up", "--detach", "--no-build", *services)

    def at() -> list[tuple[int | None, int | None]]:
        """Return the delivered version and the newest version of each route."""
        status = get_json("http://127.0.0.1:9102/status")
        return [(route["delivered_version"], route["source_version"]) for route in status["routes"]] if status else []

    def delivered() -> bool:
        return len(at()) == len(ROUTES) and all((version or 0) >= 5 for version, _ in at())

    until(delivered, WITHIN, lambda: compose("logs", "board", "replicator", check=False))
    compose("stop", "board")
    lake = podman.run("podman", "volume", "inspect", "--format={{.Mountpoint}}", "cdf-replicator_lake")
    board = DeltaTable(f"{lake.output.strip()}/flights")
    newest = (board.version(), board.version())
    until(lambda: at() == [newest] * len(ROUTES), WITHIN, lambda: compose("logs", "replicator", check=False))
    shown = documents("http://127.0.0.1:9200", "flights")
    assert len(shown) == board.count() > 1000
    assert entries("redis://127.0.0.1:6379/0", "flights:") == shown
    found = get_json("http://127.0.0.1:9090/api/v1/query?query=cdf_delivered_version")["data"]["result"]
    assert {one["metric"]["route"] for one in found} == ROUTES
    loaded = get_json("http://127.0.0.1:9090/api/v1/rules")["data"]["groups"]
    written = yaml.safe_load(RULES.read_text())["groups"]
    assert {(rule["name"], rule["health"]) for group in loaded for rule in group["rules"]} == {
        (rule.get("alert") or rule["record"], "ok") for group in written for rule in group["rules"]
    }
    stopped = compose("stop", "replicator")
    assert "SIGKILL" not in stopped
