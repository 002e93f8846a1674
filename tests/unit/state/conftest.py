"""The folder of a test is a local state path."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tmp_path(tmp_path: Path) -> LocalPath:
    return LocalPath(tmp_path)


@pytest.fixture
def unreadable(monkeypatch):
    """Return a function that makes the lists of folders fail, as the operating system does if it denies access."""

    def denied(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    return lambda: monkeypatch.setattr(os, "scandir", denied)
