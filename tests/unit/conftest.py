"""Sinks installed the way a third party's are: a distribution with entry points, on the path for one test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''
from __future__ import annotations

from pydantic import BaseModel, Field, SecretStr

from connectors import FrameSink, RouteOptions, SinkSettings


class Limits(BaseModel, extra="forbid", frozen=True):
    rows: int = Field(100, ge=1)
    token: SecretStr | None = None


class LogSink(FrameSink):
    mode = "append"

    class Settings(SinkSettings):
        path: str = Field(description="Where it goes.")

    def target(self, route):
        return f"{self.settings.path}/{route.table}"

    def check(self): ...
    def claim(self, route): ...
    def prepare(self, schema, route): return ()
    def write(self, frame, batch): ...


class StoreSink(LogSink):
    mode = "upsert"
    targets_are_prefixes = True

    class Settings(SinkSettings):
        hosts: tuple[str, ...] = Field(min_length=1, description="Addresses.")
        password: SecretStr | None = None
        ca_file: str | None = None
        retries: int = Field(3, ge=0)
        limits: Limits = Limits()
        headers: dict[str, str] = {}

    class Options(RouteOptions):
        index: str | None = Field(None, description="Name of the index.")
        layout: str = "json"

    def target(self, route):
        if route.options.index == "bad*":
            raise ValueError("an index name without *")
        return f"index {route.options.index or route.table}"
'''

ENTRY_POINTS = """[cdf_replicator.sinks]
example_log = example_sinks:LogSink
example_store = example_sinks:StoreSink
example_absent = example_absent:Sink
"""


@pytest.fixture
def example_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "site"
    info = home / "example_sinks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-sinks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (home / "example_sinks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.delitem(sys.modules, "example_sinks", raising=False)
