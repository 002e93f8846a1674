"""Run SQL on the tables of a running demo: `flights`, the source table, and `audit`, all of its changes.

python -m deploy.local.demo.sql FOLDER "SELECT change_type, count(*) FROM audit GROUP BY ALL"
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from deploy.local.demo.service import TABLE
from deploy.local.demo.spark import session


def main(folder: Path, query: str) -> None:
    with tempfile.TemporaryDirectory() as scratch, session(Path(scratch), memory="512m") as spark:
        spark.read.format("delta").load(str(folder / TABLE)).createOrReplaceTempView("flights")
        spark.read.format("delta").load(str(folder / "audit" / TABLE)).createOrReplaceTempView("audit")
        spark.sql(query).show(50, truncate=False)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
