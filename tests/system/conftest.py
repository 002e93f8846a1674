"""Install the Debian packages that these tests need, as root."""

from __future__ import annotations

import fcntl
import os
import subprocess

import pytest

from deploy.local.servers.server import CACHE
from tests.process.conftest import new_source  # noqa: F401 - a fixture of theirs too

LONGEST = ("test_object_store.py", "test_image.py", "test_postgres_server.py")
"""Files that take longest. A process of the tests runs a whole file."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with the longest files, so that none of them runs alone at the end; the order is otherwise kept."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def installed():
    """Install packages; their services are not started."""

    def install(*packages: str) -> None:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        with (CACHE / "apt.lock").open("w") as lock:  # one process of the tests at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}\\n", *packages]
            known = subprocess.run(query, capture_output=True, text=True, check=False)
            if known.returncode == 0 and set(known.stdout.split()) == {"installed"}:  # a removed one is known too
                return
            for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
                subprocess.run(["apt-get", "--quiet", *words], env=environ, stdin=subprocess.DEVNULL, check=True)

    return install


@pytest.fixture(scope="session")
def browser(installed):
    """Start Debian's Chromium, once for all tests of the pages."""
    from tests.system.browser import PACKAGES, chromium  # the other tests need no Playwright

    installed(*PACKAGES)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def podman(installed):
    """Return podman with the image of this checkout."""
    from tests.system.containers import PACKAGES, Podman

    installed(*PACKAGES)
    podman = Podman()
    podman.build()
    return podman


def pytest_terminal_summary(terminalreporter):
    """Print the measurements that tests recorded, also if the tests run in several processes."""
    for report in terminalreporter.getreports("passed"):
        for name, found in report.user_properties:
            terminalreporter.write_line(f"{name}: {found}")
