"""The folder of a test is a local state path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tmp_path(tmp_path: Path) -> LocalPath:
    return LocalPath(tmp_path)
