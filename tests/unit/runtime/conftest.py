"""Provide the configuration of a process that consists of a YAML file."""

from __future__ import annotations

import os

import pytest
import yaml


@pytest.fixture
def content(tmp_path, monkeypatch):
    """Return a function that writes the YAML file, of which the configuration consists."""
    for name in [name for name in os.environ if name.startswith("CDF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CDF_CONFIG_FILE", str(tmp_path / "cdf.yaml"))

    def write(*, tables=("orders", "stock"), **more):
        given = {name: {"path": f"/lake/{name}", "keys": "id", "sinks": ["cache"]} for name in tables}
        sinks = {"cache": {"type": "redis", "url": "redis://cache:6379/0"}}
        document = {"state_path": "/var/lib/cdf", "tables": given, "sinks": sinks, **more}
        (tmp_path / "cdf.yaml").write_text(yaml.safe_dump(document))

    write()
    return write
