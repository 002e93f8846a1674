"""The alert rules, by Prometheus' own tool: they are well formed, fire when they should, and for nobody else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.servers.server import PROJECT

RULES = PROJECT / "deploy" / "prometheus" / "rules.yml"
CASES = Path(__file__).with_name("alerts.yml")


@pytest.fixture
def promtool(installed, tmp_path):
    installed("prometheus")
    for file in (RULES, CASES):  # cases name their rules beside them
        shutil.copy(file, tmp_path)

    def run(*words):
        ended = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    return run


def test_the_rules_are_well_formed(promtool):
    promtool("check", "rules", "--lint-fatal", RULES.name)


def test_each_alert_fires_when_it_should_and_for_nobody_else(promtool):
    promtool("test", "rules", CASES.name)
