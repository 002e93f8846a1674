"""A virtual environment with Spark 3.5, and the jars of the connectors that no Spark 4 loads: all under ``.cache/spark35``.

python -m tests.benchmarks.rivals.environment      does only what is missing
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from deploy.local.jars.fetch import fetch
from deploy.local.servers.server import CACHE

FOLDER = CACHE / "spark35"
VENV = FOLDER / "venv"
PYTHON = VENV / "bin" / "python"
JARS = FOLDER / "jars"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")


def prepare() -> None:
    """A second run needs no network and takes no time."""
    fetch("rivals", JARS)
    stamp = VENV / ".set-up"
    # The folder is part of it: a virtual environment does not survive a move.
    state = f"{VENV}\n{sys.version}\n{CONSTRAINTS.read_text()}"
    if stamp.exists() and stamp.read_text() == state:
        return
    print("rivals: virtual environment with Spark 3.5 (320 MB to fetch, a minute or two)", flush=True)
    venv.create(VENV, clear=True, with_pip=True)
    subprocess.run(
        [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pyspark"],
        env={**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS)},
        check=True,
    )
    stamp.write_text(state)


if __name__ == "__main__":
    prepare()
