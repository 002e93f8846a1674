"""The suite can't rot: every part of it runs, small."""

import json
import os
import subprocess
import sys

import pytest

from deploy.local.servers.server import PROJECT
from tests.benchmarks.__main__ import PARTS


@pytest.mark.timeout(1200)
def test_every_part_of_the_benchmarks_runs(tmp_path):
    kept = tmp_path / "results.json"
    words = [sys.executable, "-m", "tests.benchmarks", "--smoke", "--json", str(kept)]
    environ = {**os.environ, "COLUMNS": "200"}
    run = subprocess.run(words, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    content = json.loads(kept.read_text())
    measured = {name.split()[0] for name in content["contests"]} | set(content["seen"])
    assert measured == set(PARTS)
    assert "targets:" in run.stdout.splitlines()[-1]
