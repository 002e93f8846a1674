"""What these tests need of the machine: Debian's packages, installed as root."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.e2e.conftest import new_source  # noqa: F401 - a fixture of theirs too


@pytest.fixture(scope="session")
def installed():
    """Install packages; their services are not started."""

    def install(*packages: str) -> None:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        known = subprocess.run(["dpkg-query", "--show", *packages], capture_output=True, check=False)
        if known.returncode == 0:
            return
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "--quiet", *words], env=environ, stdin=subprocess.DEVNULL, check=True)

    return install
