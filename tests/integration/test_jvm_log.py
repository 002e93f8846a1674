"""Each log message of the JVM is a line of JSON, with any content; the JVM starts from the archive of classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cdf_replicator.spark.class_archive import ARCHIVE

WARNING = 'say "no"\nto \\ and\ttabs'
CAUSE = 'because of "that"\r\nand this'
SAID = """
import os, sys
from cdf_replicator.monitoring import logs
from cdf_replicator.spark import session
from cdf_replicator.settings.models import Spark
logs.configure("info", "json")
spark = session.start(Spark(master="local[1]", conf={"spark.driver.memory": "512m"}), log_tasks=False)
jvm = spark.sparkContext._jvm
cause = jvm.java.lang.IllegalStateException(sys.argv[2])
log = jvm.org.apache.logging.log4j.LogManager.getLogger("some.library")
log.warn(sys.argv[1])
log.error(sys.argv[1], cause)
for name in ("executor.Executor", "scheduler.TaskSetManager"):
    jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark." + name).error("a failed task")
print(open(f"/proc/{session.jvm_pid(spark)}/maps").read())
spark.stop()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    words = [sys.executable, "-c", SAID, WARNING, CAUSE]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    folder = tmp_path_factory.mktemp("jvm")
    ended = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_jvm_maps_the_archive_of_classes(ended):
    assert str(ARCHIVE) in ended.stdout


def test_quotes_and_newlines_stay_on_one_line_of_json(ended):
    said = [line for line in ended.stderr.splitlines() if not line.startswith("WARNING: ")]  # Java's own, of modules
    first, second = [entry for entry in map(json.loads, said) if entry["log.logger"] == "some.library"]
    assert (first["message"], first["log.level"], first["error.message"]) == (WARNING, "warn", "")
    assert (second["message"], second["log.level"], second["error.message"]) == (WARNING, "error", CAUSE)
    assert first["@timestamp"].endswith("Z")


def test_failed_tasks_of_a_command_that_reads_are_not_logged(ended):
    assert "a failed task" not in ended.stderr
