"""Check alerts, metrics and the dashboard's queries with promtool: each alert fires for its condition only."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from docs.generate.readme import DASHBOARD, RULES

CASES = Path(__file__).with_name("alerts.yml")


@pytest.fixture
def promtool(installed, tmp_path):
    installed("prometheus")
    for file in (RULES, CASES):  # cases name their rules beside them
        shutil.copy(file, tmp_path)

    def run(*words, given=""):
        ended = subprocess.run(
            ["promtool", *words], cwd=tmp_path, input=given, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    return run


def test_alert_rules_are_well_formed(promtool):
    promtool("check", "rules", "--lint-fatal", RULES.name)


def test_each_alert_fires_only_for_its_own_condition(promtool):
    promtool("test", "rules", CASES.name)


def test_scraped_metrics_are_clean(promtool):
    board = StatusStore()
    board.add_sink("search", "elasticsearch", "")
    board.add_route("orders_search", "orders", "search")
    promtool("check", "metrics", given=generate_latest(Metrics(board).registry).decode())


def panels() -> list[tuple[str, str]]:
    """Return the title and the query of each target of the dashboard, with its variables replaced."""
    text = DASHBOARD.read_text()
    chosen = {"$__rate_interval": "5m", "$job": ".+", "$instance": ".+", "$table": ".+", "$sink": ".+"}
    for name, value in chosen.items():
        text = text.replace(name, value)
    return [
        (panel["title"], target["expr"]) for panel in json.loads(text)["panels"] for target in panel.get("targets", ())
    ]


def test_every_query_of_the_dashboard_is_promql(promtool, tmp_path):
    assert panels()
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(panels())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", "panels.yml")


@pytest.mark.parametrize(("search", "down"), [("0x5", 1), ("1x5", 0)])
def test_sinks_down_are_counted_beside_a_sink_without_a_request(promtool, tmp_path, search, down):
    labels = 'job="cdf", instance="a"'
    series = [
        {"series": f'cdf_sink_up{{{labels}, sink="search"}}', "values": search},
        {"series": f'cdf_sink_up{{{labels}, sink="cache"}}', "values": "NaN+0x5"},
    ]
    sample = {"expr": dict(panels())["Sinks down"], "eval_time": "3m", "exp_samples": [{"value": down}]}
    world = {"interval": "1m", "input_series": series, "promql_expr_test": [sample]}
    (tmp_path / "panel.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [world]}))
    promtool("test", "rules", "panel.yml")
