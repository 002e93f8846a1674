"""The process that forks Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys

from cdf_replicator.spark.session import LOCAL

IMPORTED = """
import os, sys
import {module}
print(len(os.listdir("/proc/self/task")), *sorted({{"connectors", "numpy", "pyarrow", "pydantic", "pyspark.worker"}} & sys.modules.keys()))
"""


def test_daemon_imports_the_workers_modules_and_starts_no_thread() -> None:
    (module,) = LOCAL.values()
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(module=module)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["1", "connectors", "pydantic", "pyspark.worker"]
