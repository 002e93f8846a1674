"""A clock that a test sets, and sinks installed the way a third party's are: a distribution with entry points."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.unit.boards import Clock

ENTRY_POINTS = """[cdf_replicator.sinks]
example_log = example_sinks:LogSink
example_store = example_sinks:StoreSink
example_absent = example_absent:Sink
example_renamed = example_sinks:OldSink
example_moved = example_old_home:Sink
"""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def example_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are installed: PYTHONPATH for another process."""
    home = tmp_path / "site"
    info = home / "example_sinks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-sinks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(Path(__file__).with_name("example_sinks.py"), home)
    (home / "example_absent.py").write_text("import no_such_client\n")
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.delitem(sys.modules, "example_sinks", raising=False)
    return home
