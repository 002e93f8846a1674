"""The properties file that passes the settings, with their credentials, to the JVM."""

from __future__ import annotations

import os
import time

from cdf_replicator.spark import session


def test_properties_file_of_a_killed_start_is_deleted_after_an_hour(monkeypatch, tmp_path):
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))
    old, recent = tmp_path / "cdf-spark-old.properties", tmp_path / "cdf-spark-recent.properties"
    old.touch()
    recent.touch()
    os.utime(old, (time.time() - 3601,) * 2)
    with session._properties_file({"spark.app.name": "a b"}) as path:
        assert path.read_text() == "spark.app.name=a\\ b\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert sorted(tmp_path.iterdir()) == sorted([path, recent])
    assert list(tmp_path.iterdir()) == [recent]
