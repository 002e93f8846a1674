"""deploy/compose.yaml as it stands, run by podman-compose.

Where Docker Hub can't be reached the servers' images are built under their names, out of the same programs that the
other tests run: Elasticsearch's distribution, Debian's Redis and Prometheus. Grafana can't be had that way.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from deploy.readme import ROOT
from deploy.servers import elasticsearch
from deploy.servers.server import CACHE, PROJECT
from tests.e2e.reading import documents, entries
from tests.service import until
from tests.system.conftest import installed  # noqa: F401 - a fixture
from tests.system.containers import BASE, PACKAGES, Podman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PODMAN_COMPOSE = "podman-compose==1.6.0"
APT = "RUN apt-get update && apt-get install -y --no-install-recommends {}\n"
STAND_INS = {
    "localhost/elasticsearch:9.2.4": "COPY java /java\nCOPY --chown=1000:0 elasticsearch /elasticsearch\n"
    # As in deploy/servers/elasticsearch.py: the wheel's Java lacks this module.
    "RUN sed -i /jdk.incubator.vector/d /elasticsearch/config/jvm.options\n"
    "ENV ES_JAVA_HOME=/java\nUSER 1000\nCMD /elasticsearch/bin/elasticsearch -Enetwork.host=0.0.0.0 "
    "-Ediscovery.type=single-node -Expack.security.enabled=false\n",
    "localhost/redis:8": APT.format("redis-server") + "CMD redis-server --bind 0.0.0.0 --protected-mode no\n",
    "localhost/prom/prometheus:v3.5.0": APT.format("prometheus")
    + "CMD prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/tmp/data\n",
}
WITHIN = 300


@pytest.fixture(scope="module")
def podman(installed: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Podman:  # noqa: F811 - the fixture
    installed(*PACKAGES, "iptables")
    podman = Podman()
    podman.build("localhost/cdf-replicator")
    podman.build("localhost/cdf-replicator-board", PROJECT, "--target", "board")
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


def asked(url: str) -> Any:
    try:
        answer = httpx.get(url, timeout=10, trust_env=False)
    except httpx.TransportError:
        return None
    return answer.json() if answer.is_success else None


def test_the_whole_stack_follows_the_board(compose: Callable[..., str]):
    services = ("elasticsearch", "redis", "board", "replicator", "prometheus")
    compose("up", "--detach", "--no-build", *services)

    def delivered() -> bool:
        status = asked("http://127.0.0.1:9102/status")
        routes = status["routes"] if status else []
        return len(routes) == 3 and all((route["delivered_version"] or 0) >= 5 for route in routes)

    until(delivered, WITHIN, lambda: compose("logs", "board", "replicator", check=False))
    compose("stop", "board")
    until(settled, WITHIN, lambda: compose("logs", "replicator", check=False))
    shown = documents("http://127.0.0.1:9200", "flights")
    assert len(shown) > 1000
    assert entries("redis://127.0.0.1:6379/0", "flights:") == shown
    found = asked("http://127.0.0.1:9090/api/v1/query?query=cdf_delivered_version")["data"]["result"]
    assert {one["metric"]["route"] for one in found} == {"flights_audit", "flights_search", "flights_cache"}
    stopped = compose("stop", "replicator")
    assert "SIGKILL" not in stopped


def settled() -> bool:
    routes = asked("http://127.0.0.1:9102/status")["routes"]
    return all(route["delivered_version"] == route["source_version"] for route in routes)
