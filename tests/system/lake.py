"""A Spark of its own that runs SQL for a test: another writer, with jars and settings that the tests' own session lacks.

python -m tests.system.lake CONF      statements on stdin, one a line; for each a line of JSON: its rows
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.service import SPARK_CONF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self


class Lake:
    """The process; a context manager."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.lake", json.dumps({**SPARK_CONF, **conf})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def sql(self, statement: str) -> list[dict[str, Any]]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(statement.replace("\n", " ") + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert isinstance(answer, list), answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


def main(conf: Mapping[str, str]) -> None:
    from cdf_replicator.settings.models import Spark
    from cdf_replicator.spark import session

    spark = session.start(Spark(master="local[2]", conf={"spark.driver.memory": "1g", **conf}))
    for statement in sys.stdin:
        try:
            answer: object = [row.asDict() for row in spark.sql(statement).collect()]
        except Exception as error:  # noqa: BLE001 - the test is told
            answer = f"{statement}{error}"
        print(json.dumps(answer, default=str), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
