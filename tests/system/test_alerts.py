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


def test_every_query_of_the_dashboard_is_promql(promtool, tmp_path):
    queries = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel.get("targets", ())
    ]
    assert queries
    chosen = {"$__rate_interval": "5m", "$job": ".+", "$instance": ".+", "$table": ".+", "$sink": ".+"}
    for name, value in chosen.items():
        queries = [query.replace(name, value) for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", "panels.yml")
