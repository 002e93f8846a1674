"""deploy/compose.yaml and the files that it mounts speak of the same services, ports and places."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from cdf_replicator.settings import load
from docs.generate.readme import DASHBOARD, PAGES, ROOT, RULES
from tests.system.containers import HARDENED

FOLDER = ROOT / "deploy"
SERVICES = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def mounted(service: str) -> dict[str, PurePosixPath]:
    """Where each file of ours is in a service, by its path here."""
    pairs = [volume.split(":")[:2] for volume in SERVICES[service]["volumes"]]
    return {str((FOLDER / here).resolve().relative_to(FOLDER)): PurePosixPath(there) for here, there in pairs}


def written(file: str) -> Any:
    return yaml.safe_load((FOLDER / file).read_text())


def port_of(service: str) -> int:
    (published,) = SERVICES[service]["ports"]
    return int(published.rpartition(":")[2])


def test_every_mounted_file_is_there():
    for service in ("prometheus", "grafana"):
        assert all((FOLDER / file).is_file() for file in mounted(service))


def test_every_mount_of_tmp_allows_execution():
    """Docker adds noexec to a tmpfs otherwise, and Java could not load the libraries that it unpacks in /tmp."""
    commands = [found for page in PAGES for found in re.findall(r"--tmpfs[ =](\S+)", page.read_text())]
    services = [mount for service in SERVICES.values() for mount in service.get("tmpfs", ())]
    tests = [mount for mount in HARDENED if mount.startswith("/tmp")]
    assert commands
    assert services
    assert tests
    for mount in (*commands, *services, *tests):
        folder, _, options = mount.partition(":")
        assert folder != "/tmp" or "exec" in options.split(","), mount


def test_prometheus_finds_the_service_and_the_rules():
    config, files = written("compose/prometheus.yml"), mounted("prometheus")
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"replicator:{port_of('replicator')}"]}]
    (rules,) = config["rule_files"]
    assert files["compose/prometheus.yml"].parent / rules == files[str(RULES.relative_to(FOLDER))]


def test_grafana_finds_prometheus_and_the_dashboard():
    files = mounted("grafana")
    provisioned = PurePosixPath("/etc/grafana/provisioning")
    assert files["compose/datasource.yml"].parent == provisioned / "datasources"
    assert files["compose/dashboards.yml"].parent == provisioned / "dashboards"
    (source,) = written("compose/datasource.yml")["datasources"]
    address = urlsplit(source["url"])
    assert (source["type"], address.hostname, address.port) == ("prometheus", "prometheus", port_of("prometheus"))
    (provider,) = written("compose/dashboards.yml")["providers"]
    board = files[str(DASHBOARD.relative_to(FOLDER))]
    assert PurePosixPath(provider["options"]["path"]) == board.parent
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == str(board)


@pytest.mark.parametrize(
    ("names", "endpoints"),
    [
        ("audit,search,cache", {"/lake/audit", "http://elasticsearch:9200", "redis:6379/0"}),
        ("audit,db", {"/lake/audit", "postgres:5432/postgres"}),
        ("audit,documents", {"/lake/audit", "http://opensearch:9200"}),
    ],
)
def test_sinks_of_the_replicator_are_services_or_its_volume(names, endpoints):
    environ = {**SERVICES["replicator"]["environment"], "CDF_STATE_PATH": "/state", "CDF_TABLES__FLIGHTS__SINKS": names}
    settings = load(environ)
    assert {settings.sink(route.sink).endpoint for route in settings.routes.values()} == endpoints
    named = {endpoint.rpartition("//")[2].partition(":")[0] for endpoint in endpoints if ":" in endpoint}
    assert named <= set(SERVICES)
