"""The demo as a user starts it: real flights, real servers, the installed command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiers import nightly

PROJECT = Path(__file__).resolve().parents[2]
RUNS = PROJECT / ".cache" / "demo"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the two JVMs with Spark, which live for a minute. Elasticsearch and OpenSearch have their own."""


@pytest.mark.parametrize("sinks", ["elasticsearch,redis,postgres", nightly("elasticsearch,opensearch,redis,postgres")])
def test_day_of_flights_is_equal_in_every_sink(sinks: str):
    targets = len(sinks.split(",")) + 1  # and the audit table
    before = set(RUNS.iterdir()) if RUNS.exists() else set()
    demo = subprocess.run(
        [
            sys.executable,
            "-m",
            "deploy.local.demo",
            "--days",
            "1",
            "--rows",
            "20000",
            "--sinks",
            sinks,
        ],
        cwd=PROJECT,
        env=os.environ | {"JAVA_TOOL_OPTIONS": SHORT_LIVED},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout
    assert "0 differing keys" in demo.stdout
    assert demo.stdout.count("  no difference") == targets, "verify compares each target"
    assert demo.stdout.count(" s, written at ") == targets, "the first load of each sink is measured"
    assert "04 February  version   6" in demo.stdout
    assert set(RUNS.iterdir()) <= before, "a run leaves nothing behind"
