"""The alert rules speak of metrics there are, and each has cases."""

import re
import shutil
import subprocess

import pytest
import yaml

from cdf_replicator.monitoring.metrics import all_metrics
from docs.generate.readme import CHART_RULES, PAGES_URL, ROOT, RULES

ALL = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]
CASES = yaml.safe_load((ROOT / "tests/system/alerts.yml").read_text())["tests"]


def test_every_metric_of_a_rule_is_in_the_catalogue():
    recorded = {rule["record"] for rule in ALL if "record" in rule}
    named = {name for rule in ALL for name in re.findall(r"\b(?:route:)?cdf_[\w:]+", rule["expr"])}
    histograms = {metric.name: metric.buckets for metric in all_metrics() if metric.type == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    assert named <= {metric.name for metric in all_metrics()} | parts | recorded
    assert recorded <= named, "each is used by an alert"


def test_objective_of_latency_is_a_bucket_of_the_histogram():
    (buckets,) = (metric.buckets for metric in all_metrics() if metric.name == "cdf_delivery_latency_seconds")
    objectives = {le for rule in ALL if "record" in rule for le in re.findall(r'le="([^"]*)"', rule["expr"])}
    assert objectives <= {str(bucket) for bucket in buckets}
    assert len(objectives) == 1
    page = (ROOT / "docs/runbook.md").read_text()
    assert all(f"`{bucket}`" in page for bucket in buckets)


def test_every_alert_has_its_section_in_the_runbook():
    page = (ROOT / "docs/runbook.md").read_text()
    for rule in ALERTS:
        assert rule["annotations"]["runbook_url"] == f"{PAGES_URL}docs/runbook.md#{rule['alert'].lower()}"
        assert f"### {rule['alert']}\n" in page


def test_runbook_command_replaces_the_address_in_every_link(tmp_path):
    (command,) = re.findall(r"^ {4}(sed .*)", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    copy = tmp_path / RULES.relative_to(ROOT)
    copy.parent.mkdir(parents=True)
    shutil.copy(RULES, copy)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    rules = [rule for group in yaml.safe_load(copy.read_text())["groups"] for rule in group["rules"]]
    places = {rule["annotations"]["runbook_url"].partition("/docs/")[0] for rule in rules if "alert" in rule}
    assert places == {"https://git.mine.example/cdf-replicator/blob/main"}


def test_chart_has_the_same_rules():
    assert CHART_RULES.read_text() == RULES.read_text(), "run: make docs"


@pytest.mark.parametrize("fires", [True, False])
def test_every_alert_has_a_firing_and_a_silent_case(fires):
    cases = [case for world in CASES for case in world["alert_rule_test"]]
    seen = {case["alertname"] for case in cases if bool(case["exp_alerts"]) is fires}
    assert seen == {rule["alert"] for rule in ALERTS}
