"""The alert rules speak of metrics there are, and each has cases."""

import re

import yaml

from cdf_replicator.metrics import catalogue
from deploy.readme import CHART_RULES, ROOT, RULES

(GROUP,) = yaml.safe_load(RULES.read_text())["groups"]
CASES = yaml.safe_load((ROOT / "tests/system/alerts.yml").read_text())["tests"]


def test_every_metric_of_a_rule_is_in_the_catalogue():
    named = {name for rule in GROUP["rules"] for name in re.findall(r"\bcdf_\w+", rule["expr"])}
    assert named <= {metric.name for metric in catalogue()}


def test_every_alert_has_its_section_in_the_runbook():
    page = (ROOT / "deploy/README.md").read_text()
    for rule in GROUP["rules"]:
        assert rule["annotations"]["runbook"] == f"deploy/README.md#{rule['alert'].lower()}"
        assert f"### {rule['alert']}\n" in page


def test_the_chart_brings_the_same_rules():
    assert CHART_RULES.read_text() == RULES.read_text(), "run: make docs"


def test_every_alert_is_seen_to_fire_by_a_case():
    fired = {case["alertname"] for world in CASES for case in world["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in GROUP["rules"]}
